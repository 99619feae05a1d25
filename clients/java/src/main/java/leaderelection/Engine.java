/*
 * Engine.java
 *		Keeps a candidate standing: a thread takes one turn after the other. A
 *		session and a detached candidate (LeaderElection.java) differ in how they
 *		call the server. In this order: turns, calls, and what an error means.
 *
 * A turn first waits until it is due, or until something has changed: another
 * thread has lost the lease, or closed the client. Then it does one of these: it
 * gives back what is lost and still ours at the server; it gives up because the
 * health check fails; it renews; it stands.
 */
package leaderelection;

import static java.lang.System.Logger.Level.*;
import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static leaderelection.Jdbc.*;

import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import leaderelection.LeaderElection.*;

abstract class Engine extends Leadership {
    static final String RENEW = "SELECT term, remaining_ms, yielding FROM leader_election.renew("
        + "?, term => ?::pg_catalog.int8, metadata => ?::pg_catalog.jsonb)";
    /**
     * While we connect, these say that a server does not let us in. The driver itself says 08004 when
     * it knows no password. We say 25001 when a pool lends a connection that is in a transaction.
     */
    private static final String LOGIN_REFUSED = "28...|3D000|42501|08004|25001";
    /** After login, these end the client if a primary says so for long: a person has to mend it. */
    private static final String CALL_REFUSED = "28...|3D000|22023|0A000|25001";
    /** The schema, or a function in it, is missing. */
    private static final String NOT_INSTALLED = "3F000|42883";
    private static final long MOST_BACK_OFF = 5 * SECOND, LOG_AGAIN = 60 * SECOND;
    private static final int MOST_ATTEMPTS = 10;    // in a second

    final long callTimeout = nanos(o.callTimeout);
    private final int share;       // what remains of a lease at the server, divided by this, is ours
    private final long between;    // how long a follower rests between two attempts
    /** Complete when the engine's thread has done all it has to. */
    private final CompletableFuture<Void> finished = new CompletableFuture<>();

    // What follows is used by the engine's thread alone.
    Connection connection;    // a session's, or the pool's for this turn
    boolean known;            // the server may know that we stand: before we end, we withdraw
    long askAt = now();       // when the next turn is due
    private Addresses addresses;
    private Address at;           // where the connection is, or was tried; null: none was found
    private String primary = "";  // the address at which a call was possible last
    private Refusal callRefused;  // a primary's, if that was the last word of any primary
    private long backOff = SECOND / 10;
    private CompletableFuture<Void> expiry = new CompletableFuture<>();    // at the lease's deadline
    private final Deque<Long> attempts = new ArrayDeque<>();    // the last MOST_ATTEMPTS
    private CompletableFuture<Boolean> check;    // the health check that was asked last
    private boolean troubled;    // trouble was reported, and not yet its end
    private final Map<String, Long> logged = new HashMap<>();    // when each kind of line was, last

    Engine(Options options, int share, long between) {
        super(options, options.executor);
        this.share = share;
        this.between = between;
    }

    // What a session and a detached candidate do each in its own way

    /** Connects to a primary that takes us, at this address. */
    abstract Connection open(Address at) throws Exception;

    /** Waits a short while for news. It is called again and again until the next turn is due. */
    abstract void watch(Lease held) throws Exception;

    /** Asks to be elected. Null: we are not. */
    abstract Lease stand() throws Exception;

    /** Null: the server says that we do not lead. */
    abstract Lease renew(Lease held) throws Exception;

    /** Tells the server that we stand no longer; owed is the lease that is ours there, or null. */
    abstract void withdraw(Lease owed) throws Exception;

    /** After an error: decides what is left of our leadership, and of our connection. */
    abstract void keepOrLose(SQLException e);

    /** After a turn that did not fail: gives a pool its connection back. */
    abstract void endTurn() throws Exception;

    /** Closes our connections when the engine ends, so that the server still hears our last call. */
    abstract void hangUp();

    // ---------------------------------------------------------------------- turns

    final void start(Addresses addresses) {
        this.addresses = addresses;
        THREADS.execute(this::run);
    }

    private void run() {
        try {
            takeTurns();
            hangUp();
            handlers.await();
        } finally {
            expiry.cancel(false);    // or it would keep us until then
            finish();
            handlers.await();
            finished.complete(null);
        }
    }

    private void takeTurns() {
        try {
            while (!isClosing() || known)
                try {
                    turn();
                } catch (Throwable t) {
                    recover(t);
                }
        } catch (Throwable defect) {    // of recover(). Nobody is to wait for an engine that has ended
            fail(sqlCause(defect));
            handlers.await();    // first: that of lost stops the work
            disconnect(connection, defect);
            connection = null;
        }
    }

    private void turn() throws Exception {
        Lease held = lease;
        while (isIdle(held))
            watch(held);
        if (isLosing()) {
            giveBack();
        } else if (!isWell()) {
            lose("unhealthy");
            report("unhealthy", "", "the health check says no");
            giveBack();
        } else if (held == null) {
            handlers.await();    // that of lost may still stop the work [HANDLER=lost:block]
            ask(null);
        } else {
            ask(held);
        }
        endTurn();
    }

    /**
     * Has the lease to be given back, or have we to withdraw? This takes the lock, which lose() holds
     * from before it sets owed until the handler of lost is queued: so giveBack() waits for that
     * handler, too. Else the next one might lead while our work goes on [HANDLER=lost:block].
     */
    private synchronized boolean isLosing() { return owed != null || isClosing(); }

    /** Has a turn that began with this lease nothing to do yet? */
    private boolean isIdle(Lease held) {
        return lease == held && owed == null && !isClosing() && askAt - now() > 0;
    }

    /** Makes the next turn due earlier: a tenth of a second after the last attempt, or later [spin]. */
    final void askSoon() { askAt = Math.min(askAt, attempts.getLast() + SECOND / MOST_ATTEMPTS); }

    /** Waits for so long, or until something has changed. */
    final synchronized void rest(Lease held, long ns) throws InterruptedException {
        if (isIdle(held))
            NANOSECONDS.timedWait(this, ns);
    }

    /** Stands, or renews the lease that we hold. */
    private void ask(Lease held) throws Exception {
        long started = now();
        connect();
        if (isClosing())
            return;
        Lease granted = held == null ? stand() : renew(held);
        reportAnswer();
        callRefused = null;
        backOff = SECOND / 10;
        if (granted == null) {
            lose("not renewed");
            askAt = started + between;
            return;
        }
        askAt = granted.renewAt;
        if (extend(held, granted)) {
            expiry.cancel(false);
            expiry = new CompletableFuture<Void>().completeOnTimeout(null, granted.deadline - now(), NANOSECONDS);
            expiry.thenRunAsync(this::expire, THREADS);
        } else
            owed = granted;    // we do not lead by it, so it goes back
    }

    /**
     * Waits for the handlers, gives back the lease that is owed (if one is), and withdraws. We stand
     * anew after a second: the others have their turn first, and a lone candidate that resigns does
     * not spin [resign, alone].
     */
    private void giveBack() throws Exception {
        handlers.await();    // that of lost has stopped the work
        Lease past = owed;
        boolean leaving = known;
        owed = null;         // first: a release that fails is tried once, not for ever [spin]
        known = false;
        askAt = now() + SECOND + between;
        if (leaving) {
            connect();
            withdraw(past);
        }
    }

    /**
     * Asks the health check, on a thread of its own. One that hangs is not asked again before it has
     * answered. close() cuts the waiting short, and then this is false.
     */
    private boolean isWell() throws Exception {
        if (o.healthCheck == null)
            return true;
        if (check == null || check.isDone())
            check = async(() -> handlers.inside(o.healthCheck::getAsBoolean));
        waitOrClose(check, callTimeout);
        try {
            return answerOf(check, 0);
        } catch (ExecutionException | SQLTimeoutException e) {
            logOnce("health", isClosing() ? DEBUG : WARNING, "the health check fails: " + e.getMessage());
            return false;
        }
    }

    /** Nothing: the engine sees that we are closing, gives back, and calls finish(). */
    @Override void whenClosing() { }

    @Override public void close() {
        super.close();
        if (!handlers.areInside())
            finished.copy().completeOnTimeout(null, callTimeout, NANOSECONDS).join();
    }

    // ---------------------------------------------------------------------- calls

    /** Notes an attempt (recover() and askSoon() limit those), and connects, unless we are connected. */
    private void connect() throws Exception {
        attempts.add(now());
        if (attempts.size() > MOST_ATTEMPTS)
            attempts.remove();
        if (connection != null)
            return;
        at = null;    // and so it stays if no address can be found
        at = addresses.next(callTimeout);
        connection = open(at);
        primary = at.toString();
        addresses.note(at, null);
        addresses.endRound();
    }

    /** A statement of ours over our connection. */
    final Object[] call(String sql, Object... args) throws Exception {
        Connection c = connection;
        return within(callTimeout, () -> query(c, sql, args));
    }

    /** One that grants a lease. A renewal is of no use after the deadline of the one that we hold. */
    final Lease grant(Lease held, String sql, Object... args) throws Exception {
        Connection c = connection;
        long sent = now(), most = held == null ? callTimeout : Math.min(callTimeout, held.deadline - sent);
        Object[] row = within(most, () -> query(c, sql, args));
        return row == null ? null : new Lease(row, sent, share);
    }

    /** Waits for an answer that may take long; close() cuts that short. */
    final void waitOrClose(CompletableFuture<?> answer, long ns) throws Exception {
        try {
            CompletableFuture.anyOf(answer, closing).get(ns, NANOSECONDS);
        } catch (ExecutionException | TimeoutException e) {
            // the caller finds that in the answer
        }
    }

    /**
     * Connects, on another thread. A connection that comes too late is closed unused. When close()
     * is called meanwhile, this waits callTimeout more at most: withdraw() may need the connection.
     */
    final Connection openInTime(long ns, Callable<Connection> how) throws Exception {
        CompletableFuture<Connection> c = async(how);
        waitOrClose(c, ns);
        try {
            return answerOf(c, isClosing() ? callTimeout : 0);
        } catch (SQLTimeoutException e) {
            c.thenAccept(late -> disconnect(late, null));
            throw e;
        }
    }

    // -------------------------------------------------- what an error means for us

    /** After an error: what it means, and when to try again. Never fails. */
    private void recover(Throwable t) {
        SQLException e = sqlCause(t), last = e;
        boolean byPrimary = false;
        try {
            byPrimary = connection != null && isAnswer(e) && isPrimary();
        } catch (Exception silent) {
            last = sqlCause(silent);    // that question may run on: then only abort() ends the connection
        }
        if (connection != null && !isAnswer(last))
            callRefused = null;    // a call that broke is another word than a refusal
        judge(e, byPrimary);
        askAt = now();
        if (addresses.roundIsOver()) {
            Lease held = lease;    // an outage may end just before our deadline: so try often
            if (held != null)
                backOff = Math.min(backOff, (held.deadline - held.renewAt) / 16);
            askAt += (long) (backOff * ThreadLocalRandom.current().nextDouble(0.5, 1));
            backOff = Math.min(2 * backOff, MOST_BACK_OFF);
        }
        if (attempts.size() == MOST_ATTEMPTS)
            askAt = Math.max(askAt, attempts.peek() + SECOND);
        keepOrLose(isAnswer(last) ? e : last);
    }

    /**
     * Reports an error, and ends this client if it is a refusal that has lasted for refusalTimeout (or
     * at once, if it is NoSession). One server's word may be that of a standby that lags behind. So a
     * refusal at login counts if every address says it, and nothing else meanwhile; one of a call
     * counts if a primary says it, and no primary anything else, nor is there an outage of its address
     * [refused by the standby].
     */
    private void judge(SQLException e, boolean byPrimary) {
        String text = firstLine(e) + (at == null ? "" : " [" + at + "]");
        SQLException verdict = e instanceof NoSession ? e
            : connection == null ? judgeLogin(e, text) : judgeCall(e, text, byPrimary);
        if (verdict != null && !isClosing())
            fail(verdict);
    }

    /** No address was found, or it was not reached, or it does not let us in. */
    private SQLException judgeLogin(SQLException e, String text) {
        if (at == null || at.covers(primary) && !e.getSQLState().equals("25006"))    // a standby's is no word
            callRefused = null;
        boolean refused = e.getSQLState().matches(LOGIN_REFUSED);
        report(refused ? "refused" : "unreachable", e.getSQLState(), text);
        addresses.note(at, refused ? e : null);
        return addresses.verdict(o.refusalTimeout);
    }

    /** We were connected, and a call (or the wait for news) has failed. */
    private SQLException judgeCall(SQLException e, String text, boolean byPrimary) {
        String state = e.getSQLState();
        if (!byPrimary) {
            report("unreachable", state, text);
            return null;
        }
        report("refused", state, text
            + (state.matches(NOT_INSTALLED) ? " (CREATE EXTENSION leader_election, or portable.sql?)" : ""));
        if (!state.matches(CALL_REFUSED))
            callRefused = null;    // it may pass: a restore, GRANT
        else if (callRefused == null)
            callRefused = new Refusal();
        return callRefused != null && callRefused.lasted(o.refusalTimeout) ? e : null;
    }

    /** Is our connection one to a primary? (A pool's may go to any server.) */
    private boolean isPrimary() throws Exception {
        Connection c = connection;
        return !(Boolean) within(callTimeout, () ->
            query(c, "SELECT pg_catalog.pg_is_in_recovery()"))[0];
    }

    /** Sets what state() says from now on. Logs each kind of trouble at once, then once a minute at most. */
    private void report(String what, String sqlState, String text) {
        attempt = what.equals("unhealthy") ? what
            : what + ": " + (what.equals("refused") ? sqlState + " " : "") + text;
        troubled = true;
        logOnce(what + sqlState, isClosing() ? DEBUG : WARNING, what + ": " + text + " (" + sqlState + ")");
    }

    /** The server has answered, so what was reported is over, also if it was the health check. */
    final void reportAnswer() {
        attempt = "standing";
        if (troubled)
            logOnce("", INFO, "the server answers again");
        troubled = false;
    }

    /** Logs a line of this kind, once a minute at most. */
    final void logOnce(String kind, System.Logger.Level level, String text) {
        long last = logged.getOrDefault(kind, now() - LOG_AGAIN);
        if (now() - last < LOG_AGAIN)
            return;
        logged.put(kind, now());
        log(level, "election " + o.election + ": " + text, null);
    }
}

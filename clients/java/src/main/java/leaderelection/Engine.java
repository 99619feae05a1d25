/*
 * Engine.java
 *		Keeps a candidate standing: a thread takes one turn after the other. A
 *		session and a detached candidate (LeaderElection.java) differ in how they
 *		call the server. In this order: turns, calls, and what an error means.
 *
 * A turn does one of these: it gives back what is lost and still ours at the
 * server; it gives up because the health check fails; it renews; it stands. The
 * loop between two turns ends when the next one is due, or something has
 * changed: another thread has lost the lease, or closed the client.
 */
package leaderelection;

import static java.lang.System.Logger.Level.*;
import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static leaderelection.Jdbc.*;
import static leaderelection.LeaderElection.LOG;

import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import leaderelection.LeaderElection.*;

abstract class Engine extends Leadership {
    static final String RENEW = "SELECT term, remaining_ms, yielding FROM leader_election.renew("
        + "?, term => ?::pg_catalog.int8, metadata => ?::pg_catalog.jsonb)";
    /**
     * A server does not let us in. 08004 is the driver's: no password is known. 25001 is ours: a pool
     * lends a connection that is in a transaction.
     */
    private static final String LOGIN_REFUSED = "28...|3D000|42501|08004|25001";
    /** After login: a person has to mend it, if a primary says so for long. */
    private static final String CALL_REFUSED = "28...|3D000|22023|0A000|25001";
    /** The schema, or a function in it, is missing. */
    private static final String NOT_INSTALLED = "3F000|42883";
    private static final long MOST_BACK_OFF = 5 * SECOND, LOG_AGAIN = 60 * SECOND;
    private static final int MOST_ATTEMPTS = 10;    // in a second

    final long callTimeout = o.callTimeout.toNanos();
    private final int share;       // of what remains of a lease at the server, one part in so many
    private final long between;    // two attempts of a follower
    private final CompletableFuture<Void> finished = new CompletableFuture<>();

    // What follows is used by the engine's thread alone.
    Connection connection;    // a session's, or the pool's for this turn
    boolean known;            // the server may know that we stand
    long askAt = now();       // when to call the server
    private Addresses addresses;
    private Address at;           // where the connection is, or was tried; null: none was found
    private Refusal callRefused;  // a primary's, if that was its last word
    private long backOff = SECOND / 10;
    private final Deque<Long> attempts = new ArrayDeque<>();    // the last MOST_ATTEMPTS
    private CompletableFuture<Boolean> check;    // the health check that was asked last
    private boolean troubled;
    private final Map<String, Long> logged = new HashMap<>();    // when each kind of trouble was

    Engine(Options options, int share, long between) {
        super(options, options.executor);
        this.share = share;
        this.between = between;
    }

    // What a session and a detached candidate do each in its own way

    /** Connects to a primary that takes us, at this address. */
    abstract Connection open(Address at) throws Exception;

    /** Waits for news between two turns, and returns soon, to be called again. */
    abstract void watch(Lease held) throws Exception;

    /** Asks to be elected. Null: we are not. */
    abstract Lease stand() throws Exception;

    /** Null: the server says that we do not lead. */
    abstract Lease renew(Lease held) throws Exception;

    /** Tells the server that we stand no longer; owed is the lease that is ours there, or null. */
    abstract void withdraw(Lease owed) throws Exception;

    /** After an error: what is left of our leadership, and of our connection. */
    abstract void keepOrLose(SQLException e);

    /** Gives a pool its connection back. */
    abstract void endTurn() throws Exception;

    /** Ends connections in peace: what is said last is heard. */
    abstract void hangUp();

    // ---------------------------------------------------------------------- turns

    final void start(Addresses addresses) {
        this.addresses = addresses;
        THREADS.execute(this::run);
    }

    private void run() {
        while (!isClosing() || known)
            try {
                turn();
            } catch (Throwable t) {
                recover(t);
            }
        hangUp();
        handlers.await();
        finish();
        handlers.await();
        finished.complete(null);
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
     * Under the lock, which lose() has until its handler is queued: else giveBack() might wait for
     * the handlers before that, and the next one lead while our work goes on [HANDLER=lost:block].
     */
    private synchronized boolean isLosing() { return owed != null || isClosing(); }

    private boolean isIdle(Lease held) {
        return lease == held && owed == null && !isClosing() && askAt - now() > 0;
    }

    /** Have the next turn earlier, but not sooner than however many notifications allow [spin]. */
    final void askSoon() { askAt = Math.min(askAt, attempts.getLast() + SECOND / MOST_ATTEMPTS); }

    /** For so long, or until something has changed. */
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
        if (extend(held, granted))
            CompletableFuture.delayedExecutor(granted.deadline - now(), NANOSECONDS, THREADS)
                .execute(this::expire);
        else
            owed = granted;    // it came too late, or nobody was told of it
    }

    /**
     * Gives back what is held and not led, and withdraws. We stand anew when the others had
     * their turn, and so a lone candidate that resigns does not spin [resign, alone].
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

    /** Asks the health check. One that hangs is not asked again before it has answered. */
    private boolean isWell() throws Exception {
        if (o.healthCheck == null)
            return true;
        if (check == null || check.isDone())
            check = async(() -> handlers.inside(o.healthCheck::getAsBoolean));
        waitOrClose(check, callTimeout);
        try {
            return answerOf(check, 0);
        } catch (ExecutionException | SQLTimeoutException e) {
            logOnce("health", WARNING, "the health check fails: " + e.getMessage());
            return false;
        }
    }

    /** The engine sees it, gives back, and finishes. */
    @Override void whenClosing() { }

    @Override public void close() {
        super.close();
        if (!handlers.areInside())
            finished.copy().completeOnTimeout(null, callTimeout, NANOSECONDS).join();
    }

    // ---------------------------------------------------------------------- calls

    /** Connects, unless we are connected: an attempt, of which recover() allows so many. */
    private void connect() throws Exception {
        attempts.add(now());
        if (attempts.size() > MOST_ATTEMPTS)
            attempts.remove();
        if (connection != null)
            return;
        at = null;    // and so it stays if no address can be found
        at = addresses.next(callTimeout);
        connection = open(at);
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
            // that is to be found in the answer
        }
    }

    /** A connection that comes too late goes back unused. */
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
        SQLException e = sqlCause(t);
        judge(e);
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
        keepOrLose(e);
    }

    /**
     * Says what an error is, and ends this client if it has lasted. One server's word may be that of a
     * standby that lags behind. So a refusal counts if every address says it at login, or a primary
     * after that, and nothing else for refusalTimeout [refused by the standby].
     */
    private void judge(SQLException e) {
        String text = firstLine(e) + (at == null ? "" : " [" + at + "]");
        SQLException verdict = e instanceof NoSession ? e
            : connection == null ? judgeLogin(e, text) : judgeCall(e, text);
        if (verdict != null && !isClosing())
            fail(verdict);
    }

    private SQLException judgeLogin(SQLException e, String text) {
        boolean refused = e.getSQLState().matches(LOGIN_REFUSED);
        report(refused ? "refused" : "unreachable", e.getSQLState(), text);
        if (at != null)
            addresses.note(at, refused ? e : null);
        return addresses.verdict(o.refusalTimeout);
    }

    private SQLException judgeCall(SQLException e, String text) {
        String state = e.getSQLState();
        if (!isAnswer(e) || !isPrimary()) {
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

    /** A pool may have connections to any server. One that does not answer is no primary's. */
    private boolean isPrimary() {
        try {
            return !(Boolean) within(callTimeout, () ->
                query(connection, "SELECT pg_catalog.pg_is_in_recovery()"))[0];
        } catch (Exception e) {
            return false;
        }
    }

    /** What state() says from now on. Trouble is logged when it begins, then once a minute. */
    private void report(String what, String sqlState, String text) {
        attempt = what.equals("unhealthy") ? what
            : what + ": " + (what.equals("refused") ? sqlState + " " : "") + text;
        troubled = true;
        logOnce(what + sqlState, isClosing() ? DEBUG : WARNING, what + ": " + text + " (" + sqlState + ")");
    }

    final void reportAnswer() {
        attempt = "standing";
        if (troubled)
            logOnce("", INFO, "the server answers again");
        troubled = false;
    }

    final void logOnce(String kind, System.Logger.Level level, String text) {
        long last = logged.getOrDefault(kind, now() - LOG_AGAIN);
        if (now() - last < LOG_AGAIN)
            return;
        logged.put(kind, now());
        LOG.log(level, "election " + o.election + ": " + text);
    }
}

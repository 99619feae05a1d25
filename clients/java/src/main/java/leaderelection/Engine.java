/*
 * Engine.java
 *		What keeps a candidate standing: one turn after the other, and what an
 *		error means. See LeaderElection.java.
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

/** What keeps a candidate standing. A session and a detached one differ in how they call. */
abstract class Engine extends Leadership {
    static final String RENEW = "SELECT term, remaining_ms, yielding FROM leader_election.renew("
        + "?, term => ?::pg_catalog.int8, metadata => ?::pg_catalog.jsonb)";
    /**
     * What a server says to who may not log in. 08004 is the driver's: no password is known.
     * 25001 is ours: a pool lends what is in a transaction.
     */
    private static final String LOGIN_REFUSED = "28...|3D000|42501|08004|25001";
    /** What would be answered the same again, if a primary says it after login. */
    private static final String HOPELESS = "28...|3D000|22023|0A000|25001";
    private static final long MOST_BACK_OFF = 5 * SECOND, LOG_AGAIN = 60 * SECOND;
    private static final int MOST_ATTEMPTS = 10;    // in a second

    final long callTimeout = o.callTimeout.toNanos();
    private final int share;       // of what remains of a lease at the server, one part in so many
    private final long between;    // from one question to the next of who does not lead
    private final CompletableFuture<Void> closing = new CompletableFuture<>();
    private final CompletableFuture<Void> finished = new CompletableFuture<>();

    // The rest is the engine's alone.
    Connection connection;    // a session's, or the pool's for this turn
    boolean known;            // the server may know that we stand
    long askAt = now();       // when to call the server
    private Addresses addresses;
    private Address at;
    private Refusal hopeless;    // a primary's, if that was its last word
    private long backOff = SECOND / 10;
    private final Deque<Long> attempts = new ArrayDeque<>();    // the last MOST_ATTEMPTS
    private CompletableFuture<Boolean> check;
    private boolean troubled;
    private final Map<String, Long> logged = new HashMap<>();

    Engine(Options options, int share, long between) {
        super(options, options.executor);
        this.share = share;
        this.between = between;
    }

    abstract Connection open(Address at) throws Exception;

    /** What one does who has nothing to ask. Returns soon. */
    abstract void watch(Lease held) throws Exception;

    /** Stands. Null: we are not elected. */
    abstract Lease stand() throws Exception;

    /** Null: the server says that we do not lead. */
    abstract Lease renew(Lease held) throws Exception;

    /** Tells the server that we stand no longer; owed is the lease that is ours there, or null. */
    abstract void withdraw(Lease owed) throws Exception;

    /** After an error: what is left of our leadership, and of our connection. */
    abstract void keepOrLose(SQLException e);

    abstract void endTurn() throws Exception;

    /** Ends connections in peace: what is said last is heard. */
    abstract void hangUp();

    final void start(Addresses of) {
        addresses = of;
        POOL.execute(this::run);
    }

    private void run() {
        while (!closed || known)
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
        if (isLost()) {
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
    private synchronized boolean isLost() { return owed != null || closed; }

    private boolean isIdle(Lease held) {
        return lease == held && owed == null && !closed && askAt - now() > 0;
    }

    /** Before its time, but however many notifications there are, only so often [spin]. */
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
        if (closed)
            return;
        Lease granted = held == null ? stand() : renew(held);
        reportAnswer();
        hopeless = null;
        backOff = SECOND / 10;
        if (granted == null) {
            lose("not renewed");
            askAt = started + between;
            return;
        }
        askAt = granted.renewAt;
        if (extend(held, granted))
            CompletableFuture.delayedExecutor(granted.deadline - now(), NANOSECONDS, POOL)
                .execute(this::expire);
        else
            owed = granted;    // it came too late, or nobody was told of it
    }

    private void connect() throws Exception {
        attempts.add(now());
        if (attempts.size() > MOST_ATTEMPTS)
            attempts.remove();
        if (connection != null)
            return;
        at = null;
        if (addresses.roundIsOver())
            addresses.begin(within(callTimeout, addresses.all));
        at = addresses.next();
        connection = open(at);
        addresses.note(at, null);
        addresses.startOver();
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
     * What an error says of us. One server's word may be that of a standby that lags behind: so
     * all addresses have to refuse us, or a primary after login, and for a while [refused by
     * the standby].
     */
    private void judge(SQLException e) {
        String state = e.getSQLState(), text = firstLine(e) + (at == null ? "" : " [" + at + "]");
        SQLException lasting = null;
        if (e instanceof NoSession) {
            lasting = e;
        } else if (connection == null) {
            boolean refused = state.matches(LOGIN_REFUSED);
            report(refused ? "refused" : "unreachable", state, text);
            if (at != null)
                addresses.note(at, refused ? e : null);
            lasting = addresses.verdict(o.refusalTimeout);
        } else if (!isAnswer(e) || !isPrimary()) {
            report("unreachable", state, text);
        } else {
            report("refused", state, text + (state.matches("3F000|42883|42P01")
                ? " (CREATE EXTENSION leader_election, or portable.sql?)" : ""));
            hopeless = !state.matches(HOPELESS) ? null : hopeless != null ? hopeless : new Refusal();
            if (hopeless != null && hopeless.lasted(o.refusalTimeout))
                lasting = e;
        }
        if (lasting != null && !closed)
            fail(lasting);
    }

    /** A pool may have any server's connections. If this one answers no more it is none. */
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
        logOnce(what + sqlState, closed ? DEBUG : WARNING, what + ": " + text + " (" + sqlState + ")");
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
            return answerOf(c, closed ? callTimeout : 0);
        } catch (SQLTimeoutException e) {
            c.thenAccept(late -> disconnect(late, null));
            throw e;
        }
    }

    @Override void whenClosed() {
        closing.complete(null);
        if (!handlers.areInside())
            finished.copy().completeOnTimeout(null, callTimeout, NANOSECONDS).join();
    }

    @Override void whenFailed() { closing.complete(null); }
}

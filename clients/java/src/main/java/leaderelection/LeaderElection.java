/*
 * LeaderElection.java
 *		Stand for election in a PostgreSQL database that has the extension
 *		leader_election: one file to copy, or to install. It needs the driver
 *		org.postgresql, and Java 11 or later.
 *
 * SessionLeadership stands with a connection of its own, DetachedLeadership
 * with connections of the application's pool. SoleLeadership (no election at
 * all) and FakeLeadership (a test says who leads) have the same interface.
 *
 * Invariant: a term is never given out after its deadline, which counts from
 * the *sending* of the last renewal that was answered. Each elected has
 * exactly one lost. A lost is reported, and its handler has returned, before
 * the lease is given back to the server, so that the next leader never starts
 * while a handler of ours still stops the work.
 *
 * Threads of a SessionLeadership or DetachedLeadership, all of them daemons:
 *	- the engine, which talks to the server;
 *	- a timer, which ends the leadership at its deadline and destroys the
 *	  socket of a call that takes too long. It calls nothing that can block,
 *	  so that it works while everything else hangs;
 *	- one that runs the handlers, one after the other;
 *	- those of a pool, for what may hang: connecting, health checks, aborts.
 *
 * The clock is System.nanoTime(), which stands still while the machine sleeps
 * (Java has none that goes on): after a suspend a term may be given out that
 * is over. Fence what must not be written twice.
 */
package leaderelection;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLTimeoutException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.OptionalLong;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import javax.sql.DataSource;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.PGStatement;

public final class LeaderElection {
    private static final System.Logger LOG = System.getLogger("leaderelection");
    private static final long MS = 1_000_000, SECOND = 1000 * MS;

    private LeaderElection() { }

    /** What an application asks, whichever way it stands. All methods may be called by any thread. */
    public interface Leadership extends AutoCloseable {
        /** The term in which we lead now, else empty. Never blocks, and does no I/O. */
        OptionalLong term();

        boolean leads();

        /**
         * Waits until we lead. Returns the term, or empty after the timeout (or close(), or if
         * leadership without a term began). Throws the error that ended this client, if one has.
         */
        OptionalLong await(Duration timeout) throws SQLException, InterruptedException;

        /**
         * Fences the caller's open transaction: it can commit only while our present term lasts
         * (else LE002). Throws NotLeader, without asking the server, if we do not lead.
         */
        void fenced(Connection transaction) throws SQLException;

        /**
         * Gives up now and goes on standing. On return the handlers have run and the lease was given
         * back, unless that takes longer than the call timeout, or a handler is the caller.
         */
        void resign();

        /** How often this client was elected: a counter for your metrics; leads() is the gauge. */
        long changes();

        /** Gives up, withdraws, ends threads and connections, within the call timeout. */
        @Override void close();
    }

    /** Thrown by fenced() when we do not lead. The server's own refusals have the same SQLSTATE. */
    public static final class NotLeader extends SQLException {
        NotLeader(String election) {
            super("not the leader of election \"" + election + "\"", "LE001");
        }
    }

    /**
     * The arguments. Handlers are called one after the other, and must return soon: a lost one is
     * waited for before another candidate can lead. Their exceptions are logged.
     */
    public static final class Options {
        final String election;
        String candidate = host() + "-" + ProcessHandle.current().pid() + "-"
            + Integer.toHexString(ThreadLocalRandom.current().nextInt(0x10000, 0x1000000));
        Integer rank;
        String metadata, listenUrl;
        Properties listenInfo = new Properties();
        BooleanSupplier healthCheck;
        long slice = 5 * SECOND, callTimeout = 5 * SECOND, interval = SECOND;
        Consumer<Long> onElected = term -> { }, onYield;
        Consumer<String> onLost = reason -> { };
        Consumer<SQLException> onError = error -> { };
        Executor executor = Runnable::run;

        public Options(String election) { this.election = election; }

        /** Default: host-pid-random. Each instance needs a name of its own. */
        public Options candidate(String candidate) { this.candidate = candidate; return this; }

        public Options rank(int rank) { this.rank = rank; return this; }

        /** JSON, which view status shows of the leader. */
        public Options metadata(String json) { metadata = json; return this; }

        /**
         * Is the working loop well? Look at what it has noted ("my last turn is younger than 5 s").
         * The lease is renewed only after true; without a check, it is renewed while we are connected.
         */
        public Options healthCheck(BooleanSupplier check) { healthCheck = check; return this; }

        /** Session: how long one call of campaign() waits. Default 5 s. */
        public Options slice(Duration slice) { this.slice = slice.toNanos(); return this; }

        /** After this long the connection of a call is destroyed. Default 5 s. */
        public Options callTimeout(Duration timeout) { callTimeout = timeout.toNanos(); return this; }

        /** Detached: how often a follower asks. Default 1 s. */
        public Options interval(Duration interval) { this.interval = interval.toNanos(); return this; }

        /** Detached: where to LISTEN for changes, so that a follower asks at once. Not through a pooler. */
        public Options listen(String url, Properties info) { listenUrl = url; listenInfo = info; return this; }

        public Options onElected(Consumer<Long> handler) { onElected = handler; return this; }

        /**
         * The reason: resigned, closed, yielded, expired, connection lost, not renewed, unhealthy,
         * failover (elected follows, with a new term) or error.
         */
        public Options onLost(Consumer<String> handler) { onLost = handler; return this; }

        /** The server asks us to go: finish, and call resign(). Without a handler we resign at once. */
        public Options onYield(Consumer<Long> handler) { onYield = handler; return this; }

        /** The error that ended this client: nothing else ends it but close(). */
        public Options onError(Consumer<SQLException> handler) { onError = handler; return this; }

        /** Where handlers run. Still one after the other, and a lost one before the lease is given back. */
        public Options executor(Executor executor) { this.executor = executor; return this; }

        private static String host() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return "localhost";
            }
        }
    }

    /** A term, and until when it may be given out: nanoseconds of now(). */
    private static final class Lease {
        final long term, sent, deadline;

        Lease(long term, long sent, long deadline) {
            this.term = term;
            this.sent = sent;
            this.deadline = deadline;
        }
    }

    /** A leadership that is over for us, and is not given back yet. */
    private static final class Ended {
        final long term;
        final String reason;
        final CompletableFuture<Void> told;    // done when the lost handler has returned

        Ended(long term, String reason, CompletableFuture<Void> told) {
            this.term = term;
            this.reason = reason;
            this.told = told;
        }
    }

    /** What we know about our leadership, and who is told. Changes are made under this object's lock. */
    private abstract static class Base implements Leadership {
        final Options o;
        volatile Lease lease;        // null: we do not lead
        volatile Ended ended;
        volatile boolean yielding, closed;
        volatile SQLException fatal;
        private volatile long changes;
        private final ArrayDeque<Runnable> events = new ArrayDeque<>();

        Base(Options options) { o = options; }

        long now() { return System.nanoTime(); }

        @Override public OptionalLong term() {
            Lease l = lease;
            return l != null && l.deadline - now() > 0 ? OptionalLong.of(l.term) : OptionalLong.empty();
        }

        @Override public boolean leads() { return term().isPresent(); }

        @Override public long changes() { return changes; }

        @Override public synchronized OptionalLong await(Duration timeout) throws SQLException, InterruptedException {
            long start = System.nanoTime(), left;
            while (!leads() && fatal == null && !closed
                   && (left = timeout.toNanos() - (System.nanoTime() - start)) > 0)
                TimeUnit.NANOSECONDS.timedWait(this, left);
            if (fatal != null)
                throw new SQLException(fatal.getMessage(), fatal.getSQLState(), fatal);
            return term();
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            if (transaction.getAutoCommit())
                throw new SQLException("fenced() needs an open transaction: setAutoCommit(false)", "25P01");
            long term = term().orElseThrow(() -> new NotLeader(o.election));
            try (PreparedStatement s = prepare(transaction, "SELECT leader_election.assert_leader(?, ?)",
                                               o.election, term)) {
                s.execute();
            }
        }

        @Override public void resign() { end(yielding ? "yielded" : "resigned"); }

        @Override public synchronized void close() {
            closed = true;
            end("closed");
            notifyAll();
        }

        /**
         * The server has granted a term or, if expected is a lease, renewed that. False: nobody wants
         * it any more, or the answer came too late. What was over is never made valid again, for
         * its lost was reported or is about to be.
         */
        synchronized boolean granted(Lease expected, long term, long sent, long deadline, boolean yield) {
            expire();
            if (closed || lease != expected || deadline - now() <= 0)
                return false;
            if (expected != null && expected.term != term)
                end("failover");
            boolean elected = lease == null;
            lease = new Lease(term, sent, deadline);
            ended = null;
            if (elected) {
                changes++;
                yielding = false;
                event(() -> o.onElected.accept(term));
                notifyAll();
            }
            if (yield && !yielding) {
                yielding = true;
                if (o.onYield == null)
                    end("yielded");
                else
                    event(() -> o.onYield.accept(term));
            }
            return true;
        }

        /** First the term goes, then the handler is told; who gives the lease back waits for ended.told. */
        synchronized void end(String reason) {
            Lease l = lease;
            if (l == null)
                return;
            lease = null;
            ended = new Ended(l.term, reason, event(() -> o.onLost.accept(reason)));
            notifyAll();
        }

        synchronized void expire() {
            if (lease != null && lease.deadline - now() <= 0)
                end("expired");
        }

        /** Calls a handler, in the caller's thread; one that a handler causes comes after that handler. */
        synchronized CompletableFuture<Void> event(Runnable handler) {
            events.add(handler);
            if (events.size() == 1)
                for (Runnable next; (next = events.peek()) != null; events.remove())
                    guarded(next);
            return CompletableFuture.completedFuture(null);
        }

        void guarded(Runnable handler) {
            try {
                handler.run();
            } catch (Throwable t) {
                LOG.log(System.Logger.Level.ERROR, "a handler of election " + o.election + " failed", t);
            }
        }
    }

    /** Always leads and issues no term: for a laptop, or a single instance. Elected handlers get null. */
    public static final class SoleLeadership extends Base {
        private final boolean unfenced;

        /** unfenced: fenced() does nothing; else it refuses, because there is no term to be fenced by. */
        public SoleLeadership(Options options, boolean unfenced) {
            super(options);
            this.unfenced = unfenced;
            event(() -> o.onElected.accept(null));
        }

        @Override public boolean leads() { return !closed; }

        @Override public void resign() { }

        @Override public void fenced(Connection transaction) throws SQLException {
            if (!unfenced)
                throw new SQLException("a SoleLeadership has no term to be fenced by", "0A000");
        }

        @Override public synchronized void close() {
            if (!closed)
                event(() -> o.onLost.accept("closed"));
            super.close();
        }
    }

    /** For tests: the test elects, and moves the clock. Handlers run in the test's own thread. */
    public static final class FakeLeadership extends Base {
        private volatile long clock, last;

        public FakeLeadership(Options options) { super(options); }

        @Override long now() { return clock; }

        public void elect() { elect(last + 1, Duration.ofSeconds(15)); }

        /** The term that we have: a renewal. Another one: lost("failover"), then elected. */
        public synchronized void elect(long term, Duration duration) {
            expire();
            last = term;
            granted(lease, term, clock, clock + duration.toNanos(), false);
        }

        public void lose(String reason) { end(reason); }

        public synchronized void askYield() {
            if (leads())
                granted(lease, lease.term, lease.sent, lease.deadline, true);
        }

        public synchronized void advance(Duration duration) {
            clock += duration.toNanos();
            expire();
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            if (!leads())
                throw new NotLeader(o.election);
        }
    }

    /** What the two kinds of candidates share. The engine is one thread, which runs run(). */
    private abstract static class Engine extends Base {
        private static final long FIRST = 100 * MS, LONGEST = 5 * SECOND;
        final ThreadFactory daemon = work -> {
            Thread t = new Thread(work, "leader election " + o.election);
            t.setDaemon(true);
            return t;
        };
        final ExecutorService pool = Executors.newCachedThreadPool(daemon);
        private final ExecutorService handlers = Executors.newSingleThreadExecutor(daemon);
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(daemon);
        private final Thread engine = daemon.newThread(this::run);
        private final long share;         // of remaining_ms, in ns: what the local deadline lies ahead
        private CompletableFuture<Boolean> check = CompletableFuture.completedFuture(true);
        private volatile Thread handler;  // that runs one
        private volatile Runnable cut;    // destroys the connection of the call under way
        private volatile boolean giving;  // something back, which close() must not interrupt
        private long rest = now();        // until then we do not ask, because we have resigned
        private long backOff = FIRST;
        boolean woken;
        long sent;                        // when the engine's last call was sent

        Engine(Options options, long share) {
            super(options);
            this.share = share;
        }

        void start() { engine.start(); }

        /** Stands, for one turn. A row if that elected us. Follow share: sent is the row's. */
        abstract Object[] ask() throws SQLException;

        abstract Object[] renew(long term, long timeout) throws SQLException;

        /** Gives back what may still be ours at the server. The lost handler has returned. */
        abstract void giveBack(long term, String reason) throws SQLException;

        abstract void withdraw() throws SQLException;

        /** Is this the end of what we lead? */
        abstract boolean breaks(SQLException e);

        abstract void drop();

        private void run() {
            while (!closed && fatal == null)
                try {
                    settle();
                    if (lease != null)
                        keep();
                    else if (rest - now() > 0)
                        idle(rest);
                    else if (healthy())
                        stand();
                    else {
                        withdraw();
                        idle(now() + SECOND);
                    }
                } catch (Throwable t) {
                    trouble(t instanceof SQLException ? (SQLException) t : new SQLException(t.toString(), t));
                }
            giving = true;
            try {
                settle();
                withdraw();
            } catch (SQLException | RuntimeException e) {
                LOG.log(System.Logger.Level.DEBUG, "giving back failed", e);
            }
            drop();
            if (fatal != null)
                event(() -> o.onError.accept(fatal));
            handlers.shutdown();
            timer.shutdownNow();
            pool.shutdown();
        }

        private void stand() throws SQLException {
            Object[] row = ask();
            backOff = FIRST;
            if (row != null && !granted(null, row))
                ended = new Ended((Long) row[0], "late", CompletableFuture.completedFuture(null));
        }

        private void keep() throws SQLException {
            Lease l = lease;
            if (l == null)
                return;
            idle(l.sent + (l.deadline - l.sent) / 3);
            if (lease != l)
                return;
            if (!healthy()) {
                end("unhealthy");
                return;
            }
            long left = l.deadline - now();
            if (lease != l || left <= 0)
                return;
            Object[] row = renew(l.term, Math.min(o.callTimeout, left));
            backOff = FIRST;
            if (row != null)
                granted(l, row);
            else
                end("not renewed");
        }

        private boolean granted(Lease expected, Object[] row) {
            long deadline = sent + (Long) row[1] * share;
            boolean ok = granted(expected, (Long) row[0], sent, deadline, (Boolean) row[2]);
            if (ok)
                timer.schedule(this::expire, deadline - now(), TimeUnit.NANOSECONDS);
            return ok;
        }

        /** After a leadership: waits for the lost handler, then gives the lease back. */
        private void settle() throws SQLException {
            Ended e = ended;
            if (e == null)
                return;
            e.told.join();
            giving = true;
            try {
                giveBack(e.term, e.reason);
            } finally {
                giving = false;
                rest = now() + (e.reason.matches("resigned|yielded") ? SECOND : 0);
                ended = null;
                wake(false);
            }
        }

        private void trouble(SQLException e) {
            String fatalState = fatalState(e);
            if (fatalState != null) {
                fatal = !fatalState.matches("3F000|42883") ? e : new SQLException(
                    "the database lacks the extension (CREATE EXTENSION leader_election): " + e.getMessage(),
                    fatalState, e);
                end("error");
                wake(false);
                return;
            }
            if (breaks(e)) {
                end("LE006".equals(e.getSQLState()) ? "not renewed" : "connection lost");
                if (ended == null)
                    drop();
            }
            if (closed || ended != null)
                return;
            LOG.log(System.Logger.Level.WARNING, "election {0}: {1} ({2})", o.election, e.getMessage(), e.getSQLState());
            Lease l = lease;
            long most = l == null ? LONGEST : Math.min(LONGEST, (l.deadline - l.sent) / 3);
            pause(now() + (long) (Math.min(backOff, most) * ThreadLocalRandom.current().nextDouble(0.5, 1)));
            backOff = Math.min(2 * backOff, LONGEST);
        }

        /** The SQLSTATE in the chain of causes because of which the same call would fail again, else null. */
        private static String fatalState(Throwable e) {
            for (; e != null; e = e.getCause())
                if (e instanceof SQLException && ((SQLException) e).getSQLState() != null
                    && ((SQLException) e).getSQLState().matches(
                        "28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|08004"))
                    return ((SQLException) e).getSQLState();
            return null;
        }

        /** Asks the application, on a thread of the pool: a check that hangs must not hold up close(). */
        private boolean healthy() {
            if (o.healthCheck == null)
                return true;
            if (check.isDone())
                check = async(o.healthCheck::getAsBoolean);
            waitFor(now() + Long.MAX_VALUE / 2, check::isDone);
            return check.isDone() && !check.isCompletedExceptionally() && check.join();
        }

        private <T> CompletableFuture<T> async(Callable<T> work) {
            CompletableFuture<T> result = new CompletableFuture<>();
            pool.execute(() -> {
                try {
                    result.complete(work.call());
                } catch (Throwable t) {
                    result.completeExceptionally(t);
                }
                wake(false);
            });
            return result;
        }

        synchronized void wake(boolean early) {
            woken |= early;
            notifyAll();
        }

        /** Waits, but not after close() nor when leadership changes. */
        private synchronized void waitFor(long until, BooleanSupplier done) {
            Lease l = lease;
            try {
                while (!done.getAsBoolean() && (!closed || giving) && lease == l && until - now() > 0)
                    TimeUnit.NANOSECONDS.timedWait(this, until - now());
            } catch (InterruptedException e) {
                throw new IllegalStateException("the engine was interrupted", e);
            }
        }

        final void pause(long until) {
            waitFor(until, () -> woken);
            woken = false;
        }

        void idle(long until) throws SQLException { pause(until); }

        /** Opens a connection; one that comes too late, or after close(), is destroyed. */
        final Connection open(Callable<Connection> how, long timeout) throws SQLException {
            CompletableFuture<Connection> opening = async(how);
            waitFor(now() + timeout, opening::isDone);
            if (opening.isDone())
                try {
                    return opening.join();
                } catch (RuntimeException e) {
                    throw new SQLException(e.getCause().getMessage(), stateOf(e.getCause()), e.getCause());
                }
            opening.thenAccept(this::abort);
            throw new SQLTimeoutException("no connection in time", "08001");
        }

        private static String stateOf(Throwable e) {
            return e instanceof SQLException ? ((SQLException) e).getSQLState() : null;
        }

        /**
         * One statement; returns its first row, or null. After the timeout its socket is closed: a call
         * that was only given up would go on at the server, and might win an election that nobody knows of.
         */
        final Object[] call(Connection c, long timeout, String sql, Object... args) throws SQLException {
            Runnable mine = () -> abort(c);
            Runnable once = () -> { if (cut == mine) mine.run(); };
            try (PreparedStatement s = prepare(c, sql, args)) {
                cut = mine;
                var late = timer.schedule(once, timeout, TimeUnit.NANOSECONDS);
                if (closed && !giving)
                    throw new SQLException("closed", "08003");
                sent = now();
                ResultSet rows = s.execute() ? s.getResultSet() : null;
                Object[] row = rows == null || !rows.next() ? null : new Object[rows.getMetaData().getColumnCount()];
                for (int i = 0; row != null && i < row.length; i++)
                    row[i] = rows.getObject(i + 1);
                if (!late.cancel(false))
                    throw new SQLTimeoutException("the answer came too late", "08006");
                return row;
            } finally {
                cut = null;
            }
        }

        /** Closes the socket at once, on a thread of the pool: with TLS that may block. */
        final void abort(Connection c) {
            try {
                c.abort(pool);
            } catch (SQLException | RuntimeException e) {
                LOG.log(System.Logger.Level.DEBUG, "abort failed", e);
            }
        }

        @Override CompletableFuture<Void> event(Runnable task) {
            Runnable safe = () -> {
                handler = Thread.currentThread();
                guarded(task);
                handler = null;
            };
            return CompletableFuture.runAsync(() -> {
                try {
                    CompletableFuture.runAsync(safe, o.executor).join();
                } catch (RejectedExecutionException e) {
                    safe.run();
                }
            }, handlers);
        }

        @Override public void resign() {
            super.resign();
            long until = System.nanoTime() + o.callTimeout;
            if (Thread.currentThread() != handler)
                synchronized (this) {
                    try {
                        while (ended != null && until - System.nanoTime() > 0)
                            TimeUnit.NANOSECONDS.timedWait(this, until - System.nanoTime());
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                }
        }

        /** Half the time for the call under way, and half for giving back. */
        @Override public void close() {
            boolean led = lease != null;
            super.close();
            Runnable call = cut;
            if (call != null)
                try {
                    timer.schedule(() -> { if (cut == call) call.run(); },
                                   led || !cutAtOnce() ? o.callTimeout / 2 : 0, TimeUnit.NANOSECONDS);
                } catch (RejectedExecutionException e) {
                    return;    // the engine has ended meanwhile
                }
            try {
                if (Thread.currentThread() != handler)
                    engine.join(Math.max(1, o.callTimeout / MS));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }

        abstract boolean cutAtOnce();
    }

    private static final String STAND = "(?, ?, rank => ?::pg_catalog.int4, metadata => ?::pg_catalog.jsonb";
    private static final String GRANT = "SELECT term, remaining_ms, yielding FROM leader_election.";

    /**
     * Stands with a connection of its own, which is never a pool's. Its local deadline is half of what
     * remains of the lease: the server may end the session of a peer that went silent, and elect another
     * one, after 3 * floor(lease / 3 s) seconds, at least 3 s; and half a lease is less than that.
     */
    public static final class SessionLeadership extends Engine {
        private static final int LOOK = 25;    // ms: how soon the engine sees a close() or resign()
        private final String url;
        private final Properties info = new Properties();
        private final Driver driver;
        private Connection c;                  // null, or the engine's
        private boolean standing;

        /** A URL may name several hosts; standbys are passed over. Leave driver timeouts to us. */
        public SessionLeadership(String url, Properties info, Options options) throws SQLException {
            super(options, MS / 2);
            this.url = url;
            String seconds = String.valueOf((o.callTimeout + SECOND - 1) / SECOND);
            this.info.setProperty("connectTimeout", seconds);
            this.info.setProperty("socketTimeout", seconds);    // while it connects, host by host
            this.info.setProperty("tcpKeepAlive", "true");
            this.info.setProperty("targetServerType", "primary");
            this.info.setProperty("hostRecheckSeconds", "0");   // a standby may be the primary by now
            info.stringPropertyNames().forEach(key -> this.info.setProperty(key, info.getProperty(key)));
            driver = DriverManager.getDriver(url);
            start();
        }

        private void connect() throws SQLException {
            long hosts = 1 + url.split("[?]")[0].chars().filter(ch -> ch == ',').count();
            c = open(() -> driver.connect(url, info), 2 * hosts * o.callTimeout);
            c.setNetworkTimeout(pool, 0);      // a campaign is to wait for a slice; call() has a timer
            call(c, o.callTimeout, "SELECT pg_catalog.set_config('statement_timeout', '0', false),"
                 + " pg_catalog.set_config('idle_session_timeout', '0', false)");
        }

        @Override Object[] ask() throws SQLException {
            if (c == null)
                connect();
            Object[] row = { null };
            if (!standing)                     // so that our place in line outlives each slice
                row = call(c, o.callTimeout, "SELECT leader_election.join" + STAND + ", auto_renew => ?)",
                           o.election, o.candidate, o.rank, o.metadata, o.healthCheck == null);
            standing = true;
            if (row[0] == null)
                row = call(c, o.slice + o.callTimeout,
                           "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                           o.election, o.candidate, o.slice / MS + " ms");
            return row[0] == null ? null : renew(0, o.callTimeout);
        }

        @Override Object[] renew(long term, long timeout) throws SQLException {
            return call(c, timeout, GRANT + "renew(?)", o.election);
        }

        /** Waits, and watches the connection: its end is told at once. */
        @Override void idle(long until) throws SQLException {
            Lease l = lease;
            if (c == null)
                pause(until);
            for (long left; c != null && !closed && lease == l && (left = until - now()) > 0; )
                c.unwrap(PGConnection.class).getNotifications((int) Math.min(LOOK, 1 + left / MS));
        }

        /** Only a resign() keeps the connection: whatever else is known of it may be out of date. */
        @Override void giveBack(long term, String reason) throws SQLException {
            boolean resigned = reason.matches("resigned|yielded"), done = false;
            try {
                if (resigned)
                    call(c, o.callTimeout / 2, "SELECT leader_election.resign(?)", o.election);
                else if (reason.matches("closed|unhealthy"))
                    withdraw();
                done = resigned;
            } finally {
                if (!done)
                    drop();
            }
        }

        @Override void withdraw() throws SQLException {
            if (standing)
                call(c, o.callTimeout / 2, "SELECT leader_election.leave(?)", o.election);
            standing = false;
        }

        @Override boolean breaks(SQLException e) {
            String state = e.getSQLState();
            return state == null || state.matches("08...|57P..|25006|LE006");
        }

        @Override void drop() {
            if (c != null)
                abort(c);
            c = null;
            standing = false;
        }

        @Override boolean cutAtOnce() { return true; }
    }

    /** Stands over connections of the application's pool, each for one call. Works behind a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        private final DataSource source;
        private boolean standing;

        public DetachedLeadership(DataSource source, Options options) {
            super(options, MS);
            this.source = source;
            if (o.listenUrl != null)
                pool.execute(this::listen);
            start();
        }

        private Object[] call(long timeout, String sql, Object... args) throws SQLException {
            long until = now() + timeout;
            try (Connection c = open(source::getConnection, timeout)) {
                boolean auto = c.getAutoCommit();
                if (!auto)
                    c.setAutoCommit(true);
                Object[] row = call(c, until - now(), sql, args);
                if (!auto)
                    c.setAutoCommit(false);
                return row;
            }
        }

        @Override Object[] ask() throws SQLException {
            standing = true;
            Object[] row = call(o.callTimeout, GRANT + "acquire" + STAND + ")",
                                o.election, o.candidate, o.rank, o.metadata);
            if (row == null)
                pause(now() + o.interval);
            return row;
        }

        @Override Object[] renew(long term, long timeout) throws SQLException {
            return call(timeout, GRANT + "renew(?, ?)", o.election, term);
        }

        /** Tries again, for the pool may have handed out a dead connection, and others would wait for the lease. */
        @Override void giveBack(long term, String reason) throws SQLException {
            for (long until = now() + o.callTimeout / 2; !reason.equals("not renewed"); )
                try {
                    call(until - now(), "SELECT leader_election.release(?, ?)", o.election, term);
                    return;
                } catch (SQLException e) {
                    if (until - now() < SECOND / 5)
                        throw e;
                    pause(now() + SECOND / 10);
                }
        }

        @Override void withdraw() {
            try {
                if (standing)
                    call(o.callTimeout / 2, "SELECT leader_election.leave(?, ?)", o.election, o.candidate);
            } catch (SQLException e) {
                LOG.log(System.Logger.Level.DEBUG, "leave() failed", e);
            }
            standing = false;
        }

        @Override boolean breaks(SQLException e) { return false; }

        @Override void drop() { }

        @Override boolean cutAtOnce() { return false; }

        /** Wakes the engine when something happens in our election. A hint: without it the engine asks later. */
        private void listen() {
            String name = "\"election\": \"" + o.election.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
            while (!closed)
                try (Connection c = DriverManager.getConnection(o.listenUrl, o.listenInfo);
                     PreparedStatement s = prepare(c, "LISTEN leadership_changed")) {
                    c.setNetworkTimeout(pool, (int) (o.callTimeout / MS));
                    for (int i = 0; !closed; i++) {
                        if (i % 25 == 0)
                            s.execute();               // again, to see that the path lives
                        PGNotification[] news = c.unwrap(PGConnection.class).getNotifications(200);
                        for (int n = 0; news != null && n < news.length; n++)
                            if (news[n].getParameter().contains(name))
                                wake(true);
                    }
                } catch (SQLException | RuntimeException e) {
                    LOG.log(System.Logger.Level.WARNING, "LISTEN: {0}", e.getMessage());
                    java.util.concurrent.locks.LockSupport.parkNanos(SECOND);
                }
        }
    }

    /** Never prepared on the server: poolers lend another session's, and CREATE EXTENSION makes them stale. */
    private static PreparedStatement prepare(Connection c, String sql, Object... args) throws SQLException {
        PreparedStatement s = c.prepareStatement(sql);
        if (s.isWrapperFor(PGStatement.class))
            s.unwrap(PGStatement.class).setPrepareThreshold(0);
        for (int i = 0; i < args.length; i++)
            s.setObject(i + 1, args[i]);
        return s;
    }
}

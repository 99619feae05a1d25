/*
 * LeaderElection.java
 *		Stand for election in a PostgreSQL database that has the extension
 *		leader_election: one file to copy, or to install. It needs the driver
 *		org.postgresql, and Java 11 or later.
 *
 * SessionLeadership stands with a connection of its own, DetachedLeadership
 * with connections of the application's pool. SoleLeadership (no election at
 * all) and FakeLeadership (a test says who leads) are Leaderships, too.
 *
 * Invariant: a term is never given out after its deadline, which counts from
 * the *sending* of the last renewal that was answered. Each elected has
 * exactly one lost. A lost is reported, and its handler has returned, before
 * the lease is given back to the server, so that the next leader never starts
 * while a handler of ours still stops the work.
 *
 * Threads, all of them daemons: each candidate has one, the engine, which talks
 * to the server and asks the health check. Handlers and timers have others: a
 * leadership ends at its deadline although the engine hangs.
 *
 * The clock is System.nanoTime(), which stands still while the machine sleeps
 * (Java has none that goes on): after a suspend a term may be given out that
 * is over. Fence what must not be written twice. JDBC has no TCP_USER_TIMEOUT:
 * the timer of each call closes the socket instead.
 */
package leaderelection;

import static java.lang.System.Logger.Level.*;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.lang.management.ManagementFactory;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import javax.sql.DataSource;
import org.postgresql.*;

public final class LeaderElection {
    private static final System.Logger LOG = System.getLogger("leaderelection");
    private static final long MS = 1_000_000, SECOND = 1000 * MS;
    private static final ExecutorService POOL = Executors.newCachedThreadPool(task -> {
        Thread t = new Thread(task, "leader election");
        t.setDaemon(true);
        return t;
    });

    /** Thrown by fenced() when we do not lead. The server's own refusals have the same SQLSTATE. */
    public static final class NotLeader extends SQLException {
        NotLeader(String name) { super("not the leader of election \"" + name + "\"", "LE001"); }
    }

    /**
     * The arguments. Handlers are called one after the other, perhaps before the constructor of
     * the Leadership has returned, and must return soon: while a lost handler runs, nobody else is
     * elected. Their exceptions are logged. They must not call close(), which waits for them.
     */
    public static final class Options {
        public final String election;
        /** Each instance needs a name of its own. Default: pid@host-random. */
        public String candidate = ManagementFactory.getRuntimeMXBean().getName() + "-"
            + Integer.toHexString(ThreadLocalRandom.current().nextInt(0x10000, 0x1000000));
        public Integer rank;
        /** JSON, which view status shows of the leader. */
        public String metadata;
        /**
         * Is the working loop well? Look at what it has noted ("my last turn is younger than 5 s").
         * The lease is renewed only after true; without a check, while we are connected.
         */
        public BooleanSupplier healthCheck;
        /** How long a session's campaign() waits; when a call's socket is closed; how often a
         *  detached follower asks. */
        public Duration slice = Duration.ofSeconds(5), callTimeout = slice,
            interval = Duration.ofSeconds(1);
        /** Detached: connects for LISTEN, so that a follower asks at once. Not to a pooler. */
        public Callable<Connection> listen;
        /** onYield: the server asks us to go: finish, and resign(). Else we resign at once. */
        public Consumer<Long> onElected = term -> { }, onYield;
        /**
         * The reason: resigned, closed, yielded, expired, connection lost, not renewed, unhealthy,
         * failover (elected follows, with a new term) or error.
         */
        public Consumer<String> onLost = reason -> { };
        /** The error that has ended this client. Nothing else ends it but close(). */
        public Consumer<SQLException> onError = error -> { };
        /** Where handlers run. Default: threads of this file's own. */
        public Executor executor = POOL;

        public Options(String election) { this.election = election; }
    }

    /** What an application asks, whichever way it stands, from any thread. */
    public abstract static class Leadership implements AutoCloseable {
        final Options o;
        Executor executor = Runnable::run;
        volatile Long lead, over;    // the term in which we lead, or null; one to be given back
        volatile long deadline;      // of lead, by now(): written before it, and read before it
        private boolean asked;       // to yield
        volatile SQLException fatal;
        volatile boolean closed;
        private volatile long changes;
        CompletableFuture<Void> told = CompletableFuture.completedFuture(null);    // by handlers

        private Leadership(Options options) { o = options; }

        long now() { return System.nanoTime(); }

        /** The term in which we lead now, else empty. Never blocks, and does no I/O. */
        public OptionalLong term() {
            long until = deadline;
            Long term = lead;
            boolean over = term == null || until - now() <= 0;
            return over ? OptionalLong.empty() : OptionalLong.of(term);
        }

        public boolean leads() { return term().isPresent(); }

        /** How often we were elected: a counter for your metrics; leads() is the gauge. */
        public long changes() { return changes; }

        /**
         * Waits until we lead. Returns the term, or empty after the timeout, after close(), or if
         * we lead without a term. Throws the error that has ended this client, if one has.
         */
        public synchronized OptionalLong await(Duration timeout)
                throws SQLException, InterruptedException {
            long end = System.nanoTime() + timeout.toNanos(), left;
            while (!leads() && fatal == null && !closed && (left = end - System.nanoTime()) > 0)
                NANOSECONDS.timedWait(this, left);
            if (fatal != null)
                throw new SQLException(fatal.getMessage(), fatal.getSQLState(), fatal);
            return term();
        }

        /**
         * Fences the caller's open transaction: it can commit only while our present term lasts
         * (else LE002). Throws NotLeader, without asking the server, if we do not lead.
         */
        public void fenced(Connection transaction) throws SQLException {
            long term = term().orElseThrow(() -> new NotLeader(o.election));
            if (transaction.getAutoCommit())
                throw new SQLException("fenced() needs setAutoCommit(false)", "25P01");
            query(transaction, "SELECT leader_election.assert_leader(?, ?)", o.election, term);
        }

        /** Gives up now, and goes on standing. */
        public synchronized void resign() {
            if (lead != null)
                end(asked ? "yielded" : "resigned");
        }

        /** Gives up, withdraws, ends threads and connections. Waits no longer than callTimeout. */
        @Override public synchronized void close() {
            closed = true;
            end("closed");
            notifyAll();
        }

        /**
         * The server has granted a term or, if before is our term, renewed that. False: nobody
         * wants it any more, or the answer came too late. What is over is never made valid again,
         * because its lost was reported, or is about to be. (Terms are compared as objects.)
         */
        synchronized boolean granted(Long before, Long term, long until, boolean yielding) {
            expire();
            if (closed || lead != before || until - now() <= 0)
                return false;
            if (lead != null && !lead.equals(term))
                end("failover");
            deadline = until;
            boolean elected = lead == null, ask = yielding && (elected || !asked);
            asked = yielding;
            if (elected) {
                lead = term;
                changes++;
                event(() -> o.onElected.accept(term));
            }
            if (ask)
                event(o.onYield == null ? this::resign : () -> o.onYield.accept(term));
            return true;
        }

        /** The term goes, then the handler is told. Who gives the lease back waits for told. */
        synchronized void end(String reason) {
            if (lead == null)
                return;
            over = reason.equals("failover") ? null : lead;
            lead = null;
            event(() -> o.onLost.accept(reason));
        }

        synchronized void expire() {
            if (lead != null && deadline - now() <= 0)
                end("expired");
        }

        /** Calls a handler when those before it have returned. */
        synchronized void event(Runnable handler) {
            told = told.thenRunAsync(handler, executor).exceptionally(e -> {
                LOG.log(ERROR, "a handler of election " + o.election + " failed", e);
                return null;
            });
            notifyAll();
        }
    }

    /** Always leads, without a term: for a laptop, or a single instance. Elected gets null. */
    public static final class SoleLeadership extends Leadership {
        private final boolean unfenced;

        /** unfenced: fenced() does nothing. Else it refuses: there is no term to be fenced by. */
        public SoleLeadership(Options options, boolean unfenced) {
            super(options);
            this.unfenced = unfenced;
            lead = 0L;
            event(() -> o.onElected.accept(null));
        }

        @Override public OptionalLong term() { return OptionalLong.empty(); }

        @Override public boolean leads() { return !closed; }

        @Override public void resign() { }

        @Override public void fenced(Connection transaction) throws SQLException {
            if (!unfenced)
                throw new SQLException("a SoleLeadership has no term to be fenced by", "0A000");
        }
    }

    /** For tests: the test elects, and moves the clock. Handlers run in the test's own thread. */
    public static final class FakeLeadership extends Leadership {
        private volatile long clock, last;

        public FakeLeadership(Options options) { super(options); }

        @Override long now() { return clock; }

        public void elect() { elect(last + 1, Duration.ofSeconds(15)); }

        /** The term that we have: a renewal. Another one: lost("failover"), then elected. */
        public synchronized void elect(long term, Duration lease) {
            last = term;
            granted(lead, term, clock + lease.toNanos(), false);
        }

        public void lose(String reason) { end(reason); }

        public synchronized void askYield() {
            if (lead != null)
                granted(lead, lead, deadline, true);
        }

        public void advance(Duration duration) {
            clock += duration.toNanos();
            expire();
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            term().orElseThrow(() -> new NotLeader(o.election));
        }
    }

    /** What the two kinds of candidates share. */
    private abstract static class Engine extends Leadership {
        static final String STAND = "(?, ?, rank => ?, metadata => ?::pg_catalog.jsonb",
            FATAL = "28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|08004";
        final long callTimeout = o.callTimeout.toNanos();
        private final boolean session;
        final Callable<Connection> connect;
        private final CompletableFuture<Void> finished;
        volatile Connection own;    // a session's; a detached candidate's is for LISTEN
        private boolean standing;
        private long sent, next = now(), backOff = SECOND / 10;    // next: when to call the server

        Engine(Options options, boolean session, Callable<Connection> connect) {
            super(options);
            executor = o.executor;
            this.session = session;
            this.connect = connect;
            finished = CompletableFuture.runAsync(this::run, POOL);
        }

        /** Stands. Returns a lease_grant if we are elected, else null. */
        abstract Object[] stand() throws Exception;

        boolean well() {
            try {
                return o.healthCheck == null || o.healthCheck.getAsBoolean();
            } catch (RuntimeException e) {
                LOG.log(WARNING, "the health check of election " + o.election + " failed", e);
                return false;
            }
        }

        private synchronized boolean runs() { return over != null || !closed && fatal == null; }

        /** The last turn, after close(), only withdraws. */
        private void run() {
            for (boolean runs = true; runs; )
                try {
                    Long term = lead;    // before the lock: if that was ended, its end is complete
                    runs = runs();
                    idle(term);
                    boolean well = runs && over == null && !closed && well();
                    expire();
                    if (lead != term || term != null && !well)
                        end("unhealthy");
                    else if (well)
                        ask(term);
                    else
                        leave();
                } catch (Throwable t) {
                    try {
                        trouble(t);
                    } catch (Throwable again) {    // no thread is to be had: this one has to live
                        end("connection lost");
                        next = now() + SECOND;
                    }
                }
        }

        /**
         * A session's deadline is half of what remains: the server may end the session of a peer
         * that went silent, and elect another, after 3 * floor(lease / 3 s) seconds, at least 3 s.
         */
        private void ask(Long term) throws Exception {
            standing = true;
            Object[] grant = term == null ? stand()
                : tell("renew", Math.min(callTimeout, deadline - now()), term);
            long lasts = grant == null ? 0 : (Long) grant[1] * MS / (session ? 2 : 1);
            backOff = SECOND / 10;
            next = lasts > 0 ? sent + lasts / 3 : now() + (session ? 0 : o.interval.toNanos());
            if (grant == null)
                end("not renewed");
            else if (granted(term, (Long) grant[0], sent + lasts, (Boolean) grant[3]))
                later(sent + lasts - now()).execute(this::expire);
            else if (!grant[0].equals(term))
                over = (Long) grant[0];    // nobody was told of it
        }

        /**
         * Gives back what is over, and withdraws. Who has resigned stands anew when the others had
         * their turn, and a lone candidate does not spin.
         */
        private void leave() throws Exception {
            Long term = over;
            boolean leave = standing && (own != null || !session);
            told.join();
            over = null;
            standing = false;    // or, if the release fails, leave() would be refused next time
            next = now() + (session && own == null && term != null ? 0 : SECOND + o.interval.toNanos());
            if (term != null && !session)
                tell("release", callTimeout, term);
            if (leave)
                tell("leave", callTimeout, o.candidate);
            abort(own);
            own = null;
        }

        /** In doubt, a session stands anew; a detached one keeps its term until the deadline. */
        private void trouble(Throwable t) {
            SQLException e = new SQLException(t.toString(), t);
            for (Throwable cause = t; cause != null; cause = cause.getCause())
                if (cause instanceof SQLException)
                    e = (SQLException) cause;
            String state = String.valueOf(e.getSQLState()), text = e.getMessage();
            LOG.log(closed ? DEBUG : WARNING, "election {0}: {1} ({2})", o.election, text, state);
            expire();
            if (!closed && fatal == null && state.matches(FATAL)) {
                if (state.matches("3F000|42883"))
                    text = "no extension here (CREATE EXTENSION leader_election): " + text;
                fatal = new SQLException(text, state, e);
                end("error");
                event(() -> o.onError.accept(fatal));
            }
            // A candidacy that is in doubt is not used: campaign() would make one with defaults.
            if (!state.equals("55P03") || lead == null) {
                if (session)
                    cut(own);
                else
                    abort(own);
                own = null;
            }
            next = now() + (long) (backOff * ThreadLocalRandom.current().nextDouble(0.5, 1));
            backOff = Math.min(2 * backOff, 5 * SECOND);
        }

        /** Closes a session's socket when its loss was told: the server elects another then. */
        private void cut(Connection c) {
            expire();
            end("connection lost");
            told.join();
            abort(c);
        }

        /** Waits until something is to be done. Watches our connection: its end is told at once. */
        private void idle(Long term) throws Exception {
            long left;
            while (lead == term && over == null && !closed && (left = next - now()) > 0) {
                int ms = (int) (1 + Math.min(left / MS, 25));
                if (own == null)
                    Thread.sleep(ms);
                else
                    for (PGNotification n : own.unwrap(PGConnection.class).getNotifications(ms))
                        if (n.getParameter().contains(o.election))
                            return;
            }
        }

        /** A session is known by its connection; a detached one says its term, or its name. */
        final Object[] tell(String function, long timeout, Object who) throws Exception {
            String sql = "SELECT * FROM leader_election." + function;
            return session ? call(timeout, sql + "(?)", o.election)
                : call(timeout, sql + "(?, ?)", o.election, who);
        }

        /**
         * One statement. After the timeout its socket is closed: a call that was only given up goes
         * on at the server, and may win an election that nobody knows of.
         */
        final Object[] call(long timeout, String sql, Object... args) throws Exception {
            sent = now();
            Connection pooled = session ? null : connect(timeout, connect), c = session ? own : pooled;
            Executor later = later(sent + timeout - now());
            Future<?> timer = CompletableFuture.runAsync(session ? () -> cut(c) : () -> abort(c), later);
            try (pooled) {
                boolean auto = c.getAutoCommit();
                c.setAutoCommit(true);
                try {
                    return query(c, sql, args);
                } finally {
                    if (!c.isClosed())
                        c.setAutoCommit(auto);
                }
            } finally {
                timer.cancel(false);
            }
        }

        /** Connects, or borrows a connection. One that comes too late goes back unused. */
        final Connection connect(long timeout, Callable<Connection> connect) throws Exception {
            Future<Connection> c = POOL.submit(connect);
            try {
                return c.get(timeout, NANOSECONDS);
            } catch (TimeoutException e) {
                POOL.submit(() -> { c.get().close(); return null; });
                throw e;
            }
        }

        @Override public void close() {
            boolean follows;
            synchronized (this) {    // or it may be elected in between, and cut off before that is told
                follows = lead == null && over == null;
                super.close();
            }
            if (follows && session)
                abort(own);    // what it waits for is of no use any more
            finished.copy().completeOnTimeout(null, callTimeout, NANOSECONDS).join();
        }
    }

    /** Stands with a connection of its own, which is never a pool's. */
    public static final class SessionLeadership extends Engine {
        /** The URL may name several hosts; standbys are passed over. */
        public SessionLeadership(String url, Properties info, Options o) {
            super(o, true, () -> connect(url, info, (o.callTimeout.toMillis() + 999) / 1000 + ""));
        }

        /** The driver's timeouts are for connecting, host by host. Then each call has our timer. */
        private static Connection connect(String url, Properties my, String s) throws SQLException {
            Properties info = new Properties();
            info.putAll(Map.of("connectTimeout", s, "socketTimeout", s, "prepareThreshold", "0",
                "tcpKeepAlive", "true", "targetServerType", "primary", "hostRecheckSeconds", "0",
                "options", "-c statement_timeout=0 -c idle_session_timeout=0"));
            info.putAll(my);
            Connection c = DriverManager.getConnection(url, info);
            c.setNetworkTimeout(POOL, 0);
            return c;
        }

        /** Joins first, so that our place in line outlives each slice. */
        @Override Object[] stand() throws Exception {
            if (own == null) {
                own = connect(10 * callTimeout, connect);    // several hosts
                call(callTimeout, "SELECT leader_election.join" + STAND + ", auto_renew => ?)",
                     o.election, o.candidate, o.rank, o.metadata, o.healthCheck == null);
            }
            Object term = closed ? null : call(o.slice.toNanos() + callTimeout,
                "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                o.election, o.candidate, o.slice.toMillis() + " ms")[0];
            return term != null && well() ? tell("renew", callTimeout, null) : null;
        }
    }

    /** Stands over connections of the application's pool; also through a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        public DetachedLeadership(DataSource source, Options o) {
            super(o, false, source::getConnection);
        }

        @Override Object[] stand() throws Exception {
            String sql = "SELECT * FROM leader_election.acquire" + STAND + ")";
            Object[] grant = call(callTimeout, sql, o.election, o.candidate, o.rank, o.metadata);
            if (grant == null && own == null && o.listen != null) {
                Connection c = connect(callTimeout, o.listen);
                // Aborts it also if LISTEN fails. Over a dead path it would wait for ever.
                Future<?> timer = CompletableFuture.runAsync(() -> abort(c), later(callTimeout));
                c.setAutoCommit(true);
                query(c, "LISTEN leadership_changed");
                timer.cancel(false);
                own = c;
            }
            return grant;
        }
    }

    private static Executor later(long delay) {
        return CompletableFuture.delayedExecutor(delay, NANOSECONDS, POOL);
    }

    /** Closes the socket, on another thread: with TLS that may block. */
    private static void abort(Connection c) {
        if (c != null)
            POOL.submit(() -> { c.abort(POOL); return null; });
    }

    /**
     * Returns the first row, or null. Behind a transaction pooler the URL of the pool has
     * prepareThreshold=0, as for all other statements.
     */
    private static Object[] query(Connection c, String sql, Object... args) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++)
                s.setObject(i + 1, args[i]);
            ResultSet rows = s.execute() ? s.getResultSet() : null;
            Object[] row = rows != null && rows.next() ? new Object[4] : null;
            for (int i = 0; row != null && i < rows.getMetaData().getColumnCount(); i++)
                row[i] = rows.getObject(i + 1);
            return row;
        }
    }
}

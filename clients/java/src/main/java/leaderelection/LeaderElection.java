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
        /** Detached: how to connect for LISTEN, so that a follower asks at once. Not to a pooler. */
        public Callable<Connection> listen;
        /** onYield: the server asks us to go; finish, and resign(). Without it we resign at once. */
        public Consumer<Long> onElected = term -> { }, onYield;
        /**
         * The reason: resigned, closed, yielded, expired, connection lost, not renewed, unhealthy,
         * failover (elected follows, with a new term) or error.
         */
        public Consumer<String> onLost = reason -> { };
        /** The error that has ended this client. Nothing else ends it but close(). */
        public Consumer<SQLException> onError = error -> { };
        /** Where handlers run. Default: threads of this file's own. */
        public Executor executor;

        public Options(String election) { this.election = election; }
    }

    private static final class Lead {
        final Long term;
        volatile long deadline;    // by now()
        boolean yielding;

        Lead(Long term) { this.term = term; }
    }

    /** What an application asks, whichever way it stands, from any thread. */
    public abstract static class Leadership implements AutoCloseable {
        final Options o;
        private final Executor executor;
        volatile Lead lead, over;    // lead: null unless we lead; over: to be given back
        volatile SQLException fatal;
        volatile boolean closed;
        private volatile long changes;
        CompletableFuture<Void> told = CompletableFuture.completedFuture(null);    // by handlers

        private Leadership(Options options, Executor otherwise) {
            o = options;
            executor = o.executor != null ? o.executor : otherwise;
        }

        long now() { return System.nanoTime(); }

        /** The term in which we lead now, else empty. Never blocks, and does no I/O. */
        public OptionalLong term() {
            Lead l = lead;
            return l != null && l.deadline - now() > 0 ? OptionalLong.of(l.term) : OptionalLong.empty();
        }

        public boolean leads() { return term().isPresent(); }

        /** How often we were elected: a counter for your metrics; leads() is the gauge. */
        public long changes() { return changes; }

        /**
         * Waits until we lead. Returns the term, or empty after the timeout, after close(), or if we
         * lead without a term. Throws the error that has ended this client, if one has.
         */
        public synchronized OptionalLong await(Duration timeout)
                throws SQLException, InterruptedException {
            long end = System.nanoTime() + timeout.toNanos(), left;
            while (!leads() && fatal == null && !closed && (left = end - System.nanoTime()) > 0)
                TimeUnit.NANOSECONDS.timedWait(this, left);
            if (fatal != null)
                throw new SQLException(fatal.getMessage(), fatal.getSQLState(), fatal);
            return term();
        }

        /**
         * Fences the caller's open transaction: it can commit only while our present term lasts
         * (else LE002). Throws NotLeader, without asking the server, if we do not lead.
         */
        public void fenced(Connection transaction) throws SQLException {
            Object[] args = { o.election, term().orElseThrow(() -> new NotLeader(o.election)) };
            if (transaction.getAutoCommit())
                throw new SQLException("fenced() needs a transaction: setAutoCommit(false)", "25P01");
            String sql = "SELECT leader_election.assert_leader(?, ?)";
            try (PreparedStatement s = prepare(transaction, sql, args)) {
                s.execute();
            }
        }

        /** Gives up now, and goes on standing. */
        public synchronized void resign() {
            if (lead != null)
                end(lead.yielding ? "yielded" : "resigned");
        }

        /** Gives up, withdraws, ends threads and connections. Waits no longer than callTimeout. */
        @Override public synchronized void close() {
            closed = true;
            end("closed");
            notifyAll();
        }

        /**
         * The server has granted a term or, if expected is a leadership, renewed that. False: nobody
         * wants it any more, or the answer came too late. What is over is never made valid again,
         * because its lost was reported, or is about to be.
         */
        synchronized boolean granted(Lead expected, Long term, long deadline, boolean yielding) {
            expire();
            if (closed || lead != expected || deadline - now() <= 0)
                return false;
            if (lead != null && !lead.term.equals(term))
                end("failover");
            Lead l = lead == null ? new Lead(term) : lead;
            l.deadline = deadline;
            if (lead == null) {
                lead = l;
                changes++;
                event(() -> o.onElected.accept(term));
            }
            boolean asked = l.yielding;
            l.yielding |= yielding;
            if (yielding && !asked)
                event(o.onYield == null ? this::resign : () -> o.onYield.accept(term));
            return true;
        }

        /** First the term goes, then the handler is told. Who gives the lease back waits for told. */
        synchronized void end(String reason) {
            if (lead == null)
                return;
            over = reason.equals("failover") ? null : lead;
            lead = null;
            event(() -> o.onLost.accept(reason));
        }

        synchronized void expire() {
            if (lead != null && lead.deadline - now() <= 0)
                end("expired");
        }

        /** Calls a handler when those before it have returned, be it one of them that calls this. */
        synchronized void event(Runnable handler) {
            CompletableFuture<Void> before = told, mine = new CompletableFuture<>();
            told = mine;
            before.thenRunAsync(handler, executor).whenComplete((none, e) -> {
                if (e != null)
                    LOG.log(System.Logger.Level.ERROR, "a handler of " + o.election + " failed", e);
                mine.complete(null);
            });
            notifyAll();
        }
    }

    /** Always leads, without a term: for a laptop, or a single instance. Elected gets null. */
    public static final class SoleLeadership extends Leadership {
        private final boolean unfenced;

        /** unfenced: fenced() does nothing. Else it refuses: there is no term to be fenced by. */
        public SoleLeadership(Options options, boolean unfenced) {
            super(options, Runnable::run);
            this.unfenced = unfenced;
            granted(null, null, now() + Long.MAX_VALUE / 2, false);
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

        public FakeLeadership(Options options) { super(options, Runnable::run); }

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
                granted(lead, lead.term, lead.deadline, true);
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
        static final String FATAL = "28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|08004",
            STAND = "(?, ?, rank => ?::pg_catalog.int4, metadata => ?::pg_catalog.jsonb";
        final long callTimeout = o.callTimeout.toNanos();
        private final DataSource source;    // null: a session
        private final CompletableFuture<Void> ended = new CompletableFuture<>();
        volatile Connection own;            // a session's; a detached one's for LISTEN
        private long sent, next = now(), backOff = SECOND / 10;    // next: when to call the server

        Engine(Options options, DataSource source) {
            super(options, POOL);
            this.source = source;
        }

        /** Stands. Returns a lease_grant if we are elected, else null. */
        abstract Object[] stand() throws Exception;

        boolean well() { return o.healthCheck == null || o.healthCheck.getAsBoolean(); }

        /** Synchronized: who ends a leadership is done when we look. */
        private synchronized boolean runs() { return over != null || !closed && fatal == null; }

        /** The last turn, after close(), only withdraws. */
        void run() {
            for (boolean runs = true; runs; )
                try {
                    runs = runs();
                    turn();
                } catch (Throwable t) {
                    trouble(t);
                }
            ended.complete(null);
        }

        private void turn() throws Exception {
            Lead l = lead;
            if (l == null && over != null) {
                giveBack();
                return;
            }
            idle(l);
            boolean well = runs() && well();
            expire();
            if (lead != l)
                return;
            if (well)
                ask(l);
            else if (l != null)
                end("unhealthy");
            else
                withdraw();
        }

        /**
         * A session's deadline is half of what remains: the server may end the session of a peer
         * that went silent, and elect another, after 3 * floor(lease / 3 s) seconds, at least 3 s.
         */
        private void ask(Lead l) throws Exception {
            Object[] grant = l == null ? stand()
                : tell("renew", Math.min(callTimeout, l.deadline - now()), l.term);
            backOff = SECOND / 10;
            next = now() + (source == null ? 0 : o.interval.toNanos());
            if (grant == null) {
                end("not renewed");
                return;
            }
            long lasts = (Long) grant[1] * MS / (source == null ? 2 : 1);
            next = sent + lasts / 3;
            if (granted(l, (Long) grant[0], sent + lasts, (Boolean) grant[3]))
                after(sent + lasts - now(), this::expire);
            else if (l == null)
                over = new Lead((Long) grant[0]);
        }

        /** If there is something to give back we pause then: a lone candidate must not spin. */
        private void giveBack() throws Exception {
            Lead ended = over;
            told.join();
            over = null;
            if (source != null || own != null) {
                tell(source == null ? "resign" : "release", callTimeout, ended.term);
                next = now() + SECOND;
            }
            if (source == null)
                drop();
        }

        private void withdraw() throws Exception {
            next = now() + SECOND;
            if (source != null)
                tell("leave", callTimeout, o.candidate);
            drop();
        }

        private void drop() {
            abort(own);
            own = null;
        }

        /** A session that is in doubt stands anew; a detached one keeps its term to the deadline. */
        private void trouble(Throwable t) {
            SQLException e = new SQLException(t.toString(), t);
            for (Throwable cause = t; cause != null; cause = cause.getCause())
                if (cause instanceof SQLException)
                    e = (SQLException) cause;
            String state = String.valueOf(e.getSQLState());
            LOG.log(closed ? System.Logger.Level.DEBUG : System.Logger.Level.WARNING,
                    "election {0}: {1} ({2})", o.election, e.getMessage(), state);
            expire();
            if (state.matches(FATAL) && fatal == null) {
                fatal = !state.matches("3F000|42883") ? e : new SQLException("the database lacks the"
                    + " extension (CREATE EXTENSION leader_election): " + e.getMessage(), state, e);
                end("error");
                event(() -> o.onError.accept(fatal));
            }
            if (!state.equals("55P03")) {
                if (source == null)
                    end("connection lost");
                drop();
            }
            next = now() + (long) (backOff * ThreadLocalRandom.current().nextDouble(0.5, 1));
            backOff = Math.min(2 * backOff, 5 * SECOND);
        }

        /** Waits until something is to be done. Watches our connection: its end is told at once. */
        private void idle(Lead l) throws Exception {
            for (long left; lead == l && !closed && (left = next - now()) > 0; ) {
                int ms = (int) (1 + Math.min(left / MS, 25));
                PGNotification[] news = null;
                if (own == null)
                    Thread.sleep(ms);
                else
                    news = own.unwrap(PGConnection.class).getNotifications(ms);
                if (news != null
                        && Arrays.stream(news).anyMatch(n -> n.getParameter().contains(o.election)))
                    return;
            }
        }

        /** A session is known by its connection; a detached candidate says its term, or its name. */
        final Object[] tell(String function, long timeout, Object who) throws Exception {
            String sql = "SELECT * FROM leader_election." + function;
            return source == null ? call(timeout, sql + "(?)", o.election)
                : call(timeout, sql + "(?, ?)", o.election, who);
        }

        /**
         * One statement; returns its first row, or null. After the timeout its socket is closed: a
         * call that was only given up goes on at the server, and may win an election that nobody
         * knows of.
         */
        final Object[] call(long timeout, String sql, Object... args) throws Exception {
            sent = now();
            Connection pooled = source == null ? null : borrow(timeout), c = pooled == null ? own : pooled;
            CompletableFuture<Void> timer = after(timeout - (now() - sent), () -> abort(c));
            try (pooled; PreparedStatement s = prepare(c, sql, args)) {
                ResultSet rows = s.executeQuery();
                Object[] row = rows.next() ? new Object[rows.getMetaData().getColumnCount()] : null;
                for (int i = 0; row != null && i < row.length; i++)
                    row[i] = rows.getObject(i + 1);
                if (!c.getAutoCommit())
                    c.commit();
                return row;
            } finally {
                timer.cancel(false);
            }
        }

        /** A connection of the pool. One that comes too late goes back unused. */
        private Connection borrow(long timeout) throws Exception {
            FutureTask<Connection> task = new FutureTask<>(source::getConnection);
            POOL.execute(task);
            try {
                return task.get(timeout, TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                POOL.submit(() -> { task.get().close(); return null; });
                throw e;
            }
        }

        @Override public void close() {
            boolean follows = lead == null && over == null;
            super.close();
            if (follows && source == null)
                abort(own);    // what it waits for is of no use any more
            ended.copy().completeOnTimeout(null, callTimeout, TimeUnit.NANOSECONDS).join();
        }
    }

    /** Stands with a connection of its own, which is never a pool's. */
    public static final class SessionLeadership extends Engine {
        private final String url;
        private final Properties info = new Properties();

        /** The URL may name several hosts; standbys are passed over. */
        public SessionLeadership(String url, Properties info, Options o) throws SQLException {
            super(o, null);
            this.url = url;
            String seconds = String.valueOf((callTimeout + SECOND - 1) / SECOND);
            this.info.putAll(Map.of("connectTimeout", seconds, "socketTimeout", seconds,
                "tcpKeepAlive", "true", "targetServerType", "primary", "hostRecheckSeconds", "0",
                "options", "-c statement_timeout=0 -c idle_session_timeout=0"));
            this.info.putAll(info);
            DriverManager.getDriver(url);    // throws if there is none: that would never get better
            POOL.execute(this::run);
        }

        /**
         * The driver's timeouts are for connecting, host by host; then call() has a timer of its own.
         * We join first, so that our place in line outlives each slice.
         */
        @Override Object[] stand() throws Exception {
            if (own == null) {
                own = DriverManager.getConnection(url, info);
                own.setNetworkTimeout(POOL, 0);
                call(callTimeout, "SELECT leader_election.join" + STAND + ", auto_renew => ?)",
                     o.election, o.candidate, o.rank, o.metadata, o.healthCheck == null);
            }
            if (closed)
                return null;
            Object term = call(o.slice.toNanos() + callTimeout,
                "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                o.election, o.candidate, o.slice.toMillis() + " ms")[0];
            return term != null && well() ? tell("renew", callTimeout, null) : null;
        }
    }

    /** Stands over connections of the application's pool; also through a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        public DetachedLeadership(DataSource source, Options o) {
            super(o, source);
            POOL.execute(this::run);
        }

        @Override Object[] stand() throws Exception {
            Object[] grant = call(callTimeout, "SELECT * FROM leader_election.acquire" + STAND + ")",
                                  o.election, o.candidate, o.rank, o.metadata);
            if (grant == null && own == null && o.listen != null) {
                own = o.listen.call();
                prepare(own, "LISTEN leadership_changed").execute();
            }
            return grant;
        }
    }

    private static CompletableFuture<Void> after(long delay, Runnable task) {
        Executor later = CompletableFuture.delayedExecutor(delay, TimeUnit.NANOSECONDS, POOL);
        return CompletableFuture.runAsync(task, later);
    }

    /** Closes the socket, on another thread: with TLS that may block. */
    private static void abort(Connection c) {
        try {
            if (c != null)
                c.abort(POOL);
        } catch (SQLException e) {
            LOG.log(System.Logger.Level.DEBUG, "abort", e);
        }
    }

    /** Not prepared on the server: a pooler lends other sessions, CREATE EXTENSION makes it stale. */
    private static PreparedStatement prepare(Connection c, String sql, Object... args)
            throws SQLException {
        PreparedStatement s = c.prepareStatement(sql);
        if (s.isWrapperFor(PGStatement.class))
            s.unwrap(PGStatement.class).setPrepareThreshold(0);
        for (int i = 0; i < args.length; i++)
            s.setObject(i + 1, args[i]);
        return s;
    }
}

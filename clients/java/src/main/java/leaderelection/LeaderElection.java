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
 * Threads, all of them daemons: each candidate has one, the engine, which asks
 * the health check, and waits for what others do: calls, each with its time limit,
 * and handlers. A timer ends a leadership at its deadline although the engine hangs.
 *
 * The clock is System.nanoTime(), which stands still while the machine sleeps
 * (Java has none that goes on): after a suspend a term may be given out that
 * is over. Fence what must not be written twice. JDBC has no TCP_USER_TIMEOUT:
 * the timer of each call closes the socket instead.
 */
package leaderelection;

import static java.lang.System.Logger.Level.*;
import static java.util.concurrent.CompletableFuture.*;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import org.postgresql.*;

public final class LeaderElection {
    private static final System.Logger LOG = System.getLogger("leaderelection");
    private static final long MS = 1_000_000, SECOND = 1000 * MS;
    /** SQLSTATEs of what would be answered the same again. 08004: a password is missing. */
    private static final String FATAL =
        "28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|08004";
    private static final ExecutorService POOL = Executors.newCachedThreadPool(task -> {
        Thread t = new Thread(task, "leader election");
        t.setDaemon(true);
        return t;
    });

    /** Thrown by fenced() when we do not lead. The server's own refusals have the same SQLSTATE. */
    @SuppressWarnings("serial") public static final class NotLeader extends SQLException {
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
        public String candidate =
            java.lang.management.ManagementFactory.getRuntimeMXBean().getName() + "-"
            + Integer.toHexString(ThreadLocalRandom.current().nextInt(0x10000, 0x1000000));
        public Integer rank;
        /** JSON, which view status shows of the leader. A change counts from the next renewal on. */
        public volatile String metadata;
        /**
         * Is the working loop well? Look at what it has noted ("my last turn is younger than 5 s").
         * We stand, and the lease is renewed, only after true.
         */
        public BooleanSupplier healthCheck = () -> true;
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
        Executor executor = Runnable::run;    // runs handlers
        volatile Long lead, over;    // the term in which we lead, or null; one to be given back
        volatile long deadline;      // of lead, by now(): written before it, and read before it
        private volatile long changes;
        private boolean asked;       // to yield
        volatile boolean closed;
        volatile SQLException fatal;
        CompletableFuture<Void> told = completedFuture(null);    // when all handlers have returned

        private Leadership(Options options) { o = options; }

        long now() { return System.nanoTime(); }

        /** The term in which we lead now, else empty. Never blocks, and does no I/O. */
        public OptionalLong term() {
            long until = deadline;
            Long term = lead;
            boolean leads = term != null && until - now() > 0;
            return leads ? OptionalLong.of(term) : OptionalLong.empty();
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
            while (!leads() && !closed && (left = end - System.nanoTime()) > 0)
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
        public synchronized void resign() { end(asked ? "yielded" : "resigned"); }

        /** Gives up, withdraws, ends threads and connections. Waits no longer than callTimeout. */
        @Override public synchronized void close() {
            end("closed");
            closed = true;    // after that, or the engine might end before it has left
            notifyAll();
        }

        /**
         * The server has granted a term or, if before is our term, renewed that. False: nobody
         * wants it any more, or the answer came too late. What is over is never made valid again,
         * because its lost was reported, or is about to be. (Terms are compared as objects.) The
         * timer tells of the end although the engine hangs, in the health check for instance.
         */
        synchronized boolean granted(Long before, Long term, long until, boolean yielding) {
            end(null);
            if (closed || lead != before || term == null || until - now() <= 0)
                return false;
            if (!term.equals(lead))
                end("failover");
            deadline = until;
            delayedExecutor(until - now(), NANOSECONDS, POOL).execute(() -> end(null));
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

        /**
         * The term goes, then the handler is told. Who gives the lease back waits for told. Without
         * a reason: only if the deadline has passed.
         */
        synchronized void end(String reason) {
            if (lead == null || reason == null && leads())
                return;
            String why = leads() ? reason : "expired";
            over = why.equals("failover") ? null : lead;
            lead = null;
            event(() -> o.onLost.accept(why));
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

        public synchronized void askYield() { granted(lead, lead, deadline, true); }

        public void advance(Duration duration) {
            clock += duration.toNanos();
            end(null);
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            term().orElseThrow(() -> new NotLeader(o.election));
        }
    }

    /** What the two kinds of candidates share. */
    private abstract static class Engine extends Leadership {
        static final String GRANT =
            "SELECT ARRAY[term, remaining_ms, yielding::pg_catalog.int4] FROM leader_election.";
        final long callTimeout = o.callTimeout.toNanos();
        private final boolean session;
        private final Callable<Connection> connect;
        private final CompletableFuture<Void> finished;
        volatile Connection own, ear;    // a pool's own is given back after each turn; to LISTEN
        boolean standing;                // the server may know us
        private long sent, next = now(), backOff = SECOND / 10;    // next: when to call the server

        Engine(Options options, boolean session, Callable<Connection> connect) {
            super(options);
            executor = o.executor;
            this.session = session;
            this.connect = connect;
            finished = runAsync(this::run, POOL);
        }

        /** Stands. Returns a GRANT if we are elected, else null. */
        abstract Long[] stand() throws Exception;

        private void run() {
            while (!closed || standing)
                try {
                    Long term = lead;
                    idle(term);
                    boolean well = over == null && !closed && o.healthCheck.getAsBoolean();
                    if (well && lead == term)
                        ask(term);
                    else
                        leave();
                    if (own != null && !(session && standing)) {
                        own.close();
                        own = null;
                    }
                } catch (Throwable t) {
                    trouble(t);
                }
            abort(ear);
        }

        /**
         * Waits until something is to be done. Watches our connection: its end is told at once. Who
         * gave up hears of that, too, and would be the first to ask: it listens to nothing.
         *
         * While the driver reads it cannot be woken. So a session that leads has it read for 5 ms
         * at a time, and who listens and leads wakes up from a pause: who resigns, or closes, must
         * not keep the others waiting.
         */
        private void idle(Long term) throws Exception {
            Connection c = session ? own : standing ? ear : null;
            boolean reads = session || term == null;
            while (isIdle(term)) {
                if (c == null || !reads)
                    pause(term, c == null ? next - now() : 20 * MS);
                if (c == null)
                    continue;
                PGConnection it = c.unwrap(PGConnection.class);
                for (PGNotification n : reads ? it.getNotifications(term == null ? 20 : 5)
                        : it.getNotifications())
                    if (n.getParameter().contains(o.election))
                        return;
            }
        }

        private boolean isIdle(Long term) {
            return lead == term && over == null && !closed && next - now() > 0;
        }

        /** For so long, or until event() or close(). */
        private synchronized void pause(Long term, long ns) throws InterruptedException {
            if (isIdle(term))
                NANOSECONDS.timedWait(this, ns);
        }

        /**
         * A session's deadline is half of what remains: the server may end the session of a peer
         * that went silent, and elect another, after 3 * floor(lease / 3 s) seconds, at least 3 s.
         */
        private void ask(Long term) throws Exception {
            own = own == null ? connect(connect) : own;
            Long[] grant = term == null ? stand()
                : renew(Math.min(callTimeout, deadline - now()), term);
            long lasts = grant == null ? 0 : grant[1] * MS / (session ? 2 : 1);
            backOff = SECOND / 10;
            next = lasts > 0 ? sent + lasts / 3 : now() + (session ? 0 : o.interval.toNanos());
            if (grant == null)
                end("not renewed");
            else if (!granted(term, grant[0], sent + lasts, grant[2] > 0))
                over = grant[0];    // it came too late, or nobody was told of it
        }

        /**
         * Gives back what is over, and withdraws. We stand anew when the others had their turn, and
         * so a lone candidate that resigns does not spin.
         */
        private void leave() throws Exception {
            end("unhealthy");    // or waits for who is ending it just now
            told.join();
            next = now() + SECOND + o.interval.toNanos();
            if (standing) {
                standing = false;    // now, for if the release fails leave() would be refused later
                own = session ? own : connect(connect);
                if (over != null && !session)
                    tell("SELECT leader_election.release", callTimeout, over);
                tell("SELECT leader_election.leave", callTimeout, o.candidate);
            }
            over = null;
        }

        /** In doubt, a session stands anew; a detached one keeps its term until the deadline. */
        private void trouble(Throwable t) {
            SQLException e = new SQLException(t.toString(), t);
            for (Throwable cause = t; cause != null; cause = cause.getCause())
                if (cause instanceof SQLException)
                    e = (SQLException) cause;
            String state = String.valueOf(e.getSQLState()), text = e.getMessage();
            LOG.log(closed ? DEBUG : WARNING, "election {0}: {1} ({2})", o.election, text, state);
            if (!closed && state.matches(FATAL)) {
                fatal = new SQLException(!state.matches("3F000|42883") ? text
                    : "no extension here (CREATE EXTENSION leader_election): " + text, state, e);
                end("error");
                closed = true;
                event(() -> o.onError.accept(fatal));
            }
            next = now() + (long) (backOff * ThreadLocalRandom.current().nextDouble(0.5, 1));
            backOff = Math.min(2 * backOff, 5 * SECOND);
            if (session && lead != null && state.equals("55P03"))
                return;
            // A RuntimeException is the health check's. The server elects another when a session's
            // socket is closed. And a candidacy in doubt is not used: campaign() would make one
            // with defaults.
            end(t instanceof RuntimeException ? "unhealthy" : session ? "connection lost" : null);
            if (session)
                told.join();
            standing &= !session;
            over = standing ? over : null;    // or leave() comes next
            abort(own);
            abort(ear);
            own = ear = null;
        }

        final Long[] renew(long timeout, Long term) throws Exception {
            return call(own, timeout,
                GRANT + "renew(?, term => ?::pg_catalog.int8, metadata => ?::pg_catalog.jsonb)",
                o.election, session ? null : term, o.metadata);
        }

        /** A session is known by its connection; a detached one says its term, or its name. */
        final Long[] tell(String sql, long timeout, Object who) throws Exception {
            return session ? call(own, timeout, sql + "(?)", o.election)
                : call(own, timeout, sql + "(?, ?)", o.election, who);
        }

        /**
         * One statement. After the timeout trouble() closes the socket: a call that was only given
         * up goes on at the server, and may win an election that nobody knows of.
         */
        final Long[] call(Connection c, long ns, String sql, Object... args) throws Exception {
            sent = now();
            return POOL.submit(() -> query(c, sql, args)).get(ns, NANOSECONDS);
        }

        /** Connects, or borrows a connection. One that comes too late goes back unused. */
        final Connection connect(Callable<Connection> connect) throws Exception {
            Future<Connection> c = POOL.submit(connect);
            try {
                Connection it = c.get((session ? 10 : 1) * callTimeout, NANOSECONDS); // several hosts
                it.setAutoCommit(true);    // pools set that back when they get it
                return it;
            } catch (TimeoutException e) {
                POOL.submit(() -> { c.get().close(); return null; });
                throw e;
            }
        }

        @Override public void close() {
            super.close();
            if (session && over == null)
                abort(own);    // a follower's: what it waits for is of no use any more
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
            Properties info = (Properties) my.clone();
            Map.of("connectTimeout", s, "socketTimeout", s, "prepareThreshold", "0",
                "tcpKeepAlive", "true", "targetServerType", "primary", "hostRecheckSeconds", "0",
                "options", "-c statement_timeout=0 -c idle_session_timeout=0")
                .forEach(info::putIfAbsent);
            Connection c = DriverManager.getConnection(url, info);
            c.setNetworkTimeout(POOL, 0);
            return c;
        }

        /** Joins first, so that our place in line outlives each slice. */
        @Override Long[] stand() throws Exception {
            if (!standing)
                call(own, callTimeout, "SELECT leader_election.join(?, ?, rank => ?, "
                    + "metadata => ?::pg_catalog.jsonb, auto_renew => false)",
                    o.election, o.candidate, o.rank, o.metadata);
            standing = true;
            if (!closed)
                call(own, o.slice.toNanos() + callTimeout,
                    "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                    o.election, o.candidate, o.slice.toMillis() + " ms");
            return renew(callTimeout, null);    // no row if we were not elected
        }
    }

    /** Stands over connections of the application's pool; also through a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        /** Until it is granted: so no grant is lost with its answer. */
        private java.util.UUID request = java.util.UUID.randomUUID();

        /** The pool's connections are in autocommit mode, which is every pool's default. */
        public DetachedLeadership(javax.sql.DataSource pool, Options o) {
            super(o, false, pool::getConnection);
        }

        @Override Long[] stand() throws Exception {
            standing = true;
            Long[] grant = call(own, callTimeout,
                GRANT + "acquire(?, ?, rank => ?, metadata => ?::pg_catalog.jsonb, request => ?)",
                o.election, o.candidate, o.rank, o.metadata, request);
            request = grant == null ? request : java.util.UUID.randomUUID();
            if (grant == null && ear == null && o.listen != null) {
                ear = connect(o.listen);
                call(ear, callTimeout, "LISTEN leadership_changed");
            }
            return grant;
        }
    }

    /**
     * Closes the socket, on another thread: with TLS that may block. Then a pool's connection goes
     * back, or it would be missing there. Fails never, even if no thread is to be had.
     */
    private static void abort(Connection c) {
        Executor later = delayedExecutor(0, NANOSECONDS, POOL);
        if (c != null)
            later.execute(new FutureTask<>(() -> { c.abort(Runnable::run); c.close(); return c; }));
    }

    /**
     * Returns what GRANT asks for, or null. Behind a transaction pooler the URL of the pool has
     * prepareThreshold=0, as for all other statements.
     */
    private static Long[] query(Connection c, String sql, Object... args) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++)
                s.setObject(i + 1, args[i]);
            ResultSet rows = s.execute() ? s.getResultSet() : null;
            Object first = rows != null && rows.next() ? rows.getObject(1) : null;
            return first instanceof Array ? (Long[]) ((Array) first).getArray() : null;
        }
    }
}

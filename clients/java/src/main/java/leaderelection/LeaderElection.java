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
 * Threads, all of them daemons: the engine, which talks to the server, and
 * those of a pool, for whatever the engine must not hang in: handlers, health
 * checks, connecting, and what a timer starts (to end a leadership at its
 * deadline, to destroy the socket of a call that takes too long).
 *
 * The clock is System.nanoTime(), which stands still while the machine sleeps
 * (Java has none that goes on): after a suspend a term may be given out that
 * is over. Fence what must not be written twice.
 */
package leaderelection;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;
import java.util.function.*;
import javax.sql.DataSource;
import org.postgresql.*;

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
         * Waits until we lead. Returns the term, or empty after the timeout, after close(), or if we
         * lead without a term. Throws the error that has ended this client, if one has.
         */
        OptionalLong await(Duration timeout) throws SQLException, InterruptedException;

        /**
         * Fences the caller's open transaction: it can commit only while our present term lasts
         * (else LE002). Throws NotLeader, without asking the server, if we do not lead.
         */
        void fenced(Connection transaction) throws SQLException;

        /** Gives up now, and goes on standing. The lease is given back when the lost handler has returned. */
        void resign();

        /** How often this client was elected: a counter for your metrics; leads() is the gauge. */
        long changes();

        /** Gives up, withdraws, ends threads and connections. Takes no longer than the call timeout. */
        @Override void close();
    }

    /** Thrown by fenced() when we do not lead. The server's own refusals have the same SQLSTATE. */
    public static final class NotLeader extends SQLException {
        private static final long serialVersionUID = 1;

        NotLeader(String election) { super("not the leader of election \"" + election + "\"", "LE001"); }
    }

    /**
     * The arguments. Handlers are called one after the other, perhaps before the constructor of the
     * Leadership has returned, and must return soon: while a lost handler runs, nobody else is elected.
     * Their exceptions are logged.
     */
    public static final class Options {
        final String election;
        String candidate = host() + "-" + ProcessHandle.current().pid() + "-"
            + Integer.toHexString(ThreadLocalRandom.current().nextInt(0x10000, 0x1000000));
        Integer rank;
        String metadata, listenUrl;
        Properties listenInfo;
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

        /** The error that has ended this client. Nothing else ends it but close(). */
        public Options onError(Consumer<SQLException> handler) { onError = handler; return this; }

        /** Where handlers run: still one after the other, and a lost one before the lease is given back. */
        public Options executor(Executor executor) { this.executor = executor; return this; }

        private static String host() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return "localhost";
            }
        }
    }

    /** One leadership. */
    private static final class Lead {
        final long term;
        volatile long sent, deadline;    // of the last renewal, by now(); the deadline never moves back
        boolean yielding;
        String reason;                   // why it ended
        CompletableFuture<Void> told = CompletableFuture.completedFuture(null);    // the lost handler has returned

        Lead(long term, String reason) {
            this.term = term;
            this.reason = reason;
        }
    }

    /** What we know about our leadership, and who is told. Both change under this object's lock only. */
    private abstract static class Base implements Leadership {
        final Options o;
        volatile Lead lead;             // null: we do not lead
        volatile Lead over;             // has ended, and was not given back yet
        volatile SQLException fatal;
        volatile boolean closed;
        private volatile long changes;
        private final Queue<Runnable> events = new ArrayDeque<>();

        Base(Options options) { o = options; }

        long now() { return System.nanoTime(); }

        @Override public OptionalLong term() {
            Lead l = lead;
            return l != null && l.deadline - now() > 0 ? OptionalLong.of(l.term) : OptionalLong.empty();
        }

        @Override public boolean leads() { return term().isPresent(); }

        @Override public long changes() { return changes; }

        @Override public synchronized OptionalLong await(Duration timeout) throws SQLException, InterruptedException {
            long until = System.nanoTime() + timeout.toNanos(), left;
            while (!leads() && fatal == null && !closed && (left = until - System.nanoTime()) > 0)
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

        @Override public synchronized void resign() {
            if (lead != null)
                end(lead.yielding ? "yielded" : "resigned");
        }

        @Override public synchronized void close() {
            closed = true;
            end("closed");
            notifyAll();
        }

        /**
         * The server has granted a term or, if expected is a leadership, renewed that. False: nobody wants
         * it any more, or the answer came too late. What is over is never made valid again, because
         * its lost was reported, or is about to be.
         */
        synchronized boolean granted(Lead expected, long term, long sent, long deadline, boolean yield) {
            expire();
            if (closed || lead != expected || deadline - now() <= 0)
                return false;
            if (lead != null && lead.term != term) {
                end("failover");
                over = null;            // the term that replaces it is to be kept
            }
            boolean elected = lead == null;
            Lead l = elected ? new Lead(term, null) : lead;
            l.sent = sent;
            l.deadline = deadline;
            lead = l;
            if (elected) {
                changes++;
                event(() -> o.onElected.accept(term));
                notifyAll();
            }
            if (yield && !l.yielding) {
                l.yielding = true;
                if (o.onYield == null)
                    resign();
                else
                    event(() -> o.onYield.accept(term));
            }
            return true;
        }

        /** First the term goes, then the handler is told. Who gives the lease back waits for over.told. */
        synchronized void end(String reason) {
            Lead l = lead;
            if (l == null)
                return;
            lead = null;
            l.reason = reason;
            l.told = event(() -> o.onLost.accept(reason));
            over = l;
            notifyAll();
        }

        synchronized void expire() {
            if (lead != null && lead.deadline - now() <= 0)
                end("expired");
        }

        /** Calls a handler, in the caller's thread. An event that a handler causes comes after that handler. */
        synchronized CompletableFuture<Void> event(Runnable handler) {
            events.add(handler);
            if (events.size() == 1)     // else this is called by a handler, whose caller goes on here
                for (Runnable next; (next = events.peek()) != null; events.remove())
                    guarded(next);
            return CompletableFuture.completedFuture(null);
        }

        final void guarded(Runnable handler) {
            try {
                handler.run();
            } catch (Throwable t) {
                LOG.log(System.Logger.Level.ERROR, "a handler of election " + o.election + " failed", t);
            }
        }
    }

    /** Always leads and issues no term: for a laptop, or a single instance. The elected handler gets null. */
    public static final class SoleLeadership extends Base {
        private final boolean unfenced;

        /** unfenced: fenced() does nothing. Else it refuses, because there is no term to be fenced by. */
        public SoleLeadership(Options options, boolean unfenced) {
            super(options);
            this.unfenced = unfenced;
            event(() -> o.onElected.accept(null));
        }

        @Override public boolean leads() { return !closed; }

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
        public synchronized void elect(long term, Duration lease) {
            expire();
            last = term;
            granted(lead, term, clock, clock + lease.toNanos(), false);
        }

        public void lose(String reason) { end(reason); }

        public synchronized void askYield() {
            if (leads())
                granted(lead, lead.term, lead.sent, lead.deadline, true);
        }

        public synchronized void advance(Duration duration) {
            clock += duration.toNanos();
            expire();
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            term().orElseThrow(() -> new NotLeader(o.election));
        }
    }

    /** What the two kinds of candidates share. Only the engine, one thread, calls the server. */
    private abstract static class Engine extends Base {
        private static final long LOOK = 25 * MS;   // how soon an engine that watches its connection sees a resign()
        static final String STAND = "(?, ?, rank => ?::pg_catalog.int4, metadata => ?::pg_catalog.jsonb";
        final ExecutorService pool = Executors.newCachedThreadPool(this::daemon);
        private final Thread engine = daemon(this::run);
        private final boolean session;
        private CompletableFuture<Void> events = CompletableFuture.completedFuture(null);
        private CompletableFuture<Boolean> check = CompletableFuture.completedFuture(true);
        private volatile Thread handling;           // a handler
        private volatile Runnable cut;              // destroys the connection of the call under way
        private volatile boolean giving;            // something back, which close() must not interrupt
        private boolean woken;
        private long backOff = SECOND / 10, rest = now();    // until rest we do not stand, because we have resigned
        Connection own;                             // a session's: our leadership ends with it
        boolean standing;
        long sent;                                  // when the last call was sent

        Engine(Options options, boolean session) {
            super(options);
            this.session = session;
        }

        private Thread daemon(Runnable work) {
            Thread t = new Thread(work, "leader election " + o.election);
            t.setDaemon(true);
            return t;
        }

        final void start() { engine.start(); }

        /** Stands, for one turn. A lease_grant if that elected us, else null. */
        abstract Object[] ask() throws SQLException;

        abstract Object[] query(long timeout, String sql, Object... args) throws SQLException;

        /** A session is known by its connection; a detached candidate gives its term, or its name, as well. */
        private Object[] tell(String function, long timeout, Object who) throws SQLException {
            String sql = "SELECT * FROM leader_election." + function;
            return session ? query(timeout, sql + "(?)", o.election) : query(timeout, sql + "(?, ?)", o.election, who);
        }

        final Object[] renew(long term, long timeout) throws SQLException { return tell("renew", timeout, term); }

        private void run() {
            while (!closed && fatal == null)
                try {
                    turn();
                } catch (Throwable t) {
                    trouble(t);
                }
            giving = true;
            if (over != null)
                quietly(() -> giveBack(over));
            giving = true;
            quietly(this::withdraw);
            drop();
            if (fatal != null)
                event(() -> o.onError.accept(fatal)).join();
            pool.shutdown();
        }

        private void turn() throws SQLException {
            Lead l, ended;
            synchronized (this) {    // or a leadership that ends just now is neither: we would stand before giving back
                l = lead;
                ended = over;
            }
            if (ended != null)
                giveBack(ended);
            else if (l != null)
                keep(l);
            else if (rest - now() > 0)
                idle(rest);
            else if (healthy())
                stand();
            else {
                withdraw();
                idle(now() + SECOND);
            }
        }

        private void stand() throws SQLException {
            Object[] grant = ask();
            backOff = SECOND / 10;
            if (grant != null && !granted(null, grant))
                over = new Lead((Long) grant[0], "late");
        }

        private void keep(Lead l) throws SQLException {
            idle(l.sent + (l.deadline - l.sent) / 3);
            if (lead != l)
                return;
            boolean well = healthy();
            expire();    // if no timer has: a machine without memory starts no thread
            if (!well)
                end("unhealthy");
            if (lead != l)
                return;
            Object[] grant = renew(l.term, Math.min(o.callTimeout, l.deadline - now()));
            backOff = SECOND / 10;
            if (grant != null)
                granted(l, grant);
            else
                end("not renewed");
        }

        /**
         * A session's deadline is half of what remains: the server may end the session of a peer that went
         * silent, and elect another one, after 3 * floor(lease / 3 s) seconds, at least 3 s.
         */
        private boolean granted(Lead expected, Object[] grant) {
            long deadline = sent + (Long) grant[1] * (session ? MS / 2 : MS);
            boolean ok = granted(expected, (Long) grant[0], sent, deadline, (Boolean) grant[3]);
            if (ok)
                after(deadline - now(), this::expire);
            return ok;
        }

        /** Waits for the lost handler first. Only a resign() keeps a session's connection: what it knows is sure. */
        private void giveBack(Lead ended) throws SQLException {
            ended.told.join();
            boolean resigned = ended.reason.matches("resigned|yielded"), kept = false;
            giving = true;
            try {
                if (session ? resigned || ended.reason.matches("closed|unhealthy") : !ended.reason.equals("not renewed"))
                    tell(session ? "resign" : "release", o.callTimeout / 2, ended.term);
                kept = resigned;
            } finally {
                if (!kept)
                    drop();
                rest = now() + (resigned ? SECOND : 0);    // or a lone candidate would be elected without end
                giving = false;
                over = null;
            }
        }

        private void withdraw() throws SQLException {
            boolean leave = standing;
            standing = false;
            if (leave && session)
                tell("leave", o.callTimeout / 2, null);
            else if (leave)    // fails if a lease could not be given back; that runs out
                quietly(() -> tell("leave", o.callTimeout / 2, o.candidate));
        }

        private void drop() {
            if (own != null)
                abort(own);
            own = null;
            standing &= !session;
        }

        private void trouble(Throwable t) {
            SQLException e = new SQLException(t.toString(), t);
            for (Throwable cause = t; cause != null; cause = cause.getCause())
                if (cause instanceof SQLException)
                    e = (SQLException) cause;
            String state = String.valueOf(e.getSQLState());
            if (closed)
                return;
            if (state.matches("28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|08004")) {
                fatal = !state.matches("3F000|42883") ? e : new SQLException(
                    "the database lacks the extension (CREATE EXTENSION leader_election): " + e.getMessage(), state, e);
                end("error");
                wake(false);
                return;
            }
            if (own != null && state.matches("null|08...|57P..|25006|LE006")) {
                end(state.equals("LE006") ? "not renewed" : "connection lost");
                if (over == null)
                    drop();
            }
            Lead l = lead;
            if (over != null)
                return;
            LOG.log(System.Logger.Level.WARNING, "election {0}: {1} ({2})", o.election, e.getMessage(), state);
            long most = l == null ? 5 * SECOND : (l.deadline - l.sent) / 3;
            pause(now() + (long) (Math.min(backOff, most) * ThreadLocalRandom.current().nextDouble(0.5, 1)));
            backOff = Math.min(2 * backOff, 5 * SECOND);
        }

        /** Asks the application, on a thread of the pool. The answer of a check that hangs is waited for. */
        final boolean healthy() {
            if (o.healthCheck != null && check.isDone())
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

        private void after(long delay, Runnable task) {
            CompletableFuture.delayedExecutor(delay, TimeUnit.NANOSECONDS, pool).execute(task);
        }

        final synchronized void wake(boolean early) {
            woken |= early;
            notifyAll();
        }

        /** Waits, but not on after close(), nor when leadership has changed. */
        private synchronized void waitFor(long until, BooleanSupplier done) {
            Lead l = lead;
            try {
                while (!done.getAsBoolean() && (!closed || giving) && lead == l && until - now() > 0)
                    TimeUnit.NANOSECONDS.timedWait(this, until - now());
            } catch (InterruptedException e) {
                throw new IllegalStateException("the engine was interrupted", e);
            }
        }

        final void pause(long until) {
            waitFor(until, () -> woken);
            woken = false;
        }

        /** Waits, and watches a session's connection: its end is told at once. */
        private void idle(long until) throws SQLException {
            if (own == null)
                pause(until);
            Lead l = lead;
            for (long left; own != null && !closed && lead == l && (left = until - now()) > 0; )
                own.unwrap(PGConnection.class).getNotifications((int) (1 + Math.min(LOOK, left) / MS));
        }

        /** Opens a connection. One that comes too late, or after close(), goes back unused. */
        final Connection open(Callable<Connection> how, long timeout) throws SQLException {
            CompletableFuture<Connection> opening = async(how);
            waitFor(now() + timeout, opening::isDone);
            if (opening.isDone())
                return opening.join();
            opening.thenAccept(this::quietly);
            throw new SQLTimeoutException("no connection in time", "08001");
        }

        /**
         * One statement; returns its first row, or null. After the timeout its socket is closed: a call
         * that was only given up goes on at the server, and may win an election that nobody knows of.
         */
        final Object[] call(Connection c, long timeout, String sql, Object... args) throws SQLException {
            Runnable mine = () -> abort(c);
            try (PreparedStatement s = prepare(c, sql, args)) {
                cut = mine;
                if (closed && !giving)
                    throw new SQLException("closed", "08003");
                sent = now();
                after(timeout, () -> { if (cut == mine) abort(c); });
                ResultSet rows = s.execute() ? s.getResultSet() : null;
                Object[] row = rows == null || !rows.next() ? null : new Object[rows.getMetaData().getColumnCount()];
                for (int i = 0; row != null && i < row.length; i++)
                    row[i] = rows.getObject(i + 1);
                if (now() - sent >= timeout)
                    throw new SQLTimeoutException("the answer came too late", "08006");
                return row;
            } finally {
                cut = null;
            }
        }

        /** Closes the socket, on a thread of the pool: with TLS that may block. */
        private void abort(Connection c) { quietly(() -> c.abort(pool)); }

        private void quietly(AutoCloseable work) {
            try {
                work.close();
            } catch (Exception e) {
                LOG.log(System.Logger.Level.DEBUG, "election " + o.election, e);
            }
        }

        @Override synchronized CompletableFuture<Void> event(Runnable handler) {
            Runnable safe = () -> {
                handling = Thread.currentThread();
                guarded(handler);
                handling = null;
            };
            return events = events.thenComposeAsync(last -> CompletableFuture.runAsync(safe, o.executor), pool)
                .exceptionally(rejected -> { safe.run(); return null; });
        }

        /** Half the time is for the call under way (a follower's is of no use any more), half for giving back. */
        @Override public void close() {
            boolean leads = lead != null;
            super.close();
            Runnable call = cut;
            if (call != null && engine.isAlive())
                after(leads || !session ? o.callTimeout / 2 : 0, () -> { if (cut == call) call.run(); });
            try {
                if (Thread.currentThread() != handling)
                    engine.join(Math.max(1, o.callTimeout / MS));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Stands with a connection of its own, which is never a pool's. */
    public static final class SessionLeadership extends Engine {
        private final String url;
        private final Properties info = new Properties();

        /** The URL may name several hosts; standbys are passed over. */
        public SessionLeadership(String url, Properties info, Options options) throws SQLException {
            super(options, true);
            this.url = url;
            String seconds = String.valueOf((o.callTimeout + SECOND - 1) / SECOND);
            for (String each : new String[] { "connectTimeout=" + seconds, "socketTimeout=" + seconds,
                    "tcpKeepAlive=true", "targetServerType=primary", "hostRecheckSeconds=0" })
                this.info.setProperty(each.split("=")[0], each.split("=")[1]);
            info.stringPropertyNames().forEach(key -> this.info.setProperty(key, info.getProperty(key)));
            DriverManager.getDriver(url);    // throws if there is none: that would never get better
            start();
        }

        /** The driver's timeouts are for connecting, host by host. Then call() has a timer of its own. */
        private void connect() throws SQLException {
            long hosts = 1 + url.split("[?]")[0].chars().filter(ch -> ch == ',').count();
            own = open(() -> DriverManager.getConnection(url, info), 2 * hosts * o.callTimeout);
            own.setNetworkTimeout(pool, 0);
            query(o.callTimeout, "SELECT pg_catalog.set_config('statement_timeout', '0', false),"
                  + " pg_catalog.set_config('idle_session_timeout', '0', false)");
        }

        @Override Object[] query(long timeout, String sql, Object... args) throws SQLException {
            return call(own, timeout, sql, args);
        }

        /** Joins first, so that our place in line outlives each slice. */
        @Override Object[] ask() throws SQLException {
            if (own == null)
                connect();
            Object term = standing ? null : query(o.callTimeout,
                "SELECT leader_election.join" + STAND + ", auto_renew => ?)",
                o.election, o.candidate, o.rank, o.metadata, o.healthCheck == null)[0];
            standing = true;
            if (term == null)
                term = query(o.slice + o.callTimeout,
                    "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                    o.election, o.candidate, o.slice / MS + " ms")[0];
            if (term != null && !healthy())    // the application may have been well only when this slice began
                over = new Lead((Long) term, "unhealthy");
            return term == null || over != null ? null : renew((Long) term, o.callTimeout);
        }
    }

    /** Stands over connections of the application's pool, one for each call; also through a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        private final DataSource source;

        public DetachedLeadership(DataSource source, Options options) {
            super(options, false);
            this.source = source;
            if (o.listenUrl != null)
                pool.execute(this::listen);
            start();
        }

        @Override Object[] query(long timeout, String sql, Object... args) throws SQLException {
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
            Object[] grant = query(o.callTimeout, "SELECT * FROM leader_election.acquire" + STAND + ")",
                                   o.election, o.candidate, o.rank, o.metadata);
            if (grant == null)
                pause(now() + o.interval);
            return grant;
        }

        /** Wakes the engine when something happens in our election. A hint: without it the engine asks later. */
        private void listen() {
            String name = '"' + o.election.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
            while (!closed)
                try (Connection c = DriverManager.getConnection(o.listenUrl, o.listenInfo);
                     PreparedStatement s = prepare(c, "LISTEN leadership_changed")) {
                    c.setNetworkTimeout(pool, (int) (o.callTimeout / MS));
                    for (int i = 0; !closed; i++) {
                        if (i % 25 == 0)
                            s.execute();             // again every 5 s, to see that the path lives
                        PGNotification[] news = c.unwrap(PGConnection.class).getNotifications(200);
                        if (news != null && Arrays.stream(news).anyMatch(n -> n.getParameter().contains(name)))
                            wake(true);
                    }
                } catch (SQLException | RuntimeException e) {
                    LOG.log(System.Logger.Level.WARNING, "LISTEN: {0}", e.getMessage());
                    LockSupport.parkNanos(SECOND);
                }
        }
    }

    /** Not prepared on the server: a pooler lends another's session, and CREATE EXTENSION makes the old one stale. */
    private static PreparedStatement prepare(Connection c, String sql, Object... args) throws SQLException {
        PreparedStatement s = c.prepareStatement(sql);
        if (s.isWrapperFor(PGStatement.class))
            s.unwrap(PGStatement.class).setPrepareThreshold(0);
        for (int i = 0; i < args.length; i++)
            s.setObject(i + 1, args[i]);
        return s;
    }
}

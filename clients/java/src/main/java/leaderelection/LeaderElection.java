/*
 * LeaderElection.java
 *		Stand for election in a PostgreSQL database that has the extension
 *		leader_election. Copy this folder, or install it. It needs the driver
 *		org.postgresql (pgjdbc), and Java 11 or later.
 *
 * This file has what an application uses (Options, Leadership and its four
 * kinds), and the state of a leadership. Engine.java keeps a candidate
 * standing; Jdbc.java says where to connect, and makes calls; Handlers.java
 * calls the application's handlers.
 *
 * The states, as in docs/clients.md, and what has them change:
 *
 *		standing --extend(grant)--> leads --lose(reason)--> losing
 *		leads --extend(a new term)--> leads		losing --giveBack--> standing
 *		losing --connection lost: keepOrLose--> standing
 *		close() and fail() lead to losing, and from there to closed
 *
 * leads: there is a lease, whose deadline is not over. losing: handlers of lost
 * run, or a lease is owed. closed: ended is true. standing: none of these. The
 * method state() is for people, and has no word for losing: it says "closed", or
 * "failed", from close() or fail() on, and else what the last attempt came to.
 *
 * Invariants:
 *	- A term is never given out after its deadline, which counts from the
 *	  *sending* of the last renewal that was answered [stopped].
 *	- Each elected has exactly one lost. The lease is given back to the server
 *	  only when the handler of lost has returned: the next leader does not
 *	  start while ours still stops its work.
 *	- If this process dies, at whatever step, the server ends the leadership: a
 *	  session's with its connection, a detached one's with its lease.
 *
 * Threads, all of them daemons: each candidate has one, the engine, which
 * waits for what others do: calls, each with a time limit, the health check,
 * and handlers. A timer ends a leadership at its deadline even if the engine
 * hangs. A name in brackets is that of the fault in test/clients that a line
 * is for.
 *
 * The clock is System.nanoTime(), which stands still while the machine sleeps
 * (Java has none that goes on): after a suspend a term may be given out that
 * is over. Fence what must not be written twice.
 */
package leaderelection;

import static java.lang.System.Logger.Level.*;
import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static leaderelection.Jdbc.*;

import java.io.IOException;
import java.net.*;
import java.nio.file.*;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import javax.sql.DataSource;
import org.postgresql.*;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

public final class LeaderElection {
    static final System.Logger LOG = System.getLogger("leaderelection");

    private LeaderElection() { }

    // ------------------------------------------------- what an application uses

    /** Thrown by fenced() when we do not lead. The server's own refusals have the same SQLSTATE. */
    public static final class NotLeader extends SQLException {
        private static final long serialVersionUID = 1;

        NotLeader(String election) {
            super("not the leader of election \"" + election + "\"", "LE001");
        }
    }

    /**
     * The arguments. Handlers are called one after the other, perhaps before the constructor of
     * the Leadership has returned. What they may do is a table in docs/clients.md; in short: while
     * a handler of lost runs, nobody else is elected, and an exception of elected or lost ends the
     * client.
     */
    public static final class Options {
        public final String election;
        /** Each instance needs a name of its own. Default: see defaultName(). */
        public String candidate = defaultName(System.getenv(), ProcessHandle.current().pid());
        public Integer rank;
        /** JSON, which view status shows of the leader. A change counts from the next renewal on. */
        public volatile String metadata;
        /**
         * Is the working loop well? Look at what it has noted ("my last turn is younger than 5 s").
         * We stand, and the lease is renewed, only after true. It runs on a thread of the client's own.
         */
        public BooleanSupplier healthCheck;
        /** How long the server may take for a call. Then its socket is closed. */
        public Duration callTimeout = Duration.ofSeconds(5);
        /**
         * A session: how long campaign() waits. Default: 5 s, or less if the server would log that
         * as a slow statement.
         */
        public Duration slice;
        /** A session: "session" says that a pooler in session mode is in between. */
        public String pooler;
        /** A detached follower: how often it asks. */
        public Duration interval = Duration.ofSeconds(1);
        /** Detached: connects for LISTEN, so that a follower asks at once. Not to a pooler. */
        public Callable<Connection> listen;
        /** For so long servers may refuse us, without another word, before that ends this client. */
        public Duration refusalTimeout = Duration.ofSeconds(30);

        public Consumer<Long> onElected;
        /** The server asks us to go: finish, and resign(). Without a handler we resign at once. */
        public Consumer<Long> onYield;
        /**
         * The reason: resigned, closed, yielded, expired, connection lost, not renewed, unhealthy,
         * failover (elected follows, with a new term) or error.
         */
        public Consumer<String> onLost;
        /** The error that has ended this client. Nothing else ends it but close(). */
        public Consumer<SQLException> onError;
        /** Where handlers run. Default: daemon threads of the client's own. */
        public Executor executor = THREADS;
        /**
         * Where each leadership is logged when it begins and ends, and trouble. Without it trouble goes
         * to System.Logger "leaderelection", and leaderships are not logged. What it throws is ignored.
         */
        public System.Logger log;

        public Options(String election) { this.election = Objects.requireNonNull(election, "election"); }
    }

    /** What an application asks, whichever way it stands, from any thread. */
    public abstract static class Leadership implements AutoCloseable {
        final Options o;
        private final System.Logger log;
        final Handlers handlers;
        volatile Lease lease;                  // by which we lead; null: we do not
        volatile Lease owed;                   // lost, and to be given back
        volatile String attempt = "standing";  // what the last one came to: see state()
        /** Complete from close() or fail() on: nothing new is begun, and most waiting is cut short. */
        final CompletableFuture<Void> closing = new CompletableFuture<>();
        private volatile SQLException failure; // what has ended this client
        private boolean ended;                 // closed: all is given back
        private boolean asked;                 // the server has asked us to yield, in this term
        private volatile long changes;

        Leadership(Options options, Executor executor) {
            o = options;
            log = o.log == null ? LOG : o.log;
            handlers = new Handlers(executor, error -> log(WARNING, "handlers run elsewhere", error));
        }

        long now() { return System.nanoTime(); }

        /** The term in which we lead now, else empty. Never blocks, and does no I/O. */
        public OptionalLong term() {
            Lease l = lease;
            return l != null && l.deadline - now() > 0 ? OptionalLong.of(l.term) : OptionalLong.empty();
        }

        public boolean leads() { return term().isPresent(); }

        /** How often we were elected: a counter for your metrics; leads() is the gauge. */
        public long changes() { return changes; }

        /**
         * What our last attempt came to: "standing", "leads", "unhealthy", "unreachable: TEXT",
         * "refused: SQLSTATE TEXT", "closed" or "failed: SQLSTATE TEXT". Never blocks.
         */
        public String state() {
            SQLException error = failure;
            if (error != null)
                return "failed: " + error.getSQLState() + " " + firstLine(error);
            return isClosing() ? "closed" : leads() ? "leads" : attempt;
        }

        /**
         * Waits until we lead. Returns the term, or empty after the timeout, after close(), if we
         * lead without a term, or if the term ends just then. Throws the error that has ended this
         * client, if one has.
         */
        public synchronized OptionalLong await(Duration timeout)
                throws SQLException, InterruptedException {
            long end = System.nanoTime() + nanos(timeout);
            while (!leads() && !isOver()) {
                long left = end - System.nanoTime();
                if (left <= 0)
                    return OptionalLong.empty();
                NANOSECONDS.timedWait(this, left);
            }
            if (failure != null && isOver())
                throw new SQLException(failure.getMessage(), failure.getSQLState(), failure);
            return term();
        }

        /**
         * Has await() nothing to wait for any more? When this client fails, not before it has given its
         * lease back: its program may end when await() throws.
         */
        private boolean isOver() { return failure == null ? isClosing() : ended; }

        final boolean isClosing() { return closing.isDone(); }

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

        /** Gives up now. We stand again when the handler of lost has returned, after a second. */
        public synchronized void resign() { lose(asked ? "yielded" : "resigned"); }

        /**
         * Gives up, withdraws, ends threads and connections. Waits no longer than callTimeout, and
         * in a handler not at all.
         */
        @Override public void close() { end("closed"); }

        /**
         * The server has granted a term (held is null), or renewed that of held. False: we do not lead
         * by it, for we are closing, held was lost meanwhile, or the answer came too late. What
         * is over is never made valid again, because its lost was told [stopped, lost answer].
         */
        final synchronized boolean extend(Lease held, Lease granted) {
            expire();
            if (isClosing() || lease != held || granted.deadline - now() <= 0)
                return false;
            if (held != null && held.term != granted.term)
                lose("failover");
            boolean elected = lease == null;
            if (elected)
                logInfo("elected leader", granted, "");
            lease = granted;
            if (elected) {
                changes++;
                asked = false;
                tell("elected", o.onElected, granted.term);
                notifyAll();
            }
            if (granted.yielding && !asked) {    // once in a term, also if that was withdrawn meanwhile
                asked = true;
                if (o.onYield == null)
                    resign();    // at once, also if the handler of elected has not returned
                else
                    handle("yield", () -> o.onYield.accept(granted.term), error -> resignFrom(granted.term));
            }
            return true;
        }

        private synchronized void resignFrom(long term) {
            if (lease != null && lease.term == term)
                resign();
        }

        /**
         * Ends our leadership: the term goes first, then the handler is told. After a failover the
         * old term is nothing that could be given back, also if it has expired just now.
         */
        synchronized void lose(String reason) {
            if (lease == null)
                return;
            String why = leads() ? reason : "expired";
            owed = reason.equals("failover") ? null : lease;
            Lease lost = lease;
            lease = null;
            tell("lost", o.onLost, why);
            notifyAll();
            logInfo("lost leadership", lost, ": " + why);    // last: it may take its time
        }

        /**
         * Logs what has begun or ended. The caller holds the lock: so the lines are in order. (But a
         * handler of lost that runs in this thread may elect a FakeLeadership: that line is first.)
         */
        private void logInfo(String what, Lease of, String more) {
            if (o.log != null)
                log(INFO, what + " of \"" + o.election + "\"" + (of.term == 0 ? "" : ", term " + of.term) + more, null);
        }

        /** Writes each line of ours. What the application's log throws must not stop us half-way. */
        final void log(System.Logger.Level level, String text, Throwable error) {
            try {
                log.log(level, text, error);
            } catch (Throwable ofTheLog) {
                // there is no other place to say it
            }
        }

        final synchronized void expire() {
            if (lease != null && !leads())
                lose("expired");
        }

        /** Ends this client with an error: await() throws it, and onError is told, in the end. */
        final void fail(SQLException error) {
            synchronized (this) {
                if (failure == null && !ended) {
                    log(ERROR, "election " + o.election + ": this client ends: " + firstLine(error), null);
                    failure = error;
                }
            }
            end("error");
        }

        private void end(String reason) {
            synchronized (this) {
                lose(reason);
                closing.complete(null);    // after lose(): else the engine might see this first, and end
                notifyAll();
            }
            whenClosing();
        }

        /** Tells of elected or lost. An error of these ends us: nobody knows whether the work runs. */
        final <T> void tell(String event, Consumer<T> handler, T what) {
            if (handler != null)
                handle(event, () -> handler.accept(what), error ->
                    fail(new SQLException("the handler of " + event + " failed: " + error, "38000", error)));
        }

        /** Calls a handler when those before it have returned. If it fails, logs that and calls afterError. */
        private void handle(String event, Runnable handler, Consumer<Throwable> afterError) {
            handlers.tell(() -> {
                try {
                    handler.run();
                } catch (Throwable t) {
                    log(ERROR, "the handler of " + event + " of election " + o.election + " failed", t);
                    afterError.accept(t);
                }
            });
        }

        /** close() or fail() was called. Without an engine nothing is at a server, and this is the end. */
        void whenClosing() { finish(); }

        /** Nothing of ours is left at the server: we are closed, and onError is told if we have failed. */
        final synchronized void finish() {
            if (!ended && failure != null && o.onError != null)
                handle("error", () -> o.onError.accept(failure), error -> { });
            ended = true;
            notifyAll();
        }
    }

    /** Always leads, without a term: for a laptop, or a single instance. Elected gets null. */
    public static final class SoleLeadership extends Leadership {
        private final boolean unfenced;

        /** unfenced: fenced() does nothing. Else it refuses: there is no term to be fenced by. */
        public SoleLeadership(Options options, boolean unfenced) {
            super(options, options.executor);
            this.unfenced = unfenced;
            elect();
        }

        private synchronized void elect() {
            if (!leads())
                return;
            Lease granted = new Lease(0, 0, false);
            super.logInfo("elected leader", granted, "");
            lease = granted;
            super.changes++;
            tell("elected", o.onElected, null);
        }

        @Override public OptionalLong term() { return OptionalLong.empty(); }

        @Override public boolean leads() { return !isClosing(); }

        /** Is elected again when the handler of lost has returned: there is nobody else. */
        @Override public synchronized void resign() {
            if (lease == null)
                return;    // we are in that handler, or closed
            super.resign();
            handlers.tell(this::elect);
        }

        @Override public void close() {
            super.close();
            if (!handlers.areInside())
                handlers.await(nanos(o.callTimeout));
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            if (!leads())
                throw new NotLeader(o.election);
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

        /** Grants a term. The one that we have: a renewal. Another one: lost("failover"), then elected. */
        public synchronized void elect(long term, Duration lasts) {
            last = term;
            extend(lease, new Lease(term, clock + nanos(lasts), false));
        }

        @Override public void lose(String reason) { super.lose(reason); }

        public synchronized void askYield() {
            if (leads())
                extend(lease, new Lease(lease.term, lease.deadline, true));
        }

        public void advance(Duration duration) {
            clock += nanos(duration);
            expire();
        }

        @Override public void fenced(Connection transaction) throws SQLException {
            term().orElseThrow(() -> new NotLeader(o.election));
        }
    }

    /** Stands with a connection of its own, which is never a pool's. */
    public static final class SessionLeadership extends Engine {
        /**
         * Half of what remains is ours: the server ends the session of a peer that went silent when
         * that is over, and elects another [leader's network cut].
         */
        private static final int SHARE = 2;
        private final Properties info;
        private final String url;
        private long slice;    // in ms

        /**
         * The URL may name several hosts, or a service (?service=app): each address of each host is
         * tried in turn, and standbys are passed over.
         */
        public SessionLeadership(String url, Properties info, Options options) {
            super(options, SHARE, SECOND / 10);
            Properties known = parse(url, info);
            this.url = url + (url.contains("?") ? "&" : "?");
            this.info = withDefaults(info == null ? new Properties() : info, known, callTimeout);
            start(new Addresses(() -> resolve(known)));
        }

        /**
         * The first statement sets nothing: it asks whether this is a primary, and a session of our
         * own. Behind a pooler the process that answers is not the one that the driver was told of
         * when it logged in [pooler].
         */
        @Override Connection open(Address at) throws Exception {
            Connection c = openInTime(3 * callTimeout, () -> DriverManager.getConnection(
                url + at.parameters(), at.properties(info)));
            try {
                c.setNetworkTimeout(THREADS, 0);
                Object[] server = within(callTimeout, () -> query(c, "SELECT pg_catalog.pg_is_in_recovery(), "
                    + "pg_catalog.pg_backend_pid(), " + SETTING + "'log_min_duration_statement'), "
                    + SETTING + "'statement_timeout')"));
                if ((Boolean) server[0])
                    throw new SQLException("this is a standby", "25006");
                boolean direct = !"session".equals(o.pooler);
                if (direct && (Integer) server[1] != c.unwrap(PGConnection.class).getBackendPID())
                    throw new NoSession();
                if (direct)
                    within(callTimeout, () -> query(c, SET_NO_TIME_LIMITS));
                chooseSlice((Long) server[2], direct ? 0 : (Long) server[3]);
                return c;
            } catch (Throwable t) {
                disconnect(c, t);
                throw t;
            }
        }

        private static final String SETTING =
            "(SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings WHERE name = ";
        private static final String SET_NO_TIME_LIMITS =
            "SELECT pg_catalog.count(pg_catalog.set_config(name, '0', false)) FROM pg_catalog.pg_settings "
            + "WHERE name IN ('statement_timeout', 'idle_session_timeout', 'transaction_timeout')";

        /** A campaign is shorter than what the server logs as slow, or cancels, in ms [slices]. */
        private void chooseSlice(long loggedFrom, long timeout) {
            slice = o.slice == null ? 5000 : nanos(o.slice) / MS;
            if (o.slice != null)
                return;
            if (loggedFrom >= 250)
                slice = Math.min(slice, loggedFrom * 8 / 10);
            else if (loggedFrom > 0)
                logOnce("slices", WARNING, "log_min_duration_statement is so low that the server's log will "
                    + "have each campaign; options.slice says how long they are");
            if (timeout > 0)
                slice = Math.max(1, Math.min(slice, timeout * 8 / 10));
        }

        /** A session hears at once that its connection has ended [backend terminated]. */
        @Override void watch(Lease held) throws Exception {
            if (connection == null)
                rest(held, askAt - now());
            else    // for so many ms: a read cannot be woken, and a leader must soon hear of resign()
                connection.unwrap(PGConnection.class).getNotifications(held == null ? 20 : 5);
        }

        /** Joins first, so that our place in line outlives each slice. */
        @Override Lease stand() throws Exception {
            if (!known)
                call("SELECT leader_election.join(?, ?, rank => ?, "
                    + "metadata => ?::pg_catalog.jsonb, auto_renew => false)",
                    o.election, o.candidate, o.rank, o.metadata);
            known = true;
            reportAnswer();
            campaign();
            return renew(null);    // null, if we were not elected
        }

        /**
         * Waits for its turn at the server, a slice long. close() cuts that short by the driver's
         * cancel and hears the answer: so the session can leave, and end in peace [slices: SIGTERM].
         */
        private void campaign() throws Exception {
            Connection c = connection;
            if (isClosing())
                return;
            CompletableFuture<Object[]> answer = async(() -> query(c,
                "CALL leader_election.campaign(?, ?, timeout => ?::pg_catalog.interval)",
                o.election, o.candidate, slice + " ms"));
            waitOrClose(answer, slice * MS + callTimeout);
            long end = now() + callTimeout;
            while (isClosing() && !answer.isDone() && end - now() > 0) {    // a cancel may come too early
                within(callTimeout, () -> { c.unwrap(PGConnection.class).cancelQuery(); return null; });
                answer.handle((row, e) -> row).completeOnTimeout(null, 100 * MS, NANOSECONDS).join();
            }
            try {
                answerOf(answer, 0);
            } catch (ExecutionException e) {
                if (!isClosing())
                    throw e;    // else that is the cancel
            }
        }

        @Override Lease renew(Lease held) throws Exception {
            return grant(held, RENEW, o.election, null, o.metadata);
        }

        @Override void withdraw(Lease owed) throws Exception {
            call("SELECT leader_election.leave(?)", o.election);
        }

        /**
         * After an error, also one that the server has answered, a session stands anew, over a new
         * connection: the server ends what belonged to the old one. (On that, campaign() would stand
         * with defaults if join() had failed.) But while we lead, 55P03 (busy), 57014 (cancelled)
         * and 40001 (to be repeated: the portable edition, where transactions are serializable by default)
         * say that nothing was done: we keep the lease, and try again until our deadline.
         */
        @Override void keepOrLose(SQLException e) {
            if (lease != null && e.getSQLState().matches("55P03|57014|40001"))
                return;
            lose("connection lost");
            handlers.await();    // first: the server elects another when our connection ends
            owed = null;
            known = false;
            disconnect(connection, e);
            connection = null;
        }

        @Override void endTurn() { }

        @Override void hangUp() {
            if (connection != null)
                disconnect(connection, null).copy().completeOnTimeout(null, callTimeout, NANOSECONDS).join();
        }
    }

    /** Stands over connections of the application's pool; also through a transaction pooler. */
    public static final class DetachedLeadership extends Engine {
        private static final long LISTEN_AGAIN = 5 * SECOND;
        private final DataSource pool;
        private Connection listener;    // null: we do not listen
        private long listenAt = now();  // when to try that (again)
        private final String nameInJson = '"' + o.election.replaceAll("[\"\\\\]", "\\\\$0") + '"';
        /** The same until one is granted: so the next acquire() tells of a lost grant [lost answer]. */
        private UUID request = UUID.randomUUID();

        /** Connections that the pool lends within a transaction are refused: somebody else may use them. */
        public DetachedLeadership(DataSource pool, Options options) {
            super(options, 1, Math.max(nanos(options.interval), SECOND / 10));
            this.pool = pool;
            Address itself = new Address("the pool", "", null);
            start(new Addresses(() -> List.of(itself)));
        }

        /**
         * Borrows a connection. A pool that has none says why, but only after a while (HikariCP: half
         * a minute). A candidate that does not lead waits to hear it, but not for ever: the connection
         * may have been lost while it was made [forgotten meanwhile].
         */
        @Override Connection open(Address at) throws Exception {
            Connection c = openInTime(lease == null ? 7 * callTimeout : callTimeout,
                pool::getConnection);
            try {
                if (!c.getAutoCommit() && c.unwrap(BaseConnection.class).getTransactionState() != TransactionState.IDLE)
                    throw new SQLException("this connection is in a transaction, which is not ours", "25001");
                c.setAutoCommit(true);    // would commit that. Pools set it back
                return c;
            } catch (Throwable t) {    // it broke while idle: the pool wants it back all the same
                disconnect(c, t);
                throw t;
            }
        }

        /**
         * A follower listens. A candidate that has just resigned does not: it would hear of that, and
         * be the first to ask. Nor does one that is not well, nor a leader, since resign() cannot wake
         * a driver that reads. Who does not listen has no connection for it: what nobody reads would
         * fill the server's queue in the end.
         */
        @Override void watch(Lease held) throws Exception {
            if (!known)
                hangUp();
            if (listener == null) {
                rest(held, askAt - now());
                return;
            }
            try {
                for (PGNotification n : listener.unwrap(PGConnection.class).getNotifications(20))
                    if (n.getParameter().contains(nameInJson))
                        askSoon();
            } catch (SQLException e) {
                stopListening(e);
            }
        }

        @Override Lease stand() throws Exception {
            known = true;    // before we ask: the answer may be lost
            Lease granted = grant(null, "SELECT term, remaining_ms, yielding FROM leader_election.acquire("
                + "?, ?, rank => ?, metadata => ?::pg_catalog.jsonb, request => ?)",
                o.election, o.candidate, o.rank, o.metadata, request);
            if (granted != null) {
                request = UUID.randomUUID();
                hangUp();
            } else
                listen();
            return granted;
        }

        /** Listens, if it is time to try that. Without it a follower learns of a vacancy when it asks next. */
        private void listen() throws Exception {
            if (o.listen == null || listener != null || listenAt - now() > 0)
                return;
            // Not all at the same time: their connections may have ended together.
            listenAt = now() + (long) (LISTEN_AGAIN * ThreadLocalRandom.current().nextDouble(0.5, 1));
            try {
                Connection c = listener = openInTime(callTimeout, o.listen);
                within(callTimeout, () -> query(c, "LISTEN leadership_changed"));
            } catch (Exception e) {
                stopListening(e);
            }
        }

        private void stopListening(Exception e) {
            logOnce("listen", WARNING, "cannot listen: " + firstLine(sqlCause(e)));
            disconnect(listener, e);
            listener = null;
        }

        @Override Lease renew(Lease held) throws Exception {
            return grant(held, RENEW, o.election, held.term, o.metadata);
        }

        @Override void withdraw(Lease owed) throws Exception {
            if (owed != null)
                call("SELECT leader_election.release(?, ?)", o.election, owed.term);
            call("SELECT leader_election.leave(?, ?)", o.election, o.candidate);
        }

        /** Its term lasts until the deadline, whatever became of a connection. */
        @Override void keepOrLose(SQLException e) {
            expire();
            disconnect(connection, e);
            connection = null;
        }

        /** The pool may say something to the server before it takes the connection back. */
        @Override void endTurn() throws Exception {
            Connection c = connection;
            if (c != null)
                within(callTimeout, () -> { c.close(); return null; });
            connection = null;
        }

        @Override void hangUp() {
            disconnect(listener, null);
            listener = null;
        }
    }

    // ---------------------------------------------------------------- small things

    /** A term of ours, and until when, by now(). */
    static final class Lease {
        final long term, deadline, renewAt;
        final boolean yielding;    // the server asks us to go

        /** What remains at the server, divided by share, is ours. When a third of that is over, we renew. */
        Lease(Object[] row, long sent, int share) {
            long lasts = (Long) row[1] * MS / share;
            term = (Long) row[0];
            deadline = sent + lasts;
            renewAt = sent + lasts / 3;
            yielding = (Boolean) row[2];
        }

        /** For leaderships without an engine: nobody reads renewAt. */
        Lease(long term, long deadline, boolean yielding) {
            this.term = term;
            this.deadline = deadline;
            this.renewAt = deadline;
            this.yielding = yielding;
        }
    }

    /** A pooler has answered where a session was needed. */
    static final class NoSession extends SQLException {
        private static final long serialVersionUID = 1;

        NoSession() {
            super("this is a pooler: use DetachedLeadership, or say options.pooler = \"session\" "
                + "if it is in session mode", "0A000");
        }
    }

    /** HOST-PID-XXXX. In Kubernetes the pod's name, and -PID if this is not its first process. */
    static String defaultName(Map<String, String> env, long pid) {
        String host = env.getOrDefault("HOSTNAME", ""), rest;
        if (env.containsKey("KUBERNETES_SERVICE_HOST")) {
            host = env.getOrDefault("POD_NAME", host);
            rest = pid == 1 ? "" : "-" + pid;
        } else {
            host = hostName(host);
            rest = String.format("-%d-%04x", pid, ThreadLocalRandom.current().nextInt(0x10000));
        }
        while ((host + rest).getBytes(UTF_8).length > 200)
            host = host.substring(0, host.length() - 1);
        return host + rest;
    }

    /** Of Linux, if we can: Java would ask DNS, which may take long, or fail. */
    private static String hostName(String otherwise) {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/hostname")).trim();
        } catch (IOException noLinux) {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return otherwise;
            }
        }
    }
}

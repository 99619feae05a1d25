/*
 * EngineTest.java
 *		What the engine does at moments that a real server does not offer when a
 *		test wants them: the server is a function of this file, behind a JDBC
 *		driver of proxies. A plain main(), as FakeLeadershipTest.
 */
package leaderelection;

import java.lang.ref.WeakReference;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.logging.LogManager;
import javax.sql.DataSource;
import leaderelection.LeaderElection.DetachedLeadership;
import leaderelection.LeaderElection.Leadership;
import leaderelection.LeaderElection.Options;
import leaderelection.LeaderElection.SessionLeadership;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;

public class EngineTest {
    private static final String URL = "jdbc:postgresql://nowhere/app";
    private static final int PID = 42;
    private static volatile Server server;
    private static final DataSource POOL = proxy(DataSource.class, (proxy, method, args) -> server.connection());
    private static int wrong;

    public static void main(String[] args) throws Exception {
        LogManager.getLogManager().reset();    // the outcome is to be read without the log
        for (Driver real : Collections.list(DriverManager.getDrivers()))
            DriverManager.deregisterDriver(real);
        DriverManager.registerDriver(proxy(Driver.class, (proxy, method, given) -> server.connection()));
        reasons();
        hints();
        slices();
        cancels();
        listens();
        nulls();
        outage();
        lostFirst();
        lookups();
        outages();
        standbys();
        addresses();
        forever();
        defects();
        leftovers();
        throwingLog();
        silent();
        givesBack();
        yields();
        forgotten();
        didNothing();
        System.out.println(wrong == 0 ? "ok" : wrong + " wrong");
        System.exit(wrong == 0 ? 0 : 1);
    }

    /** Only a server that says that the term is over does not renew; after an error nobody knows. */
    private static void reasons() throws Exception {
        for (String state : List.of("08006", "57P01", "42501", "LE006")) {
            Queue<String> told = new ConcurrentLinkedQueue<>();
            Options o = options();
            o.onLost = told::add;
            server = new Server() {
                private boolean granted;

                @Override Object[] answer(String sql, List<Object> args) throws Exception {
                    if (!sql.contains("renew("))
                        return super.answer(sql, args);
                    if (granted)
                        throw new SQLException("no", state);
                    granted = true;
                    return new Object[] {7L, 6000L, false};
                }
            };
            try (Leadership session = new SessionLeadership(URL, new Properties(), o)) {
                until("lost after " + state, () -> !told.isEmpty());
                same("reason after " + state, told.peek(), "connection lost");
            }
        }
    }

    /** What the schema or a function is missing for is said beside it. */
    private static void hints() throws Exception {
        for (String state : List.of("3F000", "42883", "42501")) {
            server = new Server() {
                @Override Object[] answer(String sql, List<Object> args) throws Exception {
                    if (sql.contains("leader_election."))
                        throw new SQLException("no", state);
                    return super.answer(sql, args);
                }
            };
            try (Leadership session = new SessionLeadership(URL, new Properties(), options())) {
                until("refused " + state, () -> session.state().startsWith("refused: " + state + " no"));
                same("hint at " + state, session.state().endsWith(" (CREATE EXTENSION leader_election, or portable.sql?)"),
                    !state.equals("42501"));
            }
        }
    }

    /** In ms: the log's limit, the statement's, and how long a campaign waits. */
    private static void slices() throws Exception {
        for (long[] c : new long[][] {{-1, 0, 5000}, {1000, 0, 800}, {100, 0, 5000}, {-1, 1000, 800},
            {-1, 100, 80}, {1000, 100, 80}, {100, 1000, 800}, {-1, 1, 1}}) {
            Queue<Object> slices = new ConcurrentLinkedQueue<>();
            Options o = options();
            o.slice = null;
            o.pooler = "session";
            server = new Server() {
                @Override Object[] answer(String sql, List<Object> args) throws Exception {
                    if (sql.contains("pg_backend_pid"))
                        return new Object[] {false, PID, c[0], c[1]};
                    if (sql.startsWith("CALL"))
                        slices.add(args.get(2));
                    return super.answer(sql, args);
                }
            };
            try (Leadership session = new SessionLeadership(URL, new Properties(), o)) {
                until("a campaign", () -> !slices.isEmpty());
                same("slice with log " + c[0] + ", timeout " + c[1], slices.peek(), c[2] + " ms");
            }
        }
    }

    /** A cancel that comes before the CALL ends nothing: then the CALL has to be cancelled again. */
    private static void cancels() throws Exception {
        CountDownLatch called = new CountDownLatch(1), firstCancel = new CountDownLatch(1);
        Semaphore cancelled = new Semaphore(0);
        Queue<String> said = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.callTimeout = Duration.ofSeconds(20);
        o.slice = Duration.ofDays(1);
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (sql.contains("leave("))
                    said.add("leave");
                if (!sql.startsWith("CALL"))
                    return super.answer(sql, args);
                called.countDown();
                firstCancel.await();
                cancelled.drainPermits();
                cancelled.acquire();
                throw new SQLException("canceled", "57014");
            }

            @Override void cancel() {
                cancelled.release();
                firstCancel.countDown();
            }

            @Override void ended(String how) { said.add(how); }
        };
        Leadership session = new SessionLeadership(URL, new Properties(), o);
        same("in a campaign", called.await(60, TimeUnit.SECONDS), true);
        long started = System.nanoTime();
        session.close();
        same("close() waits", System.nanoTime() - started < o.callTimeout.toNanos(), true);
        same("the end", said.toString(), "[leave, close]");
    }

    /** However often notifications wake a follower, it asks no more than ten times a second. */
    private static void listens() throws Exception {
        Queue<Long> asked = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.interval = Duration.ofDays(1);
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) {
                if (sql.contains("acquire("))
                    asked.add(System.nanoTime());
                return null;
            }

            @Override String notification() { return "{\"election\": \"test\", \"event\": \"vacated\"}"; }
        };
        o.listen = () -> server.connection();
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("asked", () -> asked.size() >= 15);
            Long[] at = asked.toArray(new Long[0]);
            same("15 questions in " + (at[14] - at[0]) / 1_000_000 + " ms", at[14] - at[0] >= 1_300_000_000L, true);
        }
        asked.clear();
        o = options();
        o.interval = Duration.ofDays(1);
        Server others = new Server() {
            @Override String notification() { return "{\"election\": \"test-2\", \"event\": \"vacated\"}"; }
        };
        o.listen = others::connection;
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("asked", () -> !asked.isEmpty());
            Thread.sleep(300);    // any time will do: nothing is to happen
            same("other elections' notifications", asked.size(), 1);
        }

        // A leader reads no notifications: those of others would fill its socket, then the server's queue.
        AtomicBoolean leads = new AtomicBoolean();
        Queue<String> ends = new ConcurrentLinkedQueue<>();
        o = options();
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) {
                return sql.contains("acquire(") && leads.get() || sql.contains("renew(") ? new Object[] {7L, 10_000L, false} : null;
            }
        };
        AtomicInteger listeners = new AtomicInteger();
        o.interval = Duration.ofMillis(100);
        Server heard = new Server() {
            @Override void ended(String how) { ends.add(how); }
        };
        o.listen = () -> {
            listeners.incrementAndGet();
            return heard.connection();
        };
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("listens", () -> listeners.get() == 1);
            same("a follower's connection", ends.size(), 0);
            leads.set(true);
            until("leads", detached::leads);
            until("a leader listens no more", () -> !ends.isEmpty());
        }

        // Nor does a follower that is not well.
        AtomicBoolean well = new AtomicBoolean(true);
        leads.set(false);
        ends.clear();
        listeners.set(0);
        o.healthCheck = well::get;
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("listens, while it is well", () -> listeners.get() == 1);
            well.set(false);
            until("listens no more, when it is not", () -> !ends.isEmpty());
        }
    }

    /**
     * A leader whose pool fails tries often: the outage may end just before its deadline. (With a
     * follower's back-off 1.6 s at least go by after the sixth try.)
     */
    private static void outage() throws Exception {
        Queue<String> told = new ConcurrentLinkedQueue<>();
        List<Long> tries = Collections.synchronizedList(new ArrayList<>());
        Options o = options();
        o.onLost = told::add;
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (sql.contains("acquire("))
                    return new Object[] {7L, 10_000L, false};
                if (!sql.contains("renew("))
                    return super.answer(sql, args);
                tries.add(System.nanoTime());
                throw new SQLException("no", "08006");
            }
        };
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("lost", () -> !told.isEmpty());
            same("reason", told.peek(), "expired");
            long shortest = Long.MAX_VALUE;
            for (int i = 6; i < tries.size(); i++)
                shortest = Math.min(shortest, tries.get(i) - tries.get(i - 1));
            same("tries often to the end, " + tries.size() + " times", shortest < 1_200_000_000L, true);
        }
    }

    /**
     * The lease is given back when the handler of lost has returned, and at no moment before. (The
     * engine looks whether it is lost all the time here, on one thread, and loses it on another: what
     * may come in between comes within a few hundred times.)
     */
    private static void lostFirst() throws Exception {
        int early = 0;
        for (int i = 0; i < 1000; i++) {
            boolean[] stopped = {false};
            CompletableFuture<Boolean> left = new CompletableFuture<>();
            Options o = options();
            o.onLost = reason -> {
                synchronized (stopped) {
                    stopped[0] = true;
                }
            };
            server = new Server() {
                @Override Object[] answer(String sql, List<Object> args) throws Exception {
                    if (sql.contains("renew("))
                        return new Object[] {7L, 60_000L, false};
                    if (sql.contains("leave("))
                        synchronized (stopped) {
                            left.complete(stopped[0]);
                        }
                    return super.answer(sql, args);
                }

                @Override String notification() { return ""; }    // its driver does not wait
            };
            Leadership session = new SessionLeadership(URL, new Properties(), o);
            session.await(Duration.ofSeconds(60));
            session.resign();
            early += left.get(60, TimeUnit.SECONDS) ? 0 : 1;
            session.close();
        }
        same("given back before the work has stopped", early, 0);
    }

    /** A lookup that fails is another word, as an address that is not reached. */
    private static void lookups() throws Exception {
        AtomicBoolean fails = new AtomicBoolean();
        AtomicInteger failed = new AtomicInteger(), refused = new AtomicInteger();
        Options o = options();
        o.refusalTimeout = Duration.ofMillis(500);
        class Refused extends Broken {
            Refused(Options options) { super(options); }

            @Override Connection open(Jdbc.Address at) throws Exception {
                fails.set(true);
                refused.incrementAndGet();
                throw new SQLException("no", "28P01");
            }
        }
        Jdbc.Address one = new Jdbc.Address("nowhere", "5432", null);
        try (Engine engine = new Refused(o)) {
            engine.start(new Jdbc.Addresses(() -> {
                if (!fails.get())
                    return List.of(one);
                failed.incrementAndGet();
                throw new UnknownHostException("told to fail");
            }));
            until("refused, then no address for longer than refusalTimeout",
                () -> failed.get() >= 5 || engine.state().startsWith("failed"));
            same("unreachable", engine.state().startsWith("unreachable: "), true);
            fails.set(false);
            until("refused again", () -> refused.get() >= 2);
            fails.set(false);
            until("has not ended by the first refusal",
                () -> refused.get() >= 3 || engine.state().startsWith("failed"));
            same("refused", refused.get() >= 3, true);
        }
    }

    /** A primary refuses for as long as there is no other word of its address: an outage is one. */
    private static void outages() throws Exception {
        Options o = options();
        o.refusalTimeout = Duration.ofMillis(500);
        server = new Server();
        for (String how : List.of("is down", "has no address", "breaks")) {
            AtomicBoolean out = new AtomicBoolean();
            AtomicInteger tried = new AtomicInteger(), refused = new AtomicInteger();
            class Refusing extends Broken {
                Refusing(Options options) { super(options); }

                private void fail(String when) throws SQLException {
                    if (!out.get() || !how.equals(when))
                        return;
                    tried.incrementAndGet();
                    throw new SQLException("no", "08006");
                }

                @Override Connection open(Jdbc.Address at) throws Exception {
                    fail("is down");
                    return server.connection();
                }

                @Override LeaderElection.Lease stand() throws Exception {
                    fail("breaks");
                    if (refused.incrementAndGet() == 1)
                        out.set(true);
                    throw new SQLException("no", "22023");
                }

                @Override void keepOrLose(SQLException e) { connection = null; }
            }
            try (Refusing engine = new Refusing(o)) {
                engine.start(new Jdbc.Addresses(() -> {
                    engine.fail("has no address");
                    return List.of(new Jdbc.Address("db", "5432", null));
                }));
                until("refused, then " + how + " for longer than refusalTimeout", () -> tried.get() >= 5);
                out.set(false);
                until("refused again", () -> refused.get() >= 3 || engine.state().startsWith("failed"));
                same("goes on after it " + how, refused.get() >= 3, true);
            }
        }
    }

    /** But another address that is down is no word of the primary, nor is that of a standby. */
    private static void standbys() throws Exception {
        Options o = options();
        o.refusalTimeout = Duration.ofMillis(500);
        server = new Server();
        class Refusing extends Broken {
            private int opened;

            Refusing(Options options) { super(options); }

            @Override Connection open(Jdbc.Address at) throws Exception {
                if (at.toString().startsWith("other"))
                    throw new SQLException("no", "08001");
                if (++opened % 2 == 0)
                    throw new SQLException("this is a standby", "25006");
                return server.connection();
            }

            @Override LeaderElection.Lease stand() throws Exception { throw new SQLException("no", "22023"); }

            @Override void keepOrLose(SQLException e) { connection = null; }
        }
        try (Refusing engine = new Refusing(o)) {
            engine.start(new Jdbc.Addresses(() -> List.of(new Jdbc.Address("other", "5432", null),
                new Jdbc.Address("db", "5432", null))));
            until("ends by the primary's refusal", () -> engine.state().startsWith("failed: 22023 "));
        }
    }

    /** Also where the driver has to look up a name that had several addresses. */
    private static void addresses() throws Exception {
        AtomicBoolean fails = new AtomicBoolean();
        Jdbc.Addresses addresses = new Jdbc.Addresses(() -> fails.get() ? List.of(new Jdbc.Address("db", "5432", null))
            : List.of(new Jdbc.Address("db", "5432", InetAddress.getByName("10.0.0.1")),
                new Jdbc.Address("db", "5432", InetAddress.getByName("10.0.0.2"))));
        Duration some = Duration.ofSeconds(2);
        round(addresses, new SQLException("no", "28P01"));
        until("refused for a while", () -> addresses.verdict(some) != null);
        fails.set(true);
        round(addresses, null);
        fails.set(false);
        long again = System.nanoTime();
        round(addresses, new SQLException("no", "28P01"));
        boolean counted = addresses.verdict(some) != null;
        if (System.nanoTime() - again < some.toNanos())    // else this machine is too slow to tell
            same("refused since before the outage", counted, false);
        until("refused for a while again", () -> addresses.verdict(some) != null);
    }

    private static void round(Jdbc.Addresses addresses, SQLException refusal) throws Exception {
        do
            addresses.note(addresses.next(60_000_000_000L), refusal);
        while (!addresses.roundIsOver());
    }

    /** Times without end */
    private static void forever() throws Exception {
        AtomicInteger tried = new AtomicInteger();
        Duration ever = ChronoUnit.FOREVER.getDuration();
        Options o = options();
        o.callTimeout = o.refusalTimeout = o.interval = o.slice = ever;
        server = new Server() {
            @Override Connection connection() throws SQLException {
                if (tried.incrementAndGet() < 3)
                    throw new SQLException("no", "28P01");
                return super.connection();
            }

            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                return sql.contains("renew(") || sql.contains("acquire(") ? new Object[] {7L, 600_000L, false}
                    : super.answer(sql, args);
            }
        };
        for (boolean detached : new boolean[] {false, true}) {
            tried.set(0);
            try (Leadership leadership = detached ? new DetachedLeadership(POOL, o) : new SessionLeadership(URL, null, o)) {
                until("leads in the end", leadership::leads);
                same("waits", leadership.await(ever).getAsLong(), 7L);
            }
        }
    }

    /** Whatever goes wrong in the engine, those who wait for it are told. */
    private static void defects() throws Exception {
        class Defect extends Broken {
            Defect(Options options) { super(options); }

            @Override Connection open(Jdbc.Address at) throws Exception { throw new SQLException("no", "08001"); }

            @Override void keepOrLose(SQLException e) { throw new IllegalStateException("a defect"); }
        }
        try (Engine engine = new Defect(options())) {
            engine.start(new Jdbc.Addresses(() -> List.of(new Jdbc.Address("nowhere", "5432", null))));
            until("says that it has ended", () -> engine.state().startsWith("failed: XX000 "));
        }
    }

    /** A defect leaves no connection behind, and takes it only when the handler of lost has returned. */
    private static void leftovers() throws Exception {
        Queue<String> told = new ConcurrentLinkedQueue<>();
        Options o = options();
        CountDownLatch elected = new CountDownLatch(1);
        o.onElected = term -> elected.countDown();
        o.onLost = reason -> {
            try {
                Thread.sleep(200);    // what comes too early comes within that
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            told.add(reason);
        };
        server = new Server() {
            @Override void ended(String how) { told.add(how); }
        };
        class Defect extends Broken {
            Defect(Options options) { super(options); }

            @Override Connection open(Jdbc.Address at) throws Exception { return server.connection(); }

            @Override LeaderElection.Lease stand() {
                return new LeaderElection.Lease(new Object[] {7L, 3000L, false}, System.nanoTime(), 1);
            }

            @Override LeaderElection.Lease renew(LeaderElection.Lease held) {
                throw new IllegalStateException("told to fail");
            }

            @Override void keepOrLose(SQLException e) { throw new IllegalStateException("a defect"); }
        }
        try (Engine engine = new Defect(o)) {
            engine.start(new Jdbc.Addresses(() -> List.of(new Jdbc.Address("db", "5432", null))));
            until("the end of its connection", () -> told.size() >= 3);
            same("in order", told.toString(), "[error, abort, close]");
        }
    }

    /** An exception of the application's log stops nothing: neither the engine, nor its end. */
    private static void throwingLog() throws Exception {
        Options o = options();
        o.log = FakeLeadershipTest.throwing();
        CompletableFuture<String> error = new CompletableFuture<>();
        AtomicInteger tried = new AtomicInteger();
        o.onError = e -> error.complete(e.getSQLState());
        o.onElected = term -> { throw new IllegalStateException("told to fail"); };
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (!sql.contains("acquire("))
                    return super.answer(sql, args);
                if (tried.incrementAndGet() == 1)
                    throw new SQLException("no", "42501");
                return new Object[] {7L, 60_000L, false};
            }
        };
        long started = System.nanoTime();
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            same("onError is told", error.completeOnTimeout("nothing", 30, TimeUnit.SECONDS).get(), "38000");
        }
        same("close() waits", System.nanoTime() - started < o.callTimeout.toNanos(), true);
    }

    /** A pool that does not take a connection back in time: that connection is given up. */
    private static void givesBack() throws Exception {
        CountDownLatch aborted = new CountDownLatch(1);
        AtomicInteger asked = new AtomicInteger();
        Options o = options();
        o.callTimeout = Duration.ofSeconds(1);
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (sql.contains("acquire("))
                    asked.incrementAndGet();
                return super.answer(sql, args);
            }

            @Override void ended(String how) throws InterruptedException {
                if (how.equals("abort"))
                    aborted.countDown();
                aborted.await();
            }
        };
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("asks again", () -> asked.get() >= 2);
            aborted.countDown();
        }
    }

    /** A connection on which a call still runs is no pool's any more, whatever came before that call. */
    private static void silent() throws Exception {
        CountDownLatch aborted = new CountDownLatch(1);
        Queue<String> ends = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.callTimeout = Duration.ofSeconds(1);
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (sql.contains("acquire("))
                    throw new SQLException("no", "42501");
                if (sql.contains("pg_is_in_recovery"))
                    aborted.await();
                return super.answer(sql, args);
            }

            @Override void ended(String how) {
                ends.add(how);
                if (how.equals("abort"))
                    aborted.countDown();
            }
        };
        try (Leadership detached = new DetachedLeadership(POOL, o)) {
            until("the end of a connection", () -> !ends.isEmpty());
            same("ended by", ends.peek(), "abort");
            aborted.countDown();
        }
    }

    /** Without a handler of yield a term ends at once, and not when the handler of elected returns. */
    private static void yields() throws Exception {
        CountDownLatch blocks = new CountDownLatch(1);
        Queue<String> told = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.onElected = term -> {
            told.add("elected");
            try {
                blocks.await();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        };
        o.onLost = told::add;
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                return sql.contains("renew(") ? new Object[] {7L, 600_000L, true} : super.answer(sql, args);
            }
        };
        try (Leadership session = new SessionLeadership(URL, null, o)) {
            until("elected, and resigned", () -> session.changes() == 1 && !session.leads());
            same("told", told.size() <= 1, true);
            blocks.countDown();
            until("lost", () -> told.size() >= 2);
            same("told in the end", List.copyOf(told).subList(0, 2).toString(), "[elected, yielded]");
        }
    }

    /** Null is no properties, and no handler. */
    private static void nulls() throws Exception {
        Queue<String> called = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.onElected = null;
        o.onLost = null;
        o.onError = null;
        o.healthCheck = null;
        o.metadata = null;
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                called.add(sql);
                return sql.contains("renew(") ? new Object[] {7L, 3000L, false} : super.answer(sql, args);
            }
        };
        try (Leadership session = new SessionLeadership(URL, null, o)) {
            same("leads", session.await(Duration.ofSeconds(60)).getAsLong(), 7L);
            session.resign();
            until("leave", () -> called.stream().anyMatch(sql -> sql.contains("leave(")));
            same("state", session.state(), "standing");
        }
        try {
            new Options(null);
            same("an election without a name", "is allowed", "is refused");
        } catch (NullPointerException e) {
            // at once, not in the engine
        }
    }

    /** A candidate that cannot connect */
    private abstract static class Broken extends Engine {
        Broken(Options options) { super(options, 1, 0); }

        @Override void watch(LeaderElection.Lease held) throws Exception { rest(held, askAt - now()); }

        @Override LeaderElection.Lease stand() throws Exception { return null; }

        @Override LeaderElection.Lease renew(LeaderElection.Lease held) { return null; }

        @Override void withdraw(LeaderElection.Lease owed) { }

        @Override void keepOrLose(SQLException e) { }

        @Override void endTurn() { }

        @Override void hangUp() { }
    }

    /** A server, and the driver's side of connections to it. */
    private static class Server {
        /** A row, or null for none. This one grants nothing. */
        Object[] answer(String sql, List<Object> args) throws Exception {
            if (sql.contains("pg_is_in_recovery"))
                return new Object[] {false, PID, -1L, 0L};
            if (sql.startsWith("CALL") && notification() == null)
                Thread.sleep(20);
            return null;
        }

        /** The notification that each listener hears all the time; null: none. */
        String notification() { return null; }

        void cancel() { }

        /** A connection: by close, or by abort. */
        void ended(String how) throws Exception { }

        Connection connection() throws SQLException {
            PGNotification note = proxy(PGNotification.class, (proxy, method, args) -> notification());
            PGConnection driver = proxy(PGConnection.class, (proxy, method, args) -> {
                switch (method.getName()) {
                    case "getBackendPID":
                        return PID;
                    case "cancelQuery":
                        cancel();
                        return null;
                    default:    // getNotifications(ms)
                        if (notification() == null)
                            Thread.sleep((Integer) args[0]);
                        return notification() == null ? new PGNotification[0] : new PGNotification[] {note};
                }
            });
            return proxy(Connection.class, (proxy, method, args) -> {
                switch (method.getName()) {
                    case "unwrap":
                        return driver;
                    case "prepareStatement":
                        return statement((String) args[0]);
                    case "getAutoCommit":
                        return true;
                    case "close":
                    case "abort":
                        ended(method.getName());
                        return null;
                    default:
                        return null;
                }
            });
        }

        private PreparedStatement statement(String sql) {
            List<Object> given = new ArrayList<>();
            Object[][] row = new Object[1][];
            ResultSetMetaData columns = proxy(ResultSetMetaData.class, (proxy, method, args) -> row[0].length);
            ResultSet rows = proxy(ResultSet.class, (proxy, method, args) -> {
                switch (method.getName()) {
                    case "next":
                        return row[0] != null;
                    case "getMetaData":
                        return columns;
                    case "getObject":
                        return row[0][(Integer) args[0] - 1];
                    default:
                        return null;
                }
            });
            return proxy(PreparedStatement.class, (proxy, method, args) -> {
                switch (method.getName()) {
                    case "setObject":
                        given.add(args[1]);
                        return null;
                    case "execute":
                        row[0] = answer(sql, given);
                        return true;
                    case "getResultSet":
                        return rows;
                    default:
                        return null;
                }
            });
        }
    }

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(EngineTest.class.getClassLoader(), new Class<?>[] {type},
            (proxy, method, args) -> method.getDeclaringClass() != Object.class ? handler.invoke(proxy, method, args)
                : method.getName().equals("equals") ? (Object) (proxy == args[0]) : type.getSimpleName()));
    }

    private static Options options() {
        Options o = new Options("test");
        o.callTimeout = Duration.ofSeconds(60);
        return o;
    }

    /** After these errors the lease of a session is as it was. */
    private static void didNothing() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        Queue<String> told = new ConcurrentLinkedQueue<>();
        Options o = options();
        o.onLost = told::add;
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                if (!sql.contains("renew("))
                    return super.answer(sql, args);
                int n = renewals.getAndIncrement();
                if (n % 2 == 1)
                    throw new SQLException("no", List.of("55P03", "57014", "40001").get(n / 2 % 3));
                return new Object[] {7L, 4000L, false};
            }
        };
        try (Leadership session = new SessionLeadership(URL, new Properties(), o)) {
            until("renewals", () -> renewals.get() >= 8 || !told.isEmpty());
            same("lost after an error that did nothing", told.toString(), "[]");
            same("leads", session.leads(), true);
        }
    }

    /** What was closed is not kept until the lease would have been over. */
    private static void forgotten() throws Exception {
        server = new Server() {
            @Override Object[] answer(String sql, List<Object> args) throws Exception {
                return sql.contains("renew(") ? new Object[] {7L, 86_400_000L, false} : super.answer(sql, args);
            }
        };
        WeakReference<Leadership> closed = closed();
        until("what was closed is forgotten", () -> {
            System.gc();
            return closed.get() == null;
        });
    }

    private static WeakReference<Leadership> closed() throws Exception {
        Leadership session = new SessionLeadership(URL, new Properties(), options());
        until("leads", session::leads);
        session.close();
        return new WeakReference<>(session);
    }

    private static void until(String what, BooleanSupplier so) throws InterruptedException {
        long end = System.nanoTime() + 60_000_000_000L;
        while (!so.getAsBoolean() && System.nanoTime() < end)
            Thread.sleep(5);
        same(what, so.getAsBoolean(), true);
    }

    private static void same(String what, Object found, Object expected) {
        if (!expected.equals(found)) {
            wrong++;
            System.out.println(what + ": " + found + ", not " + expected);
        }
    }
}

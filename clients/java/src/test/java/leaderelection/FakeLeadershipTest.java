/*
 * FakeLeadershipTest.java
 *		What can be tested without a server: the local deadline, the order of
 *		events, and the leaderships without a server. A plain main(), which
 *		exits with 1 if something is wrong:
 *			java -cp ... leaderelection.FakeLeadershipTest
 *
 * Each answer is compared with what the specification says, so a deadline that
 * is ignored, or an event that is told twice or out of order, is found.
 */
package leaderelection;

import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.ResourceBundle;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.logging.LogManager;
import javax.sql.DataSource;
import leaderelection.LeaderElection.DetachedLeadership;
import leaderelection.LeaderElection.FakeLeadership;
import leaderelection.LeaderElection.Leadership;
import leaderelection.LeaderElection.Options;
import leaderelection.LeaderElection.SoleLeadership;

public class FakeLeadershipTest {
    private static final List<String> told = new CopyOnWriteArrayList<>();
    private static final OptionalLong NONE = OptionalLong.empty();
    private static int wrong;

    public static void main(String[] args) throws Exception {
        LogManager.getLogManager().reset();    // the outcome is to be read without the log
        deadline();
        reasons();
        order();
        asks();
        failures();
        states();
        names();
        fenced();
        waits();
        sole();
        again();
        unlocked();
        logs();
        throwingLog();
        broken();
        System.out.println(wrong == 0 ? "ok" : wrong + " wrong");
        System.exit(wrong == 0 ? 0 : 1);
    }

    private static void deadline() {
        FakeLeadership fake = new FakeLeadership(options());
        same("before an election", fake.term(), NONE);
        fake.elect(7, Duration.ofSeconds(2));
        same("elected", fake.term(), OptionalLong.of(7));
        fake.advance(Duration.ofMillis(1999));
        same("before the deadline", fake.leads(), true);
        fake.elect(7, Duration.ofSeconds(2));
        fake.advance(Duration.ofMillis(1999));
        same("renewed", fake.leads(), true);
        fake.advance(Duration.ofMillis(1));
        same("at the deadline", fake.term(), NONE);
        same("told", told, List.of("elected 7", "lost expired"));
        fake.advance(Duration.ofDays(1));
        fake.lose("not renewed");
        same("told once", told.size(), 2);
        fake.elect();
        same("the next term", fake.term(), OptionalLong.of(8));
        same("changes", fake.changes(), 2L);
    }

    private static void reasons() {
        FakeLeadership fake = new FakeLeadership(options());
        fake.elect();
        fake.elect();
        fake.resign();
        fake.elect();
        fake.askYield();
        fake.elect();
        fake.close();
        fake.close();
        fake.elect();
        same("no leader after close()", fake.leads(), false);
        same("reasons", told, List.of("elected 1", "lost failover", "elected 2", "lost resigned",
            "elected 3", "lost yielded", "elected 4", "lost closed"));
    }

    /** A handler that gives up: the term is gone at once, and the lost told when it has returned. */
    private static void order() {
        FakeLeadership[] fake = new FakeLeadership[1];
        Options o = options();
        o.onYield = term -> {
            told.add("yield " + term);
            fake[0].resign();
            told.add("leads: " + fake[0].leads());
            throw new IllegalStateException("an exception of yield is logged, and no more");
        };
        fake[0] = new FakeLeadership(o);
        fake[0].elect();
        fake[0].askYield();
        fake[0].askYield();
        fake[0].elect();
        same("order", told, List.of("elected 1", "yield 1", "leads: false", "lost yielded", "elected 2"));
    }

    /** Asked once in a term, also if the request was withdrawn meanwhile. */
    private static void asks() {
        Options o = options();
        o.onYield = term -> told.add("yield " + term);
        FakeLeadership fake = new FakeLeadership(o);
        for (long term = 1; term <= 2; term++)
            for (int i = 0; i < 2; i++) {
                fake.elect(term, Duration.ofSeconds(15));
                fake.askYield();
            }
        fake.elect(2, Duration.ofSeconds(15));
        fake.resign();
        same("asks", told, List.of("elected 1", "yield 1", "lost failover", "elected 2", "yield 2", "lost yielded"));
    }

    /** An exception of elected or lost ends the client; one of yield resigns. */
    private static void failures() throws Exception {
        for (String event : List.of("elected", "lost")) {
            Options o = options();
            o.onError = e -> told.add("error " + e.getSQLState());
            Runnable fails = () -> { throw new IllegalStateException("told to fail"); };
            if (event.equals("elected"))
                o.onElected = term -> { told.add("elected " + term); fails.run(); };
            else
                o.onLost = why -> { told.add("lost " + why); fails.run(); };
            FakeLeadership fake = new FakeLeadership(o);
            fake.elect();
            fake.resign();
            fake.elect();
            same(event + " fails", told, List.of("elected 1",
                event.equals("elected") ? "lost error" : "lost resigned", "error 38000"));
            same("state", fake.state().startsWith("failed: 38000 "), true);
            try {
                same("no term", fake.await(Duration.ofSeconds(1)), "an exception");
            } catch (SQLException e) {
                same("thrown", e.getSQLState(), "38000");
            }
        }
        Options o = options();
        o.onYield = term -> { throw new IllegalStateException("told to fail"); };
        FakeLeadership fake = new FakeLeadership(o);
        fake.elect();
        fake.askYield();
        fake.elect();
        same("yield fails", told, List.of("elected 1", "lost yielded", "elected 2"));
    }

    private static void states() {
        FakeLeadership fake = new FakeLeadership(options());
        List<String> states = new ArrayList<>(List.of(fake.state()));
        fake.elect();
        states.add(fake.state());
        fake.advance(Duration.ofSeconds(15));
        states.add(fake.state());
        fake.close();
        states.add(fake.state());
        same("states", states, List.of("standing", "leads", "standing", "closed"));
    }

    private static void names() {
        Map<String, String> pod = Map.of("KUBERNETES_SERVICE_HOST", "10.0.0.1", "HOSTNAME", "mail-7d-x2");
        same("a pod's first process", LeaderElection.defaultName(pod, 1), "mail-7d-x2");
        same("another one", LeaderElection.defaultName(pod, 7), "mail-7d-x2-7");
        Map<String, String> named = new HashMap<>(pod);
        named.put("POD_NAME", "mail-7d");
        same("by POD_NAME", LeaderElection.defaultName(named, 1), "mail-7d");
        named.put("POD_NAME", "\u00e9".repeat(150));
        same("at most 200 bytes", LeaderElection.defaultName(named, 12), "\u00e9".repeat(98) + "-12");
        String name = LeaderElection.defaultName(Map.of(), 12);
        same("host, process, four digits", name.matches("\\S+-12-[0-9a-f]{4}"), true);
    }

    private static void fenced() throws SQLException {
        FakeLeadership fake = new FakeLeadership(options());
        same("not the leader", refused(fake, null), "LE001");
        fake.elect();
        same("the leader", refused(fake, null), "");
        fake.advance(Duration.ofSeconds(15));
        same("no longer the leader", refused(fake, null), "LE001");
    }

    private static void waits() throws Exception {
        FakeLeadership fake = new FakeLeadership(options());
        same("nobody elects", fake.await(Duration.ofMillis(20)), NONE);
        new Thread(fake::elect).start();
        same("another thread elects", fake.await(Duration.ofSeconds(10)), OptionalLong.of(1));
    }

    private static void sole() throws SQLException {
        SoleLeadership sole = new SoleLeadership(options(), false);
        same("no term", sole.term(), NONE);
        sole.resign();
        sole.handlers.await();
        same("leads", sole.leads(), true);
        same("refuses", refused(sole, null), "0A000");
        sole.close();
        same("closed", sole.leads(), false);
        same("told", told, List.of("elected null", "lost resigned", "elected null", "lost closed"));
        sole.resign();
        sole.handlers.await();
        same("nothing after its end", told.size(), 4);
        SoleLeadership unfenced = new SoleLeadership(options(), true);
        same("unfenced", refused(unfenced, null), "");
        unfenced.close();
        same("unfenced, closed", refused(unfenced, null), "LE001");
        same("changes", sole.changes(), 2L);
    }

    /** In the handler of lost, resign() has nothing to do: one lost, and one elected after it. */
    private static void again() {
        SoleLeadership[] sole = new SoleLeadership[1];
        Options o = options();
        o.onLost = why -> {
            told.add("lost " + why);
            if (told.size() < 9)    // else this might go on for ever
                sole[0].resign();
        };
        sole[0] = new SoleLeadership(o, false);
        sole[0].resign();
        sole[0].handlers.await();
        same("resigns in lost", told, List.of("elected null", "lost resigned", "elected null"));
        o.onElected = term -> {
            told.add("elected " + term);
            if (told.size() == 2)
                sole[0].resign();
        };
        told.clear();
        sole[0].resign();
        sole[0].handlers.await();
        same("resigns in elected, and in lost", told,
            List.of("lost resigned", "elected null", "lost resigned", "elected null"));
    }

    /** A handler may wait for a thread that asks us to resign: no lock of ours is held while it runs. */
    private static void unlocked() {
        SoleLeadership[] sole = new SoleLeadership[1];
        boolean[] resigned = new boolean[1];
        Options o = options();
        o.onLost = why -> {
            CompletableFuture<Void> worker = CompletableFuture.runAsync(sole[0]::resign);
            worker.completeOnTimeout(null, 10, TimeUnit.SECONDS).join();
            synchronized (resigned) {
                resigned[0] = !Thread.holdsLock(sole[0]);
            }
        };
        sole[0] = new SoleLeadership(o, false);
        sole[0].close();
        synchronized (resigned) {
            same("another thread resigns in the handler of lost", resigned[0], true);
        }
    }

    /** A program that has given a log hears of each leadership. */
    private static void logs() {
        List<String> lines = new ArrayList<>();
        Options o = options();
        o.log = new System.Logger() {
            @Override public String getName() { return "test"; }

            @Override public boolean isLoggable(Level level) { return true; }

            @Override public void log(Level level, ResourceBundle bundle, String text, Throwable t) {
                lines.add(level + " " + text);
            }

            @Override public void log(Level level, ResourceBundle bundle, String format, Object... params) {
                lines.add(level + " " + format);
            }
        };
        FakeLeadership[] fake = new FakeLeadership[1];
        o.onElected = term -> {
            if (term == 3)
                fake[0].resign();
        };
        fake[0] = new FakeLeadership(o);
        fake[0].elect();
        fake[0].elect();
        fake[0].askYield();
        fake[0].elect();
        fake[0].close();
        same("log", lines, List.of("INFO elected leader of \"test\", term 1", "INFO lost leadership of \"test\", term 1: failover",
            "INFO elected leader of \"test\", term 2", "INFO lost leadership of \"test\", term 2: yielded",
            "INFO elected leader of \"test\", term 3", "INFO lost leadership of \"test\", term 3: resigned"));
        lines.clear();
        o.onElected = null;
        new SoleLeadership(o, false).close();
        same("log without a term", lines,
            List.of("INFO elected leader of \"test\"", "INFO lost leadership of \"test\": closed"));
    }

    /** What the application's log throws stops nothing: leaderships, handlers, and the end of this client. */
    private static void throwingLog() {
        Options o = options();
        o.log = throwing();
        o.onError = error -> told.add("error " + error.getSQLState());
        o.onLost = why -> {
            told.add("lost " + why);
            throw new IllegalStateException("told to fail");
        };
        FakeLeadership fake = new FakeLeadership(o);
        fake.elect();
        fake.close();
        same("told", told, List.of("elected 1", "lost closed", "error 38000"));
        same("ended", fake.state().startsWith("failed: 38000 "), true);
        o = options();
        o.log = throwing();
        o.executor = handler -> { throw new RejectedExecutionException(); };
        SoleLeadership sole = new SoleLeadership(o, false);
        sole.close();
        same("runs elsewhere", told, List.of("elected null", "lost closed"));
    }

    /** A log that is broken */
    static System.Logger throwing() {
        return (System.Logger) Proxy.newProxyInstance(FakeLeadershipTest.class.getClassLoader(),
            new Class<?>[] {System.Logger.class}, (proxy, method, args) -> {
                throw new IllegalStateException("the log fails");
            });
    }

    /** A pool gets back each connection that it has lent, also one that broke while idle. */
    private static void broken() throws Exception {
        CountDownLatch lent = new CountDownLatch(2), back = new CountDownLatch(2);
        Connection c = (Connection) Proxy.newProxyInstance(FakeLeadershipTest.class.getClassLoader(),
            new Class<?>[] {Connection.class}, (proxy, method, args) -> {
                if (method.getName().endsWith("AutoCommit"))
                    throw new SQLException("closed", "08003");
                if (method.getName().equals("close"))
                    back.countDown();
                return null;
            });
        DataSource pool = (DataSource) Proxy.newProxyInstance(FakeLeadershipTest.class.getClassLoader(),
            new Class<?>[] {DataSource.class}, (proxy, method, args) -> {
                lent.countDown();
                return c;
            });
        try (Leadership detached = new DetachedLeadership(pool, options())) {
            same("lent", lent.await(10, TimeUnit.SECONDS), true);
            same("given back", back.await(10, TimeUnit.SECONDS), true);
        }
    }

    private static Options options() {
        told.clear();
        Options o = new Options("test");
        o.onElected = term -> told.add("elected " + term);
        o.onLost = why -> told.add("lost " + why);
        return o;
    }

    private static String refused(Leadership leadership, Connection c) {
        try {
            leadership.fenced(c);
            return "";
        } catch (SQLException e) {
            return e.getSQLState();
        }
    }

    private static void same(String what, Object found, Object expected) {
        if (!expected.equals(found)) {
            wrong++;
            System.out.println(what + ": " + found + ", not " + expected);
        }
    }
}

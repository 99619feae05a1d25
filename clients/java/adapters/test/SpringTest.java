/*
 * SpringTest.java
 *		LeaderLifecycle, and the client itself beside Spring's transactions, with
 *		the real Spring: SpringTest URL. A plain main(), which fails if something
 *		is wrong. docs/frameworks.md runs it.
 */
package leaderelection.adapters;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.SQLException;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.logging.LogManager;
import javax.sql.DataSource;
import leaderelection.LeaderElection.*;
import leaderelection.adapters.LeaderLifecycle.*;
import org.springframework.context.annotation.*;
import org.springframework.context.event.EventListener;
import org.springframework.core.env.MapPropertySource;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.*;
import org.springframework.transaction.TransactionException;
import org.springframework.transaction.support.TransactionTemplate;

public class SpringTest {
    private static final Duration LONG = Duration.ofMinutes(2);
    private static String url;
    private static JdbcTemplate server;

    public static void main(String[] args) throws Exception {
        LogManager.getLogManager().reset();    // what is logged is not for who reads the outcome
        url = args[0];
        server = new JdbcTemplate(new DriverManagerDataSource(url));
        events();
        properties();
        transactions();
        borrowed();
        System.out.println("ok");
        System.exit(0);
    }

    /** What is told, and what the server says of the leader while that is told */
    public static class Listener {
        final BlockingQueue<String> told = new LinkedBlockingQueue<>();
        volatile boolean fails;

        @EventListener(condition = "#root.event.election == 'spring'")
        public void elected(LeaderElectedEvent event) {
            told.add("elected " + (event.term != null && event.term.equals(leading())));
            if (fails)
                throw new IllegalStateException("told to fail");
        }

        @EventListener
        public void lost(LeaderLostEvent event) {
            told.add("lost " + event.reason + " " + event.term.equals(leading()));
        }

        String next() throws InterruptedException { return told.poll(LONG.toMillis(), TimeUnit.MILLISECONDS); }
    }

    private static Long leading() {
        return server.queryForList("SELECT term FROM leader_election.status WHERE election = 'spring' "
            + "AND leader IS NOT NULL", Long.class)
            .stream().findFirst().orElse(null);
    }

    public static class Session {
        @Bean public LeaderLifecycle lifecycle() {
            return new LeaderLifecycle(new Options("spring"), o -> new SessionLeadership(url, new Properties(), o));
        }
    }

    private static void events() throws Exception {
        AnnotationConfigApplicationContext context =
            new AnnotationConfigApplicationContext(Listener.class, Session.class);
        LeaderLifecycle lifecycle = context.getBean(LeaderLifecycle.class);
        Listener listener = context.getBean(Listener.class);
        same("started", listener.next(), "elected true");
        same("leads", lifecycle.leadership().leads(), true);
        context.stop();
        same("stopped, and still ours then", listener.next(), "lost closed true");
        same("given back", leading(), null);
        listener.fails = true;
        context.start();
        same("started again", listener.next(), "elected true");
        same("failed", listener.next(), "lost error true");
        same("what await() throws", sqlState(() -> lifecycle.leadership().await(LONG)), "38000");
        context.close();
        Options o = new Options("spring");
        o.onLost = reason -> { };
        try {
            new LeaderLifecycle(o, null);
            throw new AssertionError("handlers that nobody calls are allowed");
        } catch (IllegalArgumentException e) {
            // as it should be
        }
    }

    /** With a url a session, without one the DataSource */
    private static void properties() throws Exception {
        for (String kind : List.of("session", "detached")) {
            AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext();
            Map<String, Object> known = new HashMap<>(Map.of("leader-election.election", "spring-" + kind,
                "leader-election.candidate", "me", "leader-election.rank", "3", "leader-election.call-timeout", "30s"));
            if (kind.equals("session"))
                known.put("leader-election.url", url);
            else
                context.register(Pool.class);
            context.getEnvironment().getPropertySources().addFirst(new MapPropertySource("test", known));
            context.register(LeaderLifecycle.FromProperties.class);
            context.refresh();
            Leadership leadership = context.getBean(LeaderLifecycle.class).leadership();
            same(kind, leadership.getClass().getSimpleName().toLowerCase(), kind + "leadership");
            same("leads", leadership.await(LONG).isPresent(), true);
            same("candidate and rank", server.queryForMap("SELECT candidate, rank FROM leader_election.candidates "
                + "WHERE election = ?", "spring-" + kind).toString(), "{candidate=me, rank=3}");
            context.close();
            same("closed", leadership.state(), "closed");
        }
    }

    public static class Pool {
        @Bean public DataSource pool() { return hikari(true); }
    }

    private static HikariDataSource hikari(boolean autoCommit) {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setAutoCommit(autoCommit);
        config.setMaximumPoolSize(4);
        return new HikariDataSource(config);
    }

    /**
     * A pool that knows Spring's transactions: the candidate has connections of its own, and the
     * work is fenced in its transaction.
     */
    private static void transactions() throws Exception {
        for (boolean autoCommit : new boolean[] {true, false})
            try (HikariDataSource hikari = hikari(autoCommit)) {
                DataSource pool = new TransactionAwareDataSourceProxy(hikari);
                JdbcTemplate work = new JdbcTemplate(pool);
                TransactionTemplate transaction = new TransactionTemplate(new DataSourceTransactionManager(hikari));
                server.update("DELETE FROM jobs WHERE id > 100");
                Leadership leadership = transaction.execute(status -> {
                    work.update("INSERT INTO jobs VALUES (101)");
                    Leadership l = new DetachedLeadership(pool, new Options("spring"));
                    same("leads", sqlState(() -> l.await(LONG)), "");
                    status.setRollbackOnly();
                    return l;
                });
                same("rolled back", jobs(), 0);
                transaction.execute(status -> {
                    same("fenced", fenced(leadership, pool), "");
                    return work.update("INSERT INTO jobs VALUES (101)");
                });
                same("committed", jobs(), 1);
                try {
                    transaction.execute(status -> {
                        same("fenced", fenced(leadership, pool), "");
                        work.update("INSERT INTO jobs VALUES (102)");
                        leadership.close();
                        return null;
                    });
                    throw new AssertionError("committed, but not led");
                } catch (TransactionException | DataAccessException e) {
                    same("of COMMIT", ((SQLException) e.getCause()).getSQLState(), "LE002");
                }
                same("not written", jobs(), 1);
            }
    }

    /** A DataSource that lends everybody the one connection, in which the work is */
    private static void borrowed() throws Exception {
        SingleConnectionDataSource one = new SingleConnectionDataSource(url, true);
        JdbcTemplate work = new JdbcTemplate(one);
        server.update("DELETE FROM jobs WHERE id > 100");
        new TransactionTemplate(new DataSourceTransactionManager(one)).execute(status -> {
            work.update("INSERT INTO jobs VALUES (101)");
            Options o = new Options("spring");
            o.refusalTimeout = Duration.ofMillis(300);
            try (Leadership leadership = new DetachedLeadership(one, o)) {
                same("refused", sqlState(() -> leadership.await(LONG)), "25001");
            }
            status.setRollbackOnly();
            return null;
        });
        same("not committed by the client", jobs(), 0);
        one.destroy();
    }

    private static String fenced(Leadership leadership, DataSource pool) {
        return sqlState(() -> {
            leadership.fenced(DataSourceUtils.getConnection(pool));
            return null;
        });
    }

    private static int jobs() { return server.queryForObject("SELECT count(*) FROM jobs WHERE id > 100", Integer.class); }

    private static String sqlState(Callable<?> call) {
        try {
            call.call();
            return "";
        } catch (SQLException e) {
            return e.getSQLState();
        } catch (Exception e) {
            return e.toString();
        }
    }

    private static void same(String what, Object found, Object expected) {
        if (!Objects.equals(found, expected))
            throw new AssertionError(what + ": " + found + ", not " + expected);
    }
}

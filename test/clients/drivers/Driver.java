// The line protocol of test/clients over the Java client: Driver session|detached ELECTION
// CANDIDATE.
// It is also the example of a program: a loop that asks term(), and fenced writes.
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import leaderelection.LeaderElection.*;
import org.postgresql.ds.PGSimpleDataSource;

public class Driver {
    static volatile Leadership leader;
    static Options options;
    static volatile long turn = System.nanoTime(), hang;
    static Connection connection;    // of the work

    static String env(String name, String or) { return System.getenv().getOrDefault(name, or); }

    static Duration time(String of, String or) { return Duration.parse("PT" + env(of, or) + "S"); }

    static synchronized void say(String line) {
        System.out.println(line + " " + System.nanoTime());    // CLOCK_MONOTONIC; println flushes
    }

    static String url(String hosts, String ports, Duration timeout) {
        StringJoiner at = new StringJoiner(",");
        for (int i = 0; i < hosts.split(",").length; i++)
            at.add(hosts.split(",")[i] + ":" + ports.split(",")[i]);
        return String.format("jdbc:postgresql://%s/%s?user=%s&password=%s&prepareThreshold=0"
            + "&connectTimeout=2&socketTimeout=%d", at, env("PGDATABASE", "postgres"),
            env("PGUSER", "app"), env("PGPASSWORD", ""), (timeout.toMillis() + 999) / 1000);
    }

    public static void main(String[] args) throws Exception {
        String hosts = env("PGHOST", "127.0.0.1"), ports = env("PGPORT", "5432"),
            url = url(hosts, ports, time("QUERY_TIMEOUT", "0")),
            work = url(env("WORKHOST", hosts), env("WORKPORT", ports), Duration.ofSeconds(2));
        Options o = options = new Options(args[1]);
        o.candidate = args[2];
        o.callTimeout = time("CALL_TIMEOUT", "1");
        o.slice = time("SLICE", "1");
        o.interval = time("INTERVAL", "0.2");
        o.onElected = term -> say("elected " + term);
        o.onLost = reason -> say("lost " + reason);
        o.onError = e -> {
            say("error " + e.getSQLState() + " " + e.getMessage().replaceAll("\\s+", " "));
            Runtime.getRuntime().halt(3);
        };
        long healthy = time("HEALTH", "0").toNanos();
        o.healthCheck = () -> healthy == 0 || System.nanoTime() - turn < healthy;
        o.listen = env("LISTEN", "").isEmpty() ? null : () -> DriverManager.getConnection(url);
        o.onYield = env("YIELD", "").isEmpty() ? null : term -> {
            say("yield " + term);
            CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS).execute(leader::resign);
        };
        PGSimpleDataSource pool = new PGSimpleDataSource();    // or a real one
        pool.setURL(url);
        say("ready");
        leader = args[0].equals("detached") ? new DetachedLeadership(pool, o)
            : new SessionLeadership(url, new Properties(), o);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {    // SIGTERM
            leader.close();
            say("closed");
            Runtime.getRuntime().halt(0);
        }));
        new Thread(() -> new Scanner(System.in).forEachRemaining(Driver::obey)).start();
        for (int i = 0; ; i++) {
            long hung = hang;
            hang -= hung;    // it may be set just now
            Thread.sleep(20 + hung);
            turn = System.nanoTime();
            OptionalLong term = leader.term();
            if (term.isPresent())
                say("working " + term.getAsLong() + " " + turn);
            if (term.isPresent() && i % 5 == 0)
                write(work, args[1], args[2], term.getAsLong());
        }
    }

    static void obey(String word) {
        if (word.equals("resign"))
            leader.resign();
        else if (word.equals("say"))
            options.metadata = "\"said\"";
        else if (word.equals("close"))
            System.exit(0);
        else if (!word.equals("hang"))
            hang = Long.parseLong(word);
    }

    static void write(String url, String election, String candidate, long term) {
        try {
            if (connection == null || connection.isClosed())    // as a broken one is
                connection = DriverManager.getConnection(url);
            connection.setAutoCommit(false);
            connection.rollback();                              // the write that was refused
            leader.fenced(connection);
            String sql = "SELECT conformance.write('%s', '%s', %d)";
            connection.createStatement().execute(String.format(sql, election, candidate, term));
            connection.commit();
            say("wrote " + term);
        } catch (SQLException e) {
            say("refused " + term + " " + e.getSQLState());
        }
    }
}

// The line protocol of test/clients over the Java client: Driver session|detached ELECTION CANDIDATE.
// It is also the example of a program: a loop that asks term(), and fenced writes.
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import leaderelection.LeaderElection.*;
import org.postgresql.ds.PGSimpleDataSource;

public class Driver {
    static volatile Leadership leadership;
    static volatile long turn = System.nanoTime(), hang;
    static Connection connection;    // of the work

    static String env(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    static Duration seconds(String name, String otherwise) {
        return Duration.ofMillis((long) (Double.parseDouble(env(name, otherwise)) * 1000));
    }

    static synchronized void say(String line) {
        System.out.println(line + " " + System.nanoTime());    // CLOCK_MONOTONIC; println flushes
    }

    static PGSimpleDataSource source(String hosts, String ports, Duration socketTimeout) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(hosts.split(","));
        source.setPortNumbers(Arrays.stream(ports.split(",")).mapToInt(Integer::parseInt).toArray());
        source.setDatabaseName(env("PGDATABASE", "postgres"));
        source.setUser(env("PGUSER", "app"));
        source.setPassword(env("PGPASSWORD", ""));
        source.setConnectTimeout(2);
        source.setSocketTimeout((int) (socketTimeout.toMillis() + 999) / 1000);
        source.setPrepareThreshold(0);
        return source;
    }

    public static void main(String[] args) throws Exception {
        String hosts = env("PGHOST", "127.0.0.1"), ports = env("PGPORT", "5432");
        PGSimpleDataSource source = source(hosts, ports, seconds("QUERY_TIMEOUT", "0")),
            work = source(env("WORKHOST", hosts), env("WORKPORT", ports), Duration.ofSeconds(2));
        Options o = new Options(args[1]);
        o.candidate = args[2];
        o.callTimeout = seconds("CALL_TIMEOUT", "1");
        o.slice = seconds("SLICE", "1");
        o.interval = seconds("INTERVAL", "0.2");
        o.onElected = term -> say("elected " + term);
        o.onLost = reason -> say("lost " + reason);
        o.onError = e -> {
            say("error " + e.getSQLState() + " " + e.getMessage().replaceAll("\\s+", " "));
            Runtime.getRuntime().halt(3);
        };
        if (!env("HEALTH", "").isEmpty())
            o.healthCheck = () -> System.nanoTime() - turn < 5e8;
        o.listen = env("LISTEN", "").isEmpty() ? null : source::getConnection;
        o.onYield = env("YIELD", "").isEmpty() ? null : term -> {
            say("yield " + term);
            CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS).execute(leadership::resign);
        };
        Properties login = new Properties();
        login.setProperty("user", source.getUser());
        login.setProperty("password", source.getPassword());
        say("ready");
        leadership = args[0].equals("detached") ? new DetachedLeadership(source, o)
            : new SessionLeadership(source.getUrl(), login, o);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {    // SIGTERM
            leadership.close();
            say("closed");
            Runtime.getRuntime().halt(0);
        }));
        Scanner in = new Scanner(System.in).useDelimiter("\n");
        new Thread(() -> in.forEachRemaining(Driver::obey)).start();
        for (int i = 0; ; i++) {
            long hung = hang;
            hang -= hung;    // it may be set just now
            Thread.sleep(20 + hung);
            turn = System.nanoTime();
            OptionalLong term = leadership.term();
            term.ifPresent(now -> say("working " + now));
            if (term.isPresent() && i % 5 == 0)
                write(work, args[1], args[2], term.getAsLong());
        }
    }

    static void obey(String line) {
        if (line.startsWith("hang "))
            hang = Long.parseLong(line.substring(5));
        else if (line.equals("resign"))
            leadership.resign();
        else
            System.exit(0);
    }

    static void write(PGSimpleDataSource work, String election, String candidate, long term) {
        try {
            if (connection == null || connection.isClosed())    // as a broken one is
                connection = work.getConnection();
            connection.setAutoCommit(false);
            connection.rollback();                              // the write that was refused
            leadership.fenced(connection);
            String sql = "SELECT conformance.write(?, ?, " + term + ")";
            try (PreparedStatement s = connection.prepareStatement(sql)) {
                s.setString(1, election);
                s.setString(2, candidate);
                s.execute();
            }
            connection.commit();
            say("wrote " + term);
        } catch (SQLException e) {
            say("refused " + term + " " + e.getSQLState());
        }
    }
}

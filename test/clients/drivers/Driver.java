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
    static volatile int status;      // of the exit
    static Connection connection;    // of the work
    static String handler = env("HANDLER", "");

    static String env(String name, String or) { return System.getenv().getOrDefault(name, or); }

    static boolean has(String name) { return !env(name, "").isEmpty(); }

    static Duration time(String of, String or) { return Duration.parse("PT" + env(of, or) + "S"); }

    static synchronized void say(String line) {
        System.out.println(line + " " + System.nanoTime());    // CLOCK_MONOTONIC; println flushes
    }

    static String url(String hosts, String ports, Duration timeout) {
        Set<String> at = new LinkedHashSet<>();    // one that is there twice hides what it refuses
        for (int i = 0; i < ports.split(",").length; i++)
            at.add(hosts.split(",")[hosts.contains(",") ? i : 0] + ":" + ports.split(",")[i]);
        return String.format("jdbc:postgresql://%s/%s?user=%s&password=%s", String.join(",", at),
            env("PGDATABASE", env("WORKDATABASE", "postgres")), env("PGUSER", env("WORKUSER", "app")),
            env("PGPASSWORD", "")) + options(timeout);
    }

    static String options(Duration timeout) {
        return "&prepareThreshold=0&connectTimeout=2&socketTimeout=" + (timeout.toMillis() + 999) / 1000;
    }

    public static void main(String[] args) throws Exception {
        String hosts = env("PGHOST", "127.0.0.1"), ports = env("PGPORT", "5432");
        Duration limit = time("QUERY_TIMEOUT", "0");
        String url = has("PGSERVICE") ? "jdbc:postgresql:///?service=" + env("PGSERVICE", "") + options(limit)
            : url(hosts, ports, limit);
        String work = url(env("WORKHOST", hosts), env("WORKPORT", ports), Duration.ofSeconds(2));
        Options o = options = new Options(args[1]);
        if (!has("DEFAULT_NAME"))
            o.candidate = args[2];
        else
            say("name " + o.candidate);
        o.callTimeout = time("CALL_TIMEOUT", "1");
        o.slice = has("DEFAULT_SLICE") ? null : time("SLICE", "1");
        o.interval = time("INTERVAL", "0.2");
        o.refusalTimeout = has("REFUSAL_TIMEOUT") ? time("REFUSAL_TIMEOUT", "") : o.refusalTimeout;
        o.pooler = has("POOLER") ? env("POOLER", "") : null;
        o.onElected = term -> {
            say("elected " + term);
            handle("elected");
        };
        o.onLost = reason -> {
            say("lost " + reason);
            handle("lost");
        };
        o.onError = e -> {
            say("error " + e.getSQLState() + " " + e.getMessage().replaceAll("\\s+", " "));
            Runtime.getRuntime().halt(3);
        };
        long healthy = time("HEALTH", "0").toNanos();
        o.healthCheck = () -> healthy == 0 || System.nanoTime() - turn < healthy;
        o.listen = has("LISTEN") ? () -> DriverManager.getConnection(url) : null;
        o.onYield = !has("YIELD") && !handler.startsWith("yield") ? null : term -> {
            say("yield " + term);
            handle("yield");
            CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS).execute(leader::resign);
        };
        PGSimpleDataSource pool = new PGSimpleDataSource();    // or a real one
        pool.setURL(url);
        say("ready");
        leader = args[0].equals("detached") ? new DetachedLeadership(pool, o)
            : new SessionLeadership(url, new Properties(), o);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {    // SIGTERM
            leader.close();
            if (status == 0)
                say("closed");
            Runtime.getRuntime().halt(status);
        }));
        new Thread(() -> new Scanner(System.in).forEachRemaining(Driver::obey)).start();
        String state = "";
        for (int i = 0; ; i++) {
            long hung = hang;
            hang -= hung;    // it may be set just now
            Thread.sleep(20 + hung);
            turn = System.nanoTime();
            OptionalLong term = leader.term();
            if (term.isPresent())
                say("working " + term.getAsLong() + " " + turn);
            if (term.isPresent() && i % 5 == 0)
                write(work, args[1], o.candidate, term.getAsLong());
            String was = state;
            state = leader.state();
            if (!state.equals(was))
                say("state " + state);
            if (state.equals("closed"))    // by a handler
                System.exit(0);
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

    // What HANDLER says of this event, once
    static void handle(String event) {
        if (!handler.startsWith(event))
            return;
        String what = handler.substring(event.length() + 1);
        handler = "";
        if (what.equals("raise"))
            throw new IllegalStateException("the handler of " + event + " was told to raise this");
        if (what.equals("exit"))
            System.exit(status = 7);
        if (what.equals("close"))
            leader.close();
        if (what.equals("resign"))
            leader.resign();
        if (what.equals("wait"))
            waitInHandler();
        if (what.equals("block"))
            try {
                Thread.sleep(2 * time("LEASE", "2").toMillis());
            } catch (InterruptedException e) {
                // it does not block then
            }
    }

    static void waitInHandler() {
        try {
            leader.await(Duration.ofDays(1));
        } catch (SQLException | InterruptedException e) {
            // what has ended the client is said elsewhere
        }
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

// The line protocol of test/clients over the Java client: Driver session|detached ELECTION CANDIDATE.
// It is also the example of a program: a working loop which asks term(), and fenced writes on a connection of its own.
import java.sql.*;
import java.time.Duration;
import java.util.*;
import leaderelection.LeaderElection.*;
import org.postgresql.ds.PGSimpleDataSource;

public class Driver {
    static final Properties login = new Properties();
    static volatile Leadership leadership;
    static volatile long turn = System.nanoTime(), hang;

    static String env(String name, String otherwise) { return System.getenv().getOrDefault(name, otherwise); }

    static Duration seconds(String name, String otherwise) {
        return Duration.ofNanos((long) (Double.parseDouble(env(name, otherwise)) * 1e9));
    }

    static void say(String line) {
        synchronized (System.out) {
            System.out.println(line + " " + System.nanoTime());    // which is CLOCK_MONOTONIC, and flushes
        }
    }

    static String url(String hosts, String ports) {
        String[] host = hosts.split(","), port = ports.split(",");
        StringBuilder where = new StringBuilder();
        for (int i = 0; i < host.length; i++)
            where.append(i > 0 ? "," : "").append(host[i]).append(':').append(port[Math.min(i, port.length - 1)]);
        return "jdbc:postgresql://" + where + "/" + env("PGDATABASE", "postgres") + "?connectTimeout=2&prepareThreshold=0";
    }

    public static void main(String[] args) throws Exception {
        String hosts = env("PGHOST", "127.0.0.1"), ports = env("PGPORT", "5432"), url = url(hosts, ports);
        login.setProperty("user", env("PGUSER", "app"));
        login.setProperty("password", env("PGPASSWORD", ""));
        if (System.getenv("QUERY_TIMEOUT") != null)
            url += "&socketTimeout=" + Math.max(1, seconds("QUERY_TIMEOUT", "1").toSeconds());
        Options o = new Options(args[1]).candidate(args[2]).callTimeout(seconds("CALL_TIMEOUT", "1"))
            .slice(seconds("SLICE", "1")).interval(seconds("INTERVAL", "0.2"))
            .onElected(term -> say("elected " + term)).onLost(reason -> say("lost " + reason))
            .onError(e -> {
                say("error " + e.getSQLState() + " " + e.getMessage().replaceAll("\\s+", " "));
                Runtime.getRuntime().halt(3);
            });
        if (System.getenv("HEALTH") != null)
            o.healthCheck(() -> System.nanoTime() - turn < 500_000_000);
        if (System.getenv("LISTEN") != null)
            o.listen(url, login);
        if (System.getenv("YIELD") != null)
            o.onYield(term -> {
                say("yield " + term);
                new Thread(() -> { sleep(200); leadership.resign(); }).start();
            });
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(url);
        source.setUser(login.getProperty("user"));
        source.setPassword(login.getProperty("password"));
        say("ready");
        leadership = args[0].equals("session") ? new SessionLeadership(url, login, o) : new DetachedLeadership(source, o);
        Runtime.getRuntime().addShutdownHook(new Thread(Driver::close));    // SIGTERM
        new Thread(Driver::commands).start();
        work(args[1], args[2], url(env("WORKHOST", hosts), env("WORKPORT", ports)) + "&socketTimeout=2");
    }

    static void close() {
        leadership.close();
        say("closed");
        Runtime.getRuntime().halt(0);
    }

    static void commands() {
        Scanner in = new Scanner(System.in);
        while (in.hasNextLine()) {
            String[] words = in.nextLine().split(" ");
            if (words[0].equals("resign"))
                leadership.resign();
            else if (words[0].equals("close"))
                close();
            else if (words[0].equals("hang"))
                hang = Long.parseLong(words[1]);
        }
    }

    static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void quietly(Connection c) {
        try {
            if (c != null)
                c.close();
        } catch (SQLException e) {
            return;
        }
    }

    static void work(String election, String candidate, String url) {
        Connection c = null;
        for (int i = 0; ; i++) {
            long hung = hang;
            hang -= hung;
            sleep(20 + hung);
            turn = System.nanoTime();
            OptionalLong now = leadership.term();
            if (now.isEmpty())
                continue;
            long term = now.getAsLong();
            say("working " + term);
            if (i % 5 != 0)
                continue;
            try {
                if (c == null)
                    c = DriverManager.getConnection(url, login);
                c.setAutoCommit(false);
                leadership.fenced(c);
                PreparedStatement s = c.prepareStatement("SELECT conformance.write(?, ?, ?)");
                s.setString(1, election);
                s.setString(2, candidate);
                s.setLong(3, term);
                s.execute();
                s.close();
                c.commit();
                say("wrote " + term);
            } catch (SQLException e) {
                say("refused " + term + " " + e.getSQLState());
                quietly(c);                        // the next write has a new connection
                c = null;
            }
        }
    }
}

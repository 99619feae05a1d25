// What a client is compared with: the same language and driver, and no client. Whoever
// holds a plain advisory lock leads. Bare bare ELECTION CANDIDATE
import java.sql.*;

public class Bare {
    static volatile boolean leads;
    static volatile Connection connection;

    static synchronized void say(String line) {
        System.out.println(line + " " + System.nanoTime());
    }

    public static void main(String[] args) throws Exception {
        String url = Driver.url(Driver.env("PGHOST", ""), Driver.env("PGPORT", ""),
            java.time.Duration.ZERO);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {    // SIGTERM
            boolean led = leads;
            leads = false;
            try {
                if (connection != null)
                    connection.abort(Runnable::run);
            } catch (SQLException e) {
                // it is closed
            }
            if (led)
                say("lost closed");
            say("closed");
            Runtime.getRuntime().halt(0);
        }));
        say("ready");
        for (;; Thread.sleep(50))
            try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement()) {
                connection = c;
                s.execute("SELECT pg_advisory_lock(hashtext('" + args[1] + "'))");
                leads = true;
                say("elected 1");
                for (;; Thread.sleep(50)) {
                    long asked = System.nanoTime();
                    s.execute("SELECT");
                    say("working 1 " + asked);
                }
            } catch (SQLException e) {
                if (leads)
                    say("lost connection lost");
                leads = false;
            }
    }
}

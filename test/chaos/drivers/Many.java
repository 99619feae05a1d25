// Several leaderships of clients/java in one process, with the log of test/chaos/candidate.c for
// each: Many INSTANCE KIND:ELECTION:CANDIDATE:LOG...
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import leaderelection.LeaderElection.*;
import org.postgresql.ds.PGSimpleDataSource;

public class Many {
    static final int TURN_MS = 200, TURNS_PER_WRITE = 10;
    static final long OFFSET_US = Long.parseLong(System.getenv("CLOCK_OFFSET_US"));
    static final String OPTIONS = "?user=" + System.getenv("PGUSER") + "&prepareThreshold=0&connectTimeout=15";
    static final String URL = "jdbc:postgresql://" + hosts() + "/postgres" + OPTIONS;
    static final String POOL = "jdbc:postgresql://127.0.0.1:" + System.getenv("POOL_PORT") + "/"
        + System.getenv("POOL_DATABASE") + OPTIONS + "&socketTimeout=15";
    static Connection work;
    static long nextId;

    // CLOCK_BOOTTIME, which Java does not read, in microseconds
    static long now() { return System.nanoTime() / 1000 + OFFSET_US; }

    // HOST:PORT,HOST:PORT of what libpq's variables say
    static String hosts() {
        String[] hosts = System.getenv("PGHOST").split(","), ports = System.getenv("PGPORT").split(",");
        StringJoiner places = new StringJoiner(",");
        for (int i = 0; i < hosts.length; i++)
            places.add(hosts[i] + ":" + ports[i]);
        return places.toString();
    }

    static class Member {
        final String election, candidate;
        final FileOutputStream log;
        final Leadership leadership;

        Member(String argument) throws Exception {
            String[] words = argument.split(":", 4);
            election = words[1];
            candidate = words[2];
            log = new FileOutputStream(words[3], true);
            Options options = new Options(election);
            options.candidate = candidate;
            options.callTimeout = Duration.ofSeconds(5);
            options.slice = Duration.ofMillis(500);
            options.interval = Duration.ofMillis(200);
            options.onError = e -> {
                System.out.println("gave up: " + e.getSQLState() + " " + e.getMessage());
                Runtime.getRuntime().halt(3);
            };
            PGSimpleDataSource pool = new PGSimpleDataSource();
            pool.setURL(POOL);
            leadership = words[0].equals("session") ? new SessionLeadership(URL, new Properties(), options)
                : new DetachedLeadership(pool, options);
        }

        void note(String line) throws IOException {
            log.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        }

        void turn(int n) throws IOException {
            long sent = now();
            OptionalLong term = leadership.term();
            if (term.isEmpty())
                return;
            note("q 1 " + election + " " + sent + " " + now() + " " + term.getAsLong());
            if (n % TURNS_PER_WRITE == 0)
                write(term.getAsLong());
        }

        void write(long term) throws IOException {
            long id = ++nextId, sent = now();
            String outcome = "committed";
            try {
                if (work == null || work.isClosed())
                    work = DriverManager.getConnection(POOL);
                work.setAutoCommit(false);
                work.rollback();
                leadership.fenced(work);
                term = leadership.term().orElse(term);    // the fenced one, else COMMIT fails
                try (Statement statement = work.createStatement()) {
                    statement.execute(String.format("INSERT INTO chaos.\"w_%s\" (term, candidate, id) VALUES (%d, '%s', %d)",
                        election, term, candidate, id));
                }
                sent = now();
                work.commit();
            } catch (SQLException e) {
                outcome = e.getSQLState() == null ? "lost" : e.getSQLState();
                try {
                    if (work != null)
                        work.close();
                } catch (SQLException closed) {
                    // it is gone
                }
            }
            note("w " + election + " " + sent + " " + now() + " " + term + " " + id + " " + outcome);
        }
    }

    public static void main(String[] args) throws Exception {
        List<Member> members = new ArrayList<>();
        nextId = Long.parseLong(args[0]) * 1_000_000;
        for (int i = 1; i < args.length; i++)
            members.add(new Member(args[i]));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> members.forEach(m -> m.leadership.close())));
        for (int n = 0; ; n++) {
            for (int i = 0; i < members.size(); i++)
                members.get(i).turn(n + i);
            Thread.sleep(TURN_MS);
        }
    }
}

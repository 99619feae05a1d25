/*
 * Jdbc.java
 *		Where a candidate connects to, and calls with a time limit. See
 *		LeaderElection.java.
 */
package leaderelection;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.io.IOException;
import java.net.*;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import javax.net.SocketFactory;

final class Jdbc {
    static final long MS = 1_000_000, SECOND = 1000 * MS;
    /** Where calls and handlers run: so that each can be waited for no longer than it may take. */
    static final ExecutorService POOL = Executors.newCachedThreadPool(task -> {
        Thread t = new Thread(task, "leader election");
        t.setDaemon(true);
        return t;
    });

    private Jdbc() { }

    // ------------------------------------------------------- where it connects to

    /** One address of one host; ip is null where the driver has no choice. */
    static final class Address {
        private final String host, port;
        private final InetAddress ip;

        Address(String host, String port, InetAddress ip) {
            this.host = host;
            this.port = port;
            this.ip = ip;
        }

        /** At the end of a URL: the driver takes the last word of each. */
        String parameters() { return "PGHOST=" + URLEncoder.encode(host, UTF_8) + "&PGPORT=" + port; }

        Properties properties(Properties info) {
            Properties p = (Properties) info.clone();
            if (ip != null) {
                p.setProperty("socketFactory", ToAddress.class.getName());
                p.setProperty("socketFactoryArg", ip.getHostAddress());
            }
            return p;
        }

        @Override public String toString() {
            return host + (ip == null ? "" : "/" + ip.getHostAddress()) + (port.isEmpty() ? "" : ":" + port);
        }
    }

    /** A refusal, and since when there was no other word. */
    static final class Refusal {
        private final long since = System.nanoTime();
        private SQLException error;

        boolean lasted(Duration timeout) { return System.nanoTime() - since >= timeout.toNanos(); }
    }

    /**
     * Where to connect, one address after the other: a driver that is given a list ends it at the
     * first that refuses [refused by the standby].
     */
    static final class Addresses {
        final Callable<List<Address>> all;    // to be asked anew for each round
        private List<Address> round = List.of();
        private int tried;
        private final Map<String, Refusal> refusals = new HashMap<>();

        Addresses(Callable<List<Address>> all) { this.all = all; }

        boolean roundIsOver() { return tried >= round.size(); }

        void begin(List<Address> addresses) {
            round = addresses;
            tried = 0;
        }

        void startOver() { tried = round.size(); }

        Address next() { return round.get(tried++); }

        /** An address has refused us; null: it has let us in, or was not reached. */
        void note(Address at, SQLException refusal) {
            if (refusal == null)
                refusals.remove(at.toString());
            else
                refusals.computeIfAbsent(at.toString(), name -> new Refusal()).error = refusal;
        }

        /** The last refusal, if for so long all have said nothing else. */
        SQLException verdict(Duration timeout) {
            SQLException last = null;
            for (Address at : round) {
                Refusal r = refusals.get(at.toString());
                if (r == null || !r.lasted(timeout))
                    return null;
                last = r.error;
            }
            return last;
        }
    }

    /** All addresses of all hosts: a name may be that of a primary and its standbys [one name]. */
    static List<Address> resolve(Properties known) {
        String[] hosts = known.getProperty("PGHOST").split(","), ports = known.getProperty("PGPORT").split(",");
        List<Address> result = new ArrayList<>();
        for (int i = 0; i < hosts.length; i++) {
            List<InetAddress> ips = List.of();
            try {
                if (known.getProperty("socketFactory") == null && ToAddress.IS_SEEN)
                    ips = List.of(InetAddress.getAllByName(hosts[i]));
            } catch (UnknownHostException e) {
                // the driver will say so, or knows better (a proxy)
            }
            if (ips.size() < 2)
                result.add(new Address(hosts[i], ports[i], null));
            else
                for (InetAddress ip : ips)
                    result.add(new Address(hosts[i], ports[i], ip));
        }
        return result;
    }

    /**
     * Connects to one address of a host. The driver goes on knowing the host by its name, which
     * its certificate and the password file have.
     */
    public static final class ToAddress extends SocketFactory {
        /** Not if the driver belongs to a class loader that does not know ours. */
        static final boolean IS_SEEN = isSeen();
        private final InetAddress ip;

        public ToAddress(String ip) throws UnknownHostException { this.ip = InetAddress.getByName(ip); }

        private static boolean isSeen() {
            try {
                Class.forName(ToAddress.class.getName(), false, org.postgresql.Driver.class.getClassLoader());
                return true;
            } catch (ClassNotFoundException e) {
                return false;
            }
        }

        @Override public Socket createSocket() {
            return new Socket() {
                @Override public void connect(SocketAddress to, int timeout) throws IOException {
                    super.connect(new InetSocketAddress(ip, ((InetSocketAddress) to).getPort()), timeout);
                }
            };
        }

        // The driver calls none of these.
        @Override public Socket createSocket(String h, int p) { return createSocket(); }
        @Override public Socket createSocket(String h, int p, InetAddress l, int lp) { return createSocket(); }
        @Override public Socket createSocket(InetAddress h, int p) { return createSocket(); }
        @Override public Socket createSocket(InetAddress h, int p, InetAddress l, int lp) { return createSocket(); }
    }

    // ---------------------------------------------------------------------- calls

    /** Starts a call on a thread of its own. */
    static <T> CompletableFuture<T> async(Callable<T> call) {
        CompletableFuture<T> answer = new CompletableFuture<>();
        try {
            POOL.execute(() -> {
                try {
                    answer.complete(call.call());
                } catch (Throwable t) {
                    answer.completeExceptionally(t);
                }
            });
        } catch (Throwable noThread) {
            answer.completeExceptionally(noThread);
        }
        return answer;
    }

    static <T> T answerOf(CompletableFuture<T> answer, long ns) throws Exception {
        try {
            return answer.get(ns, NANOSECONDS);
        } catch (TimeoutException e) {
            throw new SQLTimeoutException("no answer in time", "08006");
        }
    }

    /**
     * One call. After the time limit its socket has to be closed: a call that was only given up goes
     * on at the server, and may win an election that nobody knows of [query timeout].
     */
    static <T> T within(long ns, Callable<T> call) throws Exception { return answerOf(async(call), ns); }

    /**
     * Closes a connection, on another thread: with TLS that may block. In peace if the server goes
     * on answering; else the socket, and then a pool's connection goes back as a broken one.
     */
    static CompletableFuture<Void> disconnect(Connection c, Throwable because) {
        return async(() -> {
            if (c != null && because != null && !isAnswer(sqlCause(because)))
                c.abort(Runnable::run);
            if (c != null)
                c.close();
            return (Void) null;
        }).exceptionally(e -> null);
    }

    /** Has the server answered, and is the connection as good as before? */
    static boolean isAnswer(SQLException e) { return !e.getSQLState().matches("08...|57P..|58...|XX..."); }

    /** What the driver says is within what pools and threads say. It always has a SQLSTATE. */
    static SQLException sqlCause(Throwable t) {
        SQLException e = null;
        for (Throwable cause = t; cause != null; cause = cause.getCause())
            if (cause instanceof SQLException)
                e = (SQLException) cause;
        return e != null && e.getSQLState() != null ? e : new SQLException(String.valueOf(e == null ? t : e), "XX000", t);
    }

    static String firstLine(SQLException e) { return String.valueOf(e.getMessage()).split("\n", 2)[0]; }

    /**
     * The first row, or null. Behind a transaction pooler the URL of the pool has
     * prepareThreshold=0, as for all other statements.
     */
    static Object[] query(Connection c, String sql, Object... args) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++)
                s.setObject(i + 1, args[i]);
            ResultSet rows = s.execute() ? s.getResultSet() : null;
            if (rows == null || !rows.next())
                return null;
            Object[] row = new Object[rows.getMetaData().getColumnCount()];
            for (int i = 0; i < row.length; i++)
                row[i] = rows.getObject(i + 1);
            return row;
        }
    }
}

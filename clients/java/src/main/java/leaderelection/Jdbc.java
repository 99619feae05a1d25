/*
 * Jdbc.java
 *		Where a candidate connects to, and how it calls: what is about JDBC and
 *		its driver, and knows nothing of elections.
 *
 * JDBC has no TCP_USER_TIMEOUT, and the driver no cancel that is heard for
 * sure. So each call is on a thread of its own, and after its time limit the
 * socket is closed.
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
    /** Where calls and handlers run, so that each can be waited for no longer than it may take. */
    static final ExecutorService THREADS = Executors.newCachedThreadPool(task -> {
        Thread t = new Thread(task, "leader election");
        t.setDaemon(true);
        return t;
    });

    private Jdbc() { }

    /** An option in ns. More than ten years is that much, so that it can be multiplied and added to. */
    static long nanos(Duration option) { return Math.min(NANOSECONDS.convert(option), 3650 * 86_400 * SECOND); }

    // ------------------------------------------------------- where it connects to

    /** One address of one host; ip is null where the driver looks the host up itself. */
    static final class Address {
        private final String host, port;
        private final InetAddress ip;

        Address(String host, String port, InetAddress ip) {
            this.host = host;
            this.port = port;
            this.ip = ip;
        }

        /** These go to the end of a URL: the driver takes the last value of each parameter. */
        String parameters() { return "PGHOST=" + URLEncoder.encode(host, UTF_8) + "&PGPORT=" + port; }

        Properties properties(Properties info) {
            Properties p = (Properties) info.clone();
            if (ip != null) {
                p.setProperty("socketFactory", ToAddress.class.getName());
                p.setProperty("socketFactoryArg", ip.getHostAddress());
            }
            return p;
        }

        /** Is the address of this name this one, or (if no ip was found) one of the same host? */
        boolean covers(String name) {
            return name.equals(toString()) || ip == null && name.startsWith(host + "/");
        }

        @Override public String toString() {
            return host + (ip == null ? "" : "/" + ip.getHostAddress()) + (port.isEmpty() ? "" : ":" + port);
        }
    }

    /** A refusal, and since when there was no other word. (error is used for logins only.) */
    static final class Refusal {
        private final long since = System.nanoTime();
        private SQLException error;

        boolean lasted(Duration timeout) { return System.nanoTime() - since >= nanos(timeout); }
    }

    /**
     * Where to connect, one address after the other. The driver could be given the whole list, but it
     * would stop at the first address that refuses us [refused by the standby].
     */
    static final class Addresses {
        private final Callable<List<Address>> lookUp;
        private List<Address> round = List.of();
        private int tried;
        private final Map<String, Refusal> refusals = new HashMap<>();

        Addresses(Callable<List<Address>> lookUp) { this.lookUp = lookUp; }

        /** The next one. When a round begins, the hosts are looked up anew. */
        Address next(long timeout) throws Exception {
            if (roundIsOver()) {
                round = within(timeout, lookUp);
                tried = 0;
            }
            return round.get(tried++);
        }

        boolean roundIsOver() { return tried >= round.size(); }

        /** The primary was found: a new round begins with the next attempt. */
        void endRound() { tried = round.size(); }

        /**
         * Notes that an address has refused us; or, if null, that it has let us in, or was not reached.
         * Without an address: the hosts could not be looked up, so none was reached.
         */
        void note(Address at, SQLException refusal) {
            if (at == null)
                refusals.clear();
            else if (refusal == null)    // without an ip: none of the host's addresses was found
                refusals.keySet().removeIf(at::covers);
            else
                refusals.computeIfAbsent(at.toString(), name -> new Refusal()).error = refusal;
        }

        /** The refusal of the last one, if all of this round have refused us for so long; else null. */
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

    /** What the driver reads of a URL, of the service that it names, and of its own defaults. */
    static Properties parse(String url, Properties info) {
        Properties known = org.postgresql.Driver.parseURL(url, info);
        if (known == null)
            throw new IllegalArgumentException("the driver does not take this URL, or the service "
                + "that it names (a port for each host?): " + url.replaceAll("[?].*", ""));
        return known;
    }

    /**
     * What a session needs of the driver, unless the application says otherwise. The driver's own time
     * limits are for connecting; after that each call has ours. Nothing is set for the session before
     * we know that it is one. So the driver, too, must not say SET by itself: it does not if it knows
     * that the server is new [session pooler].
     */
    static Properties withDefaults(Properties info, Properties known, long callTimeout) {
        Properties result = new Properties();
        String seconds = String.valueOf(Math.min((callTimeout + SECOND - 1) / SECOND, 86_400));    // its ms are an int
        Map.of("connectTimeout", seconds, "socketTimeout", seconds, "cancelSignalTimeout", seconds,
            "prepareThreshold", "0", "tcpKeepAlive", "true", "assumeMinServerVersion", "15",
            "targetServerType", "primary", "hostRecheckSeconds", "0")
            .forEach((name, value) -> {
                if (known.getProperty(name) == null)
                    result.setProperty(name, value);
            });
        info.stringPropertyNames().forEach(name -> result.setProperty(name, info.getProperty(name)));
        return result;
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
        /** Can the driver's class loader find this class? If not, the driver looks hosts up itself. */
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
            THREADS.execute(() -> {
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

    /** The answer, or what the call has thrown, if it comes in time; 0: if it is there already. */
    static <T> T answerOf(CompletableFuture<T> answer, long ns) throws Exception {
        try {
            return answer.get(ns, NANOSECONDS);
        } catch (TimeoutException e) {
            throw new SQLTimeoutException("no answer in time", "08006");
        }
    }

    /**
     * Makes one call. After the time limit the caller has to close the socket, by disconnect(): a call
     * that was only given up goes on at the server, and may win an election that nobody knows of
     * [query timeout].
     */
    static <T> T within(long ns, Callable<T> call) throws Exception { return answerOf(async(call), ns); }

    /**
     * Closes a connection, on another thread: with TLS that may block. If it is closed because of an
     * error that is no answer of the server, the socket is closed first: so a pool takes the
     * connection back as a broken one. Else (because is null, or an answer) it ends in peace.
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

    /** The innermost SQLException: pools and threads wrap what the driver says. Always with a SQLSTATE. */
    static SQLException sqlCause(Throwable t) {
        SQLException e = null;
        for (Throwable cause = t; cause != null; cause = cause.getCause())
            if (cause instanceof SQLException)
                e = (SQLException) cause;
        return e != null && e.getSQLState() != null ? e : new SQLException(String.valueOf(e == null ? t : e), "XX000", t);
    }

    static String firstLine(SQLException e) { return String.valueOf(e.getMessage()).split("\n", 2)[0]; }

    /**
     * The first row, or null. Behind a transaction pooler the URL of the pool needs
     * prepareThreshold=0, for this as for all other statements.
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

/*
 * LeaderLifecycle.java
 *		Stands for election while a Spring context runs: one file to copy, for
 *		Spring 4.3 and later.
 *
 * Its events are the handlers of elected and lost (see docs/clients.md), so the
 * lease is given back only when the listeners of LeaderLostEvent have returned,
 * unless they are asynchronous; and one that throws ends the candidacy.
 */
package leaderelection.adapters;

import java.time.Duration;
import java.util.Properties;
import java.util.function.Function;
import javax.sql.DataSource;
import leaderelection.LeaderElection.*;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.context.*;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;

public class LeaderLifecycle implements SmartLifecycle, ApplicationEventPublisherAware {
    private final Options options;
    private final Function<Options, Leadership> stand;
    private volatile ApplicationEventPublisher listeners;
    private Leadership leadership;      // of the last start()
    private volatile boolean running;
    private Long term;                  // of the last elected: handlers run one after the other

    /** stand makes the leadership, at each start of the context: o -> new SessionLeadership(url, properties, o). */
    public LeaderLifecycle(Options options, Function<Options, Leadership> stand) {
        if (options.onElected != null || options.onLost != null)
            throw new IllegalArgumentException("have listeners of LeaderElectedEvent and LeaderLostEvent, "
                + "not options.onElected and onLost");
        this.options = options;
        this.stand = stand;
        options.onElected = elected -> listeners.publishEvent(new LeaderElectedEvent(this, term = elected));
        options.onLost = reason -> listeners.publishEvent(new LeaderLostEvent(this, term, reason));
    }

    /** Null before the first start. A listener that is told meanwhile waits for the end of start(). */
    public synchronized Leadership leadership() { return leadership; }

    @Override public synchronized void start() {
        if (running)
            return;
        leadership = stand.apply(options);
        running = true;
    }

    /** Gives up, withdraws, and waits for the listeners, but no longer than options.callTimeout. */
    @Override public void stop() {
        running = false;
        leadership().close();
    }

    @Override public void stop(Runnable done) {
        try {
            stop();
        } finally {
            done.run();
        }
    }

    @Override public boolean isRunning() { return running; }
    @Override public boolean isAutoStartup() { return true; }

    /** Started last, stopped first: the work needs the other beans. */
    @Override public int getPhase() { return Integer.MAX_VALUE; }

    @Override public void setApplicationEventPublisher(ApplicationEventPublisher context) { listeners = context; }

    /** For a listener's condition: "#root.event.election == 'mails'". */
    public abstract static class LeaderEvent extends ApplicationEvent {
        public final String election;
        public final Long term;    // null of a SoleLeadership

        LeaderEvent(LeaderLifecycle source, Long term) {
            super(source);
            this.election = source.options.election;
            this.term = term;
        }
    }

    public static class LeaderElectedEvent extends LeaderEvent {
        LeaderElectedEvent(LeaderLifecycle source, Long term) { super(source, term); }
    }

    public static class LeaderLostEvent extends LeaderEvent {
        public final String reason;

        LeaderLostEvent(LeaderLifecycle source, Long term, String reason) {
            super(source, term);
            this.reason = reason;
        }
    }

    /**
     * To @Import: a LeaderLifecycle by the properties leader-election.election, candidate, rank,
     * url and call-timeout ("5s"). With a url it is a session's, else a detached one over the
     * context's DataSource.
     */
    public static class FromProperties {
        @Bean public LeaderLifecycle leaderLifecycle(Environment env, ObjectProvider<DataSource> pool) {
            String url = env.getProperty("leader-election.url");
            Options o = new Options(env.getRequiredProperty("leader-election.election"));
            o.candidate = env.getProperty("leader-election.candidate", o.candidate);
            o.rank = env.getProperty("leader-election.rank", Integer.class);
            o.callTimeout = Duration.parse("PT" + env.getProperty("leader-election.call-timeout", "5s"));
            return new LeaderLifecycle(o, all -> url != null ? new SessionLeadership(url, new Properties(), all)
                : new DetachedLeadership(pool.getObject(), all));
        }
    }
}

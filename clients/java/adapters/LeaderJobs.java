/*
 * LeaderJobs.java
 *		Quartz jobs run only where this process leads: one file to copy, for
 *		Quartz 2.
 *
 * All instances have the same jobs, each in a job store of its own (RAMJobStore),
 * and schedulers that run. What becomes due where we do not lead is vetoed: so a
 * job runs once each time that it is due, or not at all if nobody leads then.
 *
 * The handler of lost waits for jobs that run, and the lease is given back after
 * that: no job of the next leader begins before ours have ended. Where the lease
 * or its session has ended by itself that comes too late: fence what is written.
 */
package leaderelection.adapters;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Function;
import leaderelection.LeaderElection.Leadership;
import leaderelection.LeaderElection.Options;
import org.quartz.*;
import org.quartz.Trigger.CompletedExecutionInstruction;
import org.quartz.listeners.JobListenerSupport;
import org.quartz.listeners.SchedulerListenerSupport;

public class LeaderJobs extends JobListenerSupport implements TriggerListener, AutoCloseable {
    /** Jobs that may run, and have not ended, each with the thread that runs it. */
    private final Map<JobExecutionContext, Thread> ours = new HashMap<>();
    private volatile Leadership leadership;

    /**
     * Before scheduler.start(). stand makes the leadership: o -> new SessionLeadership(url,
     * properties, o). A handler of lost that options have is called first: it may interrupt jobs.
     */
    public LeaderJobs(Scheduler scheduler, Options options, Function<Options, Leadership> stand)
            throws SchedulerException {
        if (scheduler.getMetaData().isJobStoreSupportsPersistence())
            throw new IllegalArgumentException("schedulers that share a job store need Quartz's own clustering: "
                + "what one vetoes, no other runs");
        Consumer<String> first = options.onLost == null ? reason -> { } : options.onLost;
        options.onLost = first.andThen(reason -> awaitJobs());
        scheduler.getListenerManager().addTriggerListener(this);
        scheduler.getListenerManager().addJobListener(this);
        scheduler.getListenerManager().addSchedulerListener(new SchedulerListenerSupport() {
            @Override public void schedulerError(String text, SchedulerException error) { broken(text); }
        });
        leadership = stand.apply(options);
    }

    public Leadership leadership() { return leadership; }

    /** Gives up, when the jobs that run have ended, and withdraws. Then shut the scheduler down. */
    @Override public void close() { leadership.close(); }

    @Override public String getName() { return "leader election"; }

    /** Under the lock: either awaitJobs() finds the job, or we lead no more. */
    @Override public synchronized boolean vetoJobExecution(Trigger trigger, JobExecutionContext job) {
        ours.values().remove(Thread.currentThread());    // of what an Error has ended, Quartz tells nobody
        if (leadership == null || !leadership.leads())
            return true;
        ours.put(job, Thread.currentThread());
        return false;
    }

    @Override public void jobWasExecuted(JobExecutionContext job, JobExecutionException error) { ended(job); }

    /** By us, or by another listener */
    @Override public void jobExecutionVetoed(JobExecutionContext job) { ended(job); }

    private synchronized void ended(JobExecutionContext job) {
        ours.remove(job);
        notifyAll();
    }

    /**
     * A listener of others has thrown. Quartz tells no further ones then, and says so in the job's
     * thread, where that job has ended, or will not run. (Its other errors are none of a listener.)
     */
    private synchronized void broken(String text) {
        if (text.startsWith("Unable to notify "))
            ours.values().remove(Thread.currentThread());
        notifyAll();
    }

    private synchronized void awaitJobs() {
        try {
            while (!ours.isEmpty())
                wait();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);    // nobody knows whether they have ended
        }
    }

    @Override public void triggerFired(Trigger trigger, JobExecutionContext job) { }
    @Override public void triggerMisfired(Trigger trigger) { }
    @Override public void triggerComplete(Trigger trigger, JobExecutionContext job,
        CompletedExecutionInstruction instruction) { }
}

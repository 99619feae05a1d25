/*
 * QuartzTest.java
 *		LeaderJobs with the real Quartz: QuartzTest URL. A plain main(), which
 *		fails if something is wrong. docs/frameworks.md runs it.
 */
package leaderelection.adapters;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import leaderelection.LeaderElection.*;
import org.quartz.*;
import org.quartz.impl.StdSchedulerFactory;
import org.quartz.listeners.*;

public class QuartzTest {
    private static final long LONG = 120_000;

    public static void main(String[] args) throws Exception {
        if (args.length > 1) {
            stand(args[0]);
            return;
        }
        try {
            waits();
            throwing();
            takeover(args[0]);
            System.out.println("ok");
        } catch (Throwable t) {
            t.printStackTrace();
            System.exit(1);    // although schedulers have threads
        }
        System.exit(0);
    }

    private static Scheduler scheduler(Class<? extends Job> job, int ms) throws SchedulerException {
        Properties p = new Properties();
        p.put("org.quartz.threadPool.threadCount", "3");
        p.put("org.quartz.scheduler.skipUpdateCheck", "true");
        Scheduler scheduler = new StdSchedulerFactory(p).getScheduler();
        scheduler.scheduleJob(JobBuilder.newJob(job).build(), TriggerBuilder.newTrigger()
            .withSchedule(SimpleScheduleBuilder.simpleSchedule().withIntervalInMilliseconds(ms).repeatForever()).build());
        return scheduler;
    }

    // ------------------------------------------- one process, which a test elects

    private static final AtomicInteger due = new AtomicInteger(), begun = new AtomicInteger(), ended = new AtomicInteger();
    private static final Semaphore mayEnd = new Semaphore(0);

    public static class Blocks implements Job {
        @Override public void execute(JobExecutionContext context) {
            begun.incrementAndGet();
            mayEnd.acquireUninterruptibly();
            ended.incrementAndGet();
        }
    }

    private static void waits() throws Exception {
        Scheduler scheduler = scheduler(Blocks.class, 20);
        boolean[] veto = {false};
        scheduler.getListenerManager().addTriggerListener(new TriggerListenerSupport() {
            @Override public String getName() { return "another one"; }

            @Override public boolean vetoJobExecution(Trigger trigger, JobExecutionContext context) {
                due.incrementAndGet();
                return veto[0];
            }
        });
        CountDownLatch told = new CountDownLatch(1);
        Options o = new Options("quartz");
        o.onLost = reason -> told.countDown();
        LeaderJobs jobs = new LeaderJobs(scheduler, o, FakeLeadership::new);
        FakeLeadership fake = (FakeLeadership) jobs.leadership();
        scheduler.start();
        until("vetoed", () -> due.get() >= 5);
        same("jobs before we lead", begun.get(), 0);
        fake.elect();
        until("jobs, where we lead", () -> begun.get() == 3);    // as many threads as there are
        CompletableFuture<Integer> lost = CompletableFuture.supplyAsync(() -> {
            fake.lose("not renewed");
            return ended.get();
        });
        same("told before the jobs have ended", told.await(LONG, TimeUnit.MILLISECONDS), true);
        mayEnd.release(1);
        until("one that ended", () -> ended.get() == 1);
        int seen = due.get();
        until("vetoed", () -> due.get() >= seen + 5);
        same("the handler of lost waits", lost.isDone(), false);
        mayEnd.release(100);
        same("jobs that had ended then", lost.get(LONG, TimeUnit.MILLISECONDS), 3);
        same("jobs when we had lost", begun.get(), 3);
        veto[0] = true;
        fake.elect();
        int then = due.get();
        until("vetoed by another listener", () -> due.get() >= then + 5);
        CompletableFuture.runAsync(jobs::close).get(LONG, TimeUnit.MILLISECONDS);
        scheduler.shutdown();
    }

    // --------------------------------------------- listeners of others, which throw

    private static volatile String throwsAt = "";
    private static final AtomicInteger thrown = new AtomicInteger();

    public static class Nothing implements Job {
        @Override public void execute(JobExecutionContext context) { }
    }

    private static class Throws extends JobListenerSupport implements TriggerListener {
        private static void at(String event) {
            if (throwsAt.equals(event)) {
                thrown.incrementAndGet();
                throw new IllegalStateException(event);
            }
        }

        @Override public String getName() { return "throws"; }
        @Override public void triggerFired(Trigger trigger, JobExecutionContext job) { }
        @Override public void triggerMisfired(Trigger trigger) { }
        @Override public void triggerComplete(Trigger trigger, JobExecutionContext job,
            Trigger.CompletedExecutionInstruction instruction) { }

        @Override public boolean vetoJobExecution(Trigger trigger, JobExecutionContext job) {
            at("veto");
            return throwsAt.equals("vetoed");
        }

        @Override public void jobExecutionVetoed(JobExecutionContext job) { at("vetoed"); }
        @Override public void jobToBeExecuted(JobExecutionContext job) { at("begin"); }
        @Override public void jobWasExecuted(JobExecutionContext job, JobExecutionException error) { at("end"); }
    }

    /** Quartz tells the others nothing then, or does not run the job: so nobody is to wait for that one. */
    private static void throwing() throws Exception {
        for (boolean before : new boolean[] {true, false})
            for (String event : List.of("veto", "vetoed", "begin", "end")) {
                Scheduler scheduler = scheduler(Nothing.class, 20);
                if (before)
                    scheduler.getListenerManager().addJobListener(new Throws());
                else
                    scheduler.getListenerManager().addTriggerListener(new Throws());
                LeaderJobs jobs = new LeaderJobs(scheduler, new Options("quartz"), FakeLeadership::new);
                if (before)
                    scheduler.getListenerManager().addTriggerListener(new Throws());
                else
                    scheduler.getListenerManager().addJobListener(new Throws());
                ((FakeLeadership) jobs.leadership()).elect();
                throwsAt = event;
                int then = thrown.get();
                scheduler.start();
                until("a listener that throws: " + event, () -> thrown.get() >= then + 2);
                try {
                    CompletableFuture.runAsync(jobs::close).get(10, TimeUnit.SECONDS);
                } catch (TimeoutException e) {
                    throw new AssertionError("close() waits for a job of which Quartz tells nothing: " + event, e);
                }
                scheduler.shutdown();
            }
        throwsAt = "";
    }

    // ---------------------------------------------------------------- processes

    public static class Says implements Job {
        @Override public void execute(JobExecutionContext context) {
            System.out.println("begin " + System.nanoTime());    // the same clock for all processes
            try {
                Thread.sleep(20);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            System.out.println("end " + System.nanoTime());
        }
    }

    private static void stand(String url) throws Exception {
        Scheduler scheduler = scheduler(Says.class, 50);
        LeaderJobs jobs = new LeaderJobs(scheduler, new Options("quartz"),
            o -> new SessionLeadership(url, new Properties(), o));
        scheduler.start();
        Runtime.getRuntime().addShutdownHook(new Thread(jobs::close));
        System.out.println("ready " + System.nanoTime());
    }

    private static class Candidate {
        final Process process;
        final Thread reader;
        final Queue<Long> begun = new ConcurrentLinkedQueue<>(), ended = new ConcurrentLinkedQueue<>();
        volatile boolean ready;

        Candidate(String url) throws IOException {
            process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                System.getProperty("java.class.path"), QuartzTest.class.getName(), url, "stand")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            reader = new Thread(() -> new BufferedReader(new InputStreamReader(process.getInputStream()))
                .lines().forEach(this::said));
            reader.setDaemon(true);
            reader.start();
        }

        private void said(String line) {
            long time = Long.parseLong(line.replaceAll("\\D", ""));
            if (line.startsWith("ready"))
                ready = true;
            else
                (line.startsWith("begin") ? begun : ended).add(time);
        }
    }

    /** The leader is killed, the next one is terminated: at each moment the jobs of one process run. */
    private static void takeover(String url) throws Exception {
        List<Candidate> all = new ArrayList<>();
        try {
            for (int i = 0; i < 3; i++) {
                Candidate c = new Candidate(url);
                all.add(c);
                until("a process", () -> c.ready);
            }
            List<Candidate> led = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                until("a leader whose jobs run", () -> all.stream().anyMatch(c -> !led.contains(c) && c.ended.size() > 3));
                Candidate leader = all.stream().filter(c -> !led.contains(c) && c.ended.size() > 3).findFirst().get();
                led.add(leader);
                ProcessHandle process = leader.process.toHandle();    // Process.destroy() closes what we read
                if (i == 0)
                    process.destroyForcibly();
                else
                    process.destroy();
            }
            until("the end of all", () -> all.stream().noneMatch(c -> c.reader.isAlive()));
            for (int i = 1; i < 3; i++) {
                long last = Math.max(Collections.max(led.get(i - 1).begun), Collections.max(led.get(i - 1).ended));
                same("jobs run on both", last < Collections.min(led.get(i).begun), true);
            }
            same("jobs that did not end", led.get(1).begun.size() - led.get(1).ended.size(), 0);
        } finally {
            all.forEach(c -> c.process.destroyForcibly());
        }
    }

    private static void until(String what, Callable<Boolean> so) throws Exception {
        long end = System.nanoTime() + LONG * 1_000_000;
        while (!so.call() && System.nanoTime() < end)
            Thread.sleep(5);
        same(what, so.call(), true);
    }

    private static void same(String what, Object found, Object expected) {
        if (!expected.equals(found))
            throw new AssertionError(what + ": " + found + ", not " + expected);
    }
}

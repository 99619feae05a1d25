/*
 * Handlers.java
 *		Calls handlers one at a time, in order, on the application's executor.
 */
package leaderelection;

import static java.lang.System.Logger.Level.WARNING;
import static leaderelection.Jdbc.THREADS;
import static leaderelection.LeaderElection.LOG;

import java.util.*;
import java.util.concurrent.*;
import java.util.function.Supplier;

final class Handlers {
    private final Executor executor;
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private final Set<Thread> inside = ConcurrentHashMap.newKeySet();
    private CompletableFuture<Void> idle = CompletableFuture.completedFuture(null);

    Handlers(Executor executor) { this.executor = executor; }

    void tell(Runnable handler) {
        synchronized (this) {
            waiting.add(handler);
            if (!idle.isDone())
                return;    // it is called when those before it have returned
            idle = new CompletableFuture<>();
        }
        // The application's may have been shut down before us, and there may be no more threads.
        for (Executor one : List.of(executor, THREADS, (Executor) Runnable::run))
            try {
                one.execute(this::callAll);
                return;
            } catch (RejectedExecutionException | OutOfMemoryError e) {
                LOG.log(WARNING, "handlers run elsewhere", e);
            }
    }

    private void callAll() {
        for (Runnable next = next(); next != null; next = next()) {
            Runnable handler = next;
            inside(() -> { handler.run(); return null; });
        }
    }

    private synchronized Runnable next() {
        if (waiting.isEmpty())
            idle.complete(null);
        return waiting.poll();
    }

    /** Until all that were told have returned. */
    void await() {
        CompletableFuture<Void> until;
        synchronized (this) {
            until = idle;
        }
        until.join();
    }

    <T> T inside(Supplier<T> code) {
        inside.add(Thread.currentThread());
        try {
            return code.get();
        } finally {
            inside.remove(Thread.currentThread());
        }
    }

    /** Is this a thread in which a handler, or the health check, runs? */
    boolean areInside() { return inside.contains(Thread.currentThread()); }
}

/*
 * Handlers.java
 *		Calls handlers one at a time, in order, on the application's executor.
 */
package leaderelection;

import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static leaderelection.Jdbc.THREADS;

import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;

final class Handlers {
    private final Executor executor;
    private final Consumer<Throwable> refused;    // told when that executor takes no handler
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private final Set<Thread> inside = ConcurrentHashMap.newKeySet();
    /** Complete when all handlers that were told have returned. */
    private CompletableFuture<Void> idle = CompletableFuture.completedFuture(null);

    Handlers(Executor executor, Consumer<Throwable> refused) {
        this.executor = executor;
        this.refused = refused;
    }

    /** Queues a handler, and has the queue called, unless that is going on already. */
    void tell(Runnable handler) {
        synchronized (this) {
            waiting.add(handler);
            if (!idle.isDone())
                return;    // it is called when those before it have returned
            idle = new CompletableFuture<>();
        }
        // The application's executor may have been shut down before us, and ours may get no thread.
        for (Executor one : List.of(executor, THREADS, (Executor) Runnable::run))
            try {
                one.execute(this::callAll);
                return;
            } catch (RejectedExecutionException | OutOfMemoryError e) {
                refused.accept(e);
            }
    }

    private void callAll() {
        for (Runnable next = next(); next != null; next = next()) {
            Runnable handler = next;
            inside(() -> { handler.run(); return null; });
        }
    }

    /** The next one. Null: there is none, and nobody calls the queue any more. */
    private synchronized Runnable next() {
        if (waiting.isEmpty())
            idle.complete(null);
        return waiting.poll();
    }

    /** Waits until all that were told have returned. */
    void await() { untilIdle().join(); }

    /** The same, but no longer than this. */
    void await(long ns) { untilIdle().copy().completeOnTimeout(null, ns, NANOSECONDS).join(); }

    private synchronized CompletableFuture<Void> untilIdle() { return idle; }

    /** Runs code of the application, and notes its thread meanwhile, for areInside(). */
    <T> T inside(Supplier<T> code) {
        inside.add(Thread.currentThread());
        try {
            return code.get();
        } finally {
            inside.remove(Thread.currentThread());
        }
    }

    /** Is the calling thread one in which a handler, or the health check, runs? */
    boolean areInside() { return inside.contains(Thread.currentThread()); }
}

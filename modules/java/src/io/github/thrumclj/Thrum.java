package io.github.thrumclj;

import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

import clojure.java.api.Clojure;
import clojure.lang.AFn;
import clojure.lang.IDeref;
import clojure.lang.IExceptionInfo;
import clojure.lang.IFn;
import clojure.lang.IPersistentMap;
import clojure.lang.IReduceInit;
import clojure.lang.Keyword;
import clojure.lang.RT;
import clojure.lang.Var;

/**
 * Plain blocking code on virtual threads: bounded, cancelled together, and never left running.
 *
 * <ul>
 *   <li>{@link #pmap} calls a function on many items, so many at once.</li>
 *   <li>{@link #scope} starts different things at once, and ends when all of them have ended.</li>
 *   <li>{@link #withTimeout} bounds the time of what happens inside, also of the two above.</li>
 *   <li>{@link #hedge} makes a second call when the first is slow.</li>
 * </ul>
 *
 * <p>Items, forks and hedged calls run on fresh virtual threads; the bodies of scope and withTimeout on the calling one. When a method
 * of this class returns or throws, nothing that was started inside is running any more; work that ignores its interrupt delays the return.
 *
 * <p>The first failure in time cancels the rest, by an interrupt, and is thrown: the same instance, of any class, checked
 * exceptions included. Other true failures are {@linkplain Throwable#getSuppressed() suppressed} on it, at most 16, with the
 * number of the item that failed; throwables that only the cancel caused are dropped. An interrupt of the caller is thrown as
 * {@link InterruptedException} when the work has ended. In work that is cancelled already, every static method but load throws
 * {@link CancellationException}, and {@link Scope#fork} {@link IllegalStateException} where its scope is cancelled too.
 *
 * <p>Every lambda returns a value: where there is none, {@code return null}. Of one that throws two checked exceptions the compiler
 * infers a class above both, often {@code Exception}.
 *
 * <p>A static initialiser may call {@link #load}, and nothing else here: the lambdas of its class run on other threads, which wait until
 * the class is initialised. Neither ends, and no deadline helps.
 *
 * <p>Misuse is answered at the call: {@link NullPointerException} and {@link IllegalArgumentException} name the argument.
 *
 * <p>It is a face of Thrum for Clojure, whose loading takes a second or more: the first call of the process pays for it, or {@link #load}
 * at the start of the application.
 */
public final class Thrum {
    private Thrum() {
    }

    // What is handed in and out

    /**
     * What {@link #pmap} calls on every item.
     *
     * @param <T> the item
     * @param <R> the result
     * @param <X> what it may throw; the compiler infers it
     */
    @FunctionalInterface
    public interface Mapper<T, R, X extends Exception> {
        R map(T item) throws X, InterruptedException;
    }

    /**
     * What {@link #withTimeout}, {@link #hedge} and {@link Scope#fork} run.
     *
     * @param <R> the result
     * @param <X> what it may throw; the compiler infers it
     */
    @FunctionalInterface
    public interface Body<R, X extends Exception> {
        R run() throws X, InterruptedException;
    }

    /**
     * What {@link #scope} runs.
     *
     * @param <R> the result
     * @param <X> what it and its forks may throw
     */
    @FunctionalInterface
    public interface ScopeBody<R, X extends Exception> {
        R run(Scope<X> scope) throws X, InterruptedException;
    }

    /**
     * Owns forks; see {@link Thrum#scope}.
     *
     * @param <X> what its body and its forks may throw
     */
    public static final class Scope<X extends Exception> {
        private final Object scope;
        private final Boundary boundary;

        private Scope(Object scope, Boundary boundary) {
            this.scope = scope;
            this.boundary = boundary;
        }

        /**
         * Starts the body on a fresh virtual thread.
         *
         * @throws NullPointerException  if the body is null
         * @throws IllegalStateException if the scope has ended, or is being cancelled
         * @throws WrongThreadException  if the calling thread does not work for the scope: only its body and its forks may fork
         */
        public <R> Fork<R> fork(Body<? extends R, ? extends X> body) {
            given(body, "body");
            try {
                return new Fork<>((Future<?>) core().fork().invoke(scope, boundary.function(ignored -> body.run())), boundary);
            } catch (Throwable t) {
                throw Thrum.<RuntimeException>asItIs(boundary.translated(t));
            }
        }
    }

    /**
     * What {@link Scope#fork} has started.
     *
     * @param <R> the result
     */
    public static final class Fork<R> {
        private final Future<?> task;
        private final Boundary boundary;

        private Fork(Future<?> task, Boundary boundary) {
            this.task = task;
            this.boundary = boundary;
        }

        /**
         * Waits for the result and returns it. In the body of the scope a failure needs no handling: the scope throws its cause.
         *
         * @throws CompletionException   if the fork has failed; the cause is what it threw, or a {@link TimeoutException}: see
         *                               {@link Thrum#scope}
         * @throws CancellationException if the fork, or the caller's work, was cancelled
         * @throws IllegalStateException if the fork could never end, because it waits for itself; two that wait for each other are not
         *                               found, and wait until a deadline
         * @throws InterruptedException  if the caller was interrupted
         */
        @SuppressWarnings("unchecked")
        public R get() throws InterruptedException {
            try {
                return (R) task.get();
            } catch (ExecutionException e) {
                throw new ForkFailed(e, boundary.out(e.getCause()));
            } catch (Throwable t) {
                throw Thrum.<RuntimeException>asItIs(boundary.translated(t));
            }
        }

        /** Returns true if the fork has a result, has failed, or was cancelled; a cancelled one may still run. */
        public boolean isDone() {
            return task.isDone();
        }
    }

    // Operations

    /**
     * Returns the results of the mapper for the items, in the order of the items, computed by at most {@code limit} calls at once,
     * each on a virtual thread of its own.
     *
     * <pre>{@code
     * List<Price> prices = Thrum.pmap(8, items, item -> shop.price(item));
     * }</pre>
     *
     * <p>The items are iterated by the calling thread, one after the other as there is room. A failure is seen when the iterator
     * returns: where that may wait, put {@link #withTimeout} around the call. Items and results may be null.
     *
     * @param limit how many calls may run at once, at least 1
     * @return a list that cannot be changed
     * @throws X                        what the first failing call threw, when the others have been cancelled and have ended
     * @throws NullPointerException     if items, their iterator or the mapper is null
     * @throws IllegalArgumentException if the limit is below 1
     * @throws InterruptedException     if the caller was interrupted
     */
    @SuppressWarnings("unchecked")
    public static <T, R, X extends Exception> List<R> pmap(
            int limit, Iterable<? extends T> items, Mapper<? super T, ? extends R, ? extends X> mapper)
            throws X, InterruptedException {
        if (limit < 1) {
            throw new IllegalArgumentException("limit must be at least 1, not " + limit);
        }
        given(items, "items");
        given(mapper, "mapper");
        Boundary boundary = new Boundary(false);
        Object results = Thrum.<X>call(boundary, core -> core.pmapv().invoke(
                (long) limit, boundary.function(item -> mapper.map((T) item)), boundary.source(items)));
        return (List<R>) Collections.unmodifiableList(Arrays.asList(((List<?>) results).toArray()));
    }

    /**
     * Runs the body on the calling thread and returns its value, when everything that it has forked has ended.
     *
     * <pre>{@code
     * Page page = Thrum.scope(scope -> {
     *     Fork<User> user = scope.fork(() -> users.load(id));
     *     Fork<Cart> cart = scope.fork(() -> carts.load(id));
     *     return new Page(user.get(), cart.get());
     * });
     * }</pre>
     *
     * <p>A fork that fails cancels the others and the body; so does a body that throws. When all have ended, the first failure is thrown.
     *
     * <p>Where forks throw checked exceptions, say so at the lambda's parameter, and the compiler holds the caller to it:
     * {@code Thrum.scope((Scope<IOException> scope) -> ...)}. That type covers what the body throws as well.
     *
     * <p>A fork that is started inside of {@link #withTimeout}, in a scope around it, keeps that deadline. When it comes, the fork and
     * the scope fail. They fail at once where it has come already.
     *
     * @throws X                    what the body or the first failing fork threw
     * @throws CompletionException  if a fork was not done by such a deadline; the cause is a {@link TimeoutException}
     * @throws NullPointerException if the body is null
     * @throws InterruptedException if the caller was interrupted
     */
    @SuppressWarnings("unchecked")
    public static <R, X extends Exception> R scope(ScopeBody<R, X> body) throws X, InterruptedException {
        given(body, "body");
        Boundary boundary = new Boundary(false);
        return (R) Thrum.<X>call(boundary, core -> core.scope().invoke(
                RT.map(), boundary.function(scope -> body.run(new Scope<>(scope, boundary)))));
    }

    /**
     * Runs the body on the calling thread and returns its value, or stops it when the time has passed: the calling thread is
     * interrupted, and what the body started by {@link #pmap} and {@link #scope} is cancelled. The deadline holds inside as well: of
     * nested ones the earliest wins.
     *
     * <pre>{@code
     * Page page = Thrum.withTimeout(Duration.ofSeconds(2), () -> loadPage(id));
     * }</pre>
     *
     * <p>A body that returns a value is not late, and a failure of the body's own is thrown as it is. So is the exception of a library
     * that answers the interrupt without an {@link InterruptedException} or its like among the causes. Threads and pools that are not
     * Thrum's are not stopped.
     *
     * @param timeout how long, positive; rounded up to a millisecond
     * @throws TimeoutException         if the body was stopped; thrown when all that it started has ended, with what the body threw
     *                                  as its cause
     * @throws X                        what the body threw
     * @throws NullPointerException     if timeout or body is null
     * @throws IllegalArgumentException if the timeout is not positive
     * @throws InterruptedException     if the caller was interrupted
     */
    @SuppressWarnings("unchecked")
    public static <R, X extends Exception> R withTimeout(Duration timeout, Body<? extends R, ? extends X> body)
            throws X, TimeoutException, InterruptedException {
        given(timeout, "timeout");
        given(body, "body");
        if (!timeout.isPositive()) {
            throw new IllegalArgumentException("timeout must be positive, not " + timeout);
        }
        Boundary boundary = new Boundary(true);
        return (R) Thrum.<X>call(boundary, core -> core.timeout().invoke(
                wholeMillis(timeout), null, boundary.function(ignored -> body.run())));
    }

    /**
     * Returns the value of the first of two bodies that has one. The first runs at once, the second when the first has none after that
     * time, or has failed. The other one is cancelled, and has ended when this method returns.
     *
     * <pre>{@code
     * Price price = Thrum.hedge(Duration.ofMillis(80), () -> nearby.price(item), () -> faraway.price(item));
     * }</pre>
     *
     * <p>For calls that may be made twice. Each body runs on a fresh virtual thread.
     *
     * @param after how long the second waits for the first, not negative; rounded up to a millisecond
     * @throws X                        what the first body to fail threw, when both have; the other's is suppressed on it
     * @throws NullPointerException     if an argument is null
     * @throws IllegalArgumentException if the time is negative
     * @throws InterruptedException     if the caller was interrupted
     */
    @SuppressWarnings("unchecked")
    public static <R, X extends Exception> R hedge(
            Duration after, Body<? extends R, ? extends X> first, Body<? extends R, ? extends X> second)
            throws X, InterruptedException {
        given(after, "after");
        given(first, "first");
        given(second, "second");
        if (after.isNegative()) {
            throw new IllegalArgumentException("after must not be negative, but is " + after);
        }
        Boundary boundary = new Boundary(false);
        return (R) Thrum.<X>call(boundary, core -> core.hedge().invoke(
                RT.map(keyword("after-ms"), wholeMillis(after)),
                List.of(boundary.function(ignored -> first.run()), boundary.function(ignored -> second.run()))));
    }

    /**
     * Loads what the other methods need, if that has not happened yet: a second or more of computing, better spent at the start of an
     * application than in its first request.
     *
     * <p>Clojure's {@code require} takes no lock: code that loads namespaces on another thread at that time does so by
     * {@code requiring-resolve}, as Clojure asks for.
     *
     * @throws IllegalStateException if it cannot be loaded; every other method throws it as well
     */
    public static void load() {
        core();
    }

    // Loading Clojure

    private record Core(IFn pmapv, IFn scope, IFn fork, IFn timeout, IFn hedge) {
    }

    // Locks, not class initialisers: a virtual thread that waits for one of those keeps its carrier.
    private static final ReentrantLock INITIALISING = new ReentrantLock();
    private static final ReentrantLock LOADING = new ReentrantLock();
    private static volatile Core core;

    private static Core core() {
        Core loaded = core;
        return loaded != null ? loaded : loadOnce();
    }

    private static Core loadOnce() {
        try {
            Object clojures = alone(INITIALISING, Thrum::initialise);
            // A caller that holds it, since it loads a namespace, would wait for ever for another thread that wants it.
            return Thread.holdsLock(clojures) ? loadCore() : alone(LOADING, () -> loadCore(clojures));
        } catch (Throwable t) {
            throw new IllegalStateException("Thrum could not be loaded", t instanceof CompletionException ? t.getCause() : t);
        }
    }

    /** Returns the result of a part of the loading, on a thread of its own: Clojure's transactions would take a caller's interrupt. */
    private static <A> A alone(ReentrantLock lock, Supplier<A> part) {
        lock.lock();
        try {
            return CompletableFuture.supplyAsync(part, Thrum::startLoader).join();
        } finally {
            lock.unlock();
        }
    }

    // Clojure looks for its sources through the thread's class loader, which on a server's thread may be any.
    private static void startLoader(Runnable part) {
        Thread loader = Thread.ofPlatform().name("thrum-load").daemon().inheritInheritableThreadLocals(false).unstarted(part);
        loader.setContextClassLoader(Thrum.class.getClassLoader());
        loader.start();
    }

    /** Returns the lock that requiring-resolve holds while it loads. */
    private static Object initialise() {
        RT.init();
        return RT.REQUIRE_LOCK;
    }

    private static Core loadCore(Object clojures) {
        synchronized (clojures) {
            return loadCore();
        }
    }

    private static Core loadCore() {
        if (core == null) {
            Clojure.var("clojure.core", "require").invoke(Clojure.read("thrum.core"));
            core = new Core(named("pmapv"), named("with-scope-call"), named("fork-call"), named("with-timeout-call"), named("hedge-call"));
        }
        return core;
    }

    private static IFn named(String name) {
        IFn function = Clojure.var("thrum.core", name);
        if (!((Var) function).hasRoot()) {
            throw new IllegalStateException("thrum.core has no " + name + ": the class path has another version of thrum than of thrum-java");
        }
        return function;
    }

    private interface Use {
        Object of(Core core) throws Throwable;
    }

    private static <X extends Exception> Object call(Boundary boundary, Use use) throws X {
        try {
            return use.of(core());
        } catch (Throwable t) {
            throw Thrum.<X>asItIs(boundary.declared(t));
        }
    }

    private interface Code {
        Object run(Object argument) throws Throwable;
    }

    /** Passes the throwables of the user's code through one call unchanged, and puts those of Thrum in Java's terms. */
    private static final class Boundary {
        // By what Thrum is given, as an instance: the user's throwable may look like one of Thrum's, and have an equals and hashCode.
        private final Map<Throwable, Throwable> theirs = Collections.synchronizedMap(new IdentityHashMap<>(1));
        private final boolean timed;

        /** timed: whether the method declares TimeoutException. */
        Boundary(boolean timed) {
            this.timed = timed;
        }

        IFn function(Code code) {
            return new AFn() {
                @Override
                public Object invoke() {
                    return invoke(null);
                }

                @Override
                public Object invoke(Object argument) {
                    try {
                        return code.run(argument);
                    } catch (Throwable t) {
                        throw Thrum.<RuntimeException>asItIs(in(t));
                    }
                }
            };
        }

        /** The iterator is the user's code as well. */
        IReduceInit source(Iterable<?> items) {
            return (step, start) -> {
                Object sum = start;
                var iterator = iterating(items::iterator);
                given(iterator, "the iterator of items");
                while (iterating(iterator::hasNext)) {
                    sum = step.invoke(sum, iterating(iterator::next));
                    if (RT.isReduced(sum)) {
                        return ((IDeref) sum).deref();
                    }
                }
                return sum;
            };
        }

        private <A> A iterating(Supplier<A> step) {
            try {
                return step.get();
            } catch (Throwable t) {
                throw Thrum.<RuntimeException>asItIs(in(t));
            }
        }

        /** Returns what Thrum is to be given in place of what the user's code threw. */
        private Throwable in(Throwable t) {
            // The scope knows its own fork's failure by an ExecutionException: that is no second failure.
            Throwable given = t instanceof ForkFailed failed ? failed.asThrown() : t;
            if (given instanceof IExceptionInfo || given != t) {
                theirs.put(given, t);
            }
            return given;
        }

        Throwable out(Throwable t) {
            Throwable own = theirs.get(t);
            return own == null ? translated(t) : withSuppressed(own, t);
        }

        Throwable declared(Throwable t) {
            Throwable out = out(t);
            boolean undeclared = !timed && out != t && out instanceof TimeoutException;
            return undeclared ? withSuppressed(new CompletionException("A fork was not done in time", out), out) : out;
        }

        /** Returns the exception to throw in place of Thrum's own; any other throwable as it is. */
        Throwable translated(Throwable t) {
            return t instanceof IExceptionInfo info ? withSuppressed(inJavasTerms(t, info.getData()), t) : t;
        }

        private Throwable inJavasTerms(Throwable t, IPersistentMap data) {
            return switch (String.valueOf(value(data, "type"))) {
                case ":thrum/timeout" -> new TimeoutException(t.getMessage()).initCause(cause(t));
                case ":thrum/cancelled" -> new CancellationException(t.getMessage()).initCause(cause(t));
                case ":thrum/closed" -> new IllegalStateException("The scope "
                        + (value(data, "reason") == keyword("ended") ? "has ended" : "is cancelled")
                        + ", nothing can be forked into it any more", t);
                case ":thrum/deadlock" -> new IllegalStateException(t.getMessage(), t);
                case ":thrum/invalid" -> value(data, "thread") == null ? t
                        : new WrongThreadException("This thread does not work for the scope: only its body and its forks may fork", t);
                default -> t;
            };
        }

        /** Returns the cause, as the user's code threw it. A cancel that Thrum threw in Clojure code there cannot be serialised: not that. */
        private Throwable cause(Throwable t) {
            Throwable cause = theirs.getOrDefault(t.getCause(), t.getCause());
            return cause instanceof CancellationException ? translated(cause) : cause;
        }
    }

    // Failures

    /** The exception of get() for a failed fork. */
    private static final class ForkFailed extends CompletionException {
        private static final long serialVersionUID = 1;
        private final ExecutionException thrown;

        ForkFailed(ExecutionException thrown, Throwable cause) {
            super(cause == thrown.getCause() ? thrown.getMessage() : cause.toString(), cause);
            this.thrown = thrown;
        }

        /** Returns a new one: what is suppressed on it stays with one call. */
        ExecutionException asThrown() {
            return new ExecutionException(thrown.getMessage(), thrown.getCause());
        }
    }

    private static Object value(IPersistentMap data, String key) {
        return data.valAt(keyword(key));
    }

    private static Keyword keyword(String name) {
        return Keyword.intern(null, name);
    }

    /** Returns the throwable, with what is suppressed on the other one suppressed on it, once. */
    private static Throwable withSuppressed(Throwable t, Throwable other) {
        for (Throwable failure : other.getSuppressed()) {
            if (t != other && Arrays.stream(t.getSuppressed()).noneMatch(there -> there == failure)) {
                t.addSuppressed(failure);
            }
        }
        return t;
    }

    @SuppressWarnings("unchecked")
    private static <X extends Throwable> X asItIs(Throwable t) throws X {
        throw (X) t;
    }

    // Arguments

    private static void given(Object argument, String name) {
        Objects.requireNonNull(argument, () -> name + " must not be null");
    }

    private static long wholeMillis(Duration timeout) {
        try {
            return timeout.plusNanos(999_999).toMillis();
        } catch (ArithmeticException e) {
            return Long.MAX_VALUE;
        }
    }
}

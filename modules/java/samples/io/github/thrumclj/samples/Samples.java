package io.github.thrumclj.samples;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.OutputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Exchanger;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;

import io.github.thrumclj.Thrum;
import io.github.thrumclj.Thrum.Fork;
import io.github.thrumclj.Thrum.Mapper;
import io.github.thrumclj.Thrum.Scope;

/** Java as its users write it. That it compiles is the test of the types; what the methods return is looked at by thrum.java-test. */
public final class Samples {
    private Samples() {
    }

    record Item(int id) {
    }

    record Price(Item item, int cents) {
    }

    record Page(String user, List<String> cart) {
    }

    static final class SoldOut extends Exception {
        private static final long serialVersionUID = 1;

        SoldOut(String message) {
            super(message);
        }
    }

    private static Price price(Item item) throws SoldOut {
        if (item.id() < 0) {
            throw new SoldOut("item " + item.id());
        }
        return new Price(item, 100 * item.id());
    }

    private static void pass(CountDownLatch gate) throws InterruptedException {
        if (!gate.await(20, TimeUnit.SECONDS)) {
            throw new AssertionError("The gate stayed shut");
        }
    }

    private static final Duration LONG = Duration.ofSeconds(20);

    // pmap

    /** No exception is declared, so none has to be caught; a method reference's result infers. */
    public static List<Integer> inputOrder() throws InterruptedException {
        CountDownLatch secondIsDone = new CountDownLatch(1);
        List<Integer> lengths = Thrum.pmap(2, List.of("one", "three"), word -> {
            if (word.length() == 3) {
                pass(secondIsDone);
            } else {
                secondIsDone.countDown();
            }
            return word.length();
        });
        List<Integer> more = Thrum.pmap(3, List.of("a", "bb"), String::length);
        List<Integer> all = new ArrayList<>(lengths);
        all.addAll(more);
        return all;
    }

    /** The compiler infers the checked exception: this method has to declare it. */
    static List<Price> prices(List<Item> items) throws SoldOut, InterruptedException {
        return Thrum.pmap(8, items, item -> price(item));
    }

    public static List<Object> checkedException() throws InterruptedException {
        try {
            return List.of(prices(List.of(new Item(1), new Item(-7))));
        } catch (SoldOut e) {
            return List.of(e.getMessage(), e.getSuppressed()[0].getMessage().startsWith("Item 1 failed"));
        }
    }

    /** An item, a function and a result may be of other types than what is asked for. */
    public static List<Number> wildcards() throws InterruptedException {
        Mapper<Object, Integer, RuntimeException> hash = Object::hashCode;
        return Thrum.<Integer, Number, RuntimeException>pmap(2, List.of(1, 2), hash);
    }

    public static List<String> nulls() throws InterruptedException {
        return Thrum.pmap(2, Arrays.asList(null, "b"), word -> word == null ? "was null" : null);
    }

    public static List<Object> empty() throws InterruptedException {
        return Thrum.pmap(1, List.of(), item -> item);
    }

    public static String immutable() throws InterruptedException {
        List<Integer> results = Thrum.pmap(1, List.of(1), item -> item);
        try {
            results.set(0, 2);
            return "changed";
        } catch (UnsupportedOperationException e) {
            return results.toString();
        }
    }

    public static boolean freshVirtualThreads() throws InterruptedException {
        List<Thread> threads = Thrum.pmap(1, List.of(1, 2, 3), item -> Thread.currentThread());
        return threads.stream().allMatch(Thread::isVirtual) && threads.stream().distinct().count() == 3;
    }

    public static boolean contextClassLoader() throws InterruptedException {
        ClassLoader callers = Thread.currentThread().getContextClassLoader();
        ClassLoader another = new ClassLoader(callers) {
        };
        Thread.currentThread().setContextClassLoader(another);
        try {
            return Thrum.pmap(1, List.of(1), item -> Thread.currentThread().getContextClassLoader() == another).get(0);
        } finally {
            Thread.currentThread().setContextClassLoader(callers);
        }
    }

    /** What a ThreadLocal holds stays with the caller; what an InheritableThreadLocal does is inherited. */
    public static List<String> threadLocals() throws InterruptedException {
        ThreadLocal<String> plain = new ThreadLocal<>();
        ThreadLocal<String> inheritable = new InheritableThreadLocal<>();
        plain.set("caller");
        inheritable.set("caller");
        return Thrum.pmap(1, List.of(plain, inheritable), ThreadLocal::get);
    }

    /** Items that a caller has asked for when it waits for room: as many as run at once, and the next one. */
    public static int limit() throws InterruptedException {
        Thread caller = Thread.currentThread();
        AtomicInteger asked = new AtomicInteger();
        AtomicInteger askedBeforeAnyEnded = new AtomicInteger();
        Iterable<Integer> items = () -> IntStream.range(0, 20).peek(i -> asked.incrementAndGet()).boxed().iterator();
        Thrum.pmap(2, items, item -> {
            if (item < 2) {
                while (asked.get() < 3 || caller.getState() != Thread.State.WAITING) {
                    Thread.onSpinWait();
                }
                askedBeforeAnyEnded.compareAndSet(0, asked.get());
            }
            return item;
        });
        return askedBeforeAnyEnded.get();
    }

    /** One fails while the other waits for ever: the other is interrupted, and has ended when the failure is thrown. */
    public static List<Object> siblingCancel() throws InterruptedException {
        CountDownLatch waiting = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        AtomicReference<String> sibling = new AtomicReference<>("runs");
        IOException thrown = new IOException("first");
        try {
            Thrum.pmap(2, List.of("fails", "waits"), kind -> {
                if (kind.equals("fails")) {
                    pass(waiting);
                    throw thrown;
                }
                waiting.countDown();
                try {
                    pass(never);
                } catch (InterruptedException e) {
                    sibling.set("interrupted");
                    throw e;
                }
                return kind;
            });
            return List.of("no exception");
        } catch (IOException e) {
            return List.of(e == thrown, sibling.get());
        }
    }

    /** The items are asked for one after the other, by the calling thread, and not ahead of what has room. */
    public static List<Object> iteration() throws InterruptedException {
        Thread self = Thread.currentThread();
        AtomicInteger asked = new AtomicInteger();
        AtomicInteger foreign = new AtomicInteger();
        AtomicInteger ahead = new AtomicInteger();
        AtomicInteger called = new AtomicInteger();
        Iterable<Integer> items = () -> new Iterator<>() {
            @Override
            public boolean hasNext() {
                return asked.get() < 100;
            }

            @Override
            public Integer next() {
                if (Thread.currentThread() != self) {
                    foreign.incrementAndGet();
                }
                ahead.accumulateAndGet(asked.incrementAndGet() - called.get(), Math::max);
                return asked.get();
            }
        };
        List<Integer> results = Thrum.pmap(2, items, item -> {
            called.incrementAndGet();
            return item;
        });
        return List.of(results.size(), foreign.get(), ahead.get() <= 4);
    }

    public static String failingIteration() throws InterruptedException {
        IllegalStateException thrown = new IllegalStateException("no more");
        try {
            Thrum.pmap(2, () -> {
                throw thrown;
            }, item -> item);
            return "no exception";
        } catch (IllegalStateException e) {
            return e == thrown ? "same" : e.toString();
        }
    }

    // scope

    private static String user(int id) throws IOException {
        if (id < 0) {
            throw new FileNotFoundException("user " + id);
        }
        return "Ada";
    }

    private static List<String> cart(int id) {
        return List.of("teapot " + id);
    }

    /** Forks that throw checked exceptions: the parameter of the lambda says which. */
    static Page page(int id) throws IOException, InterruptedException {
        return Thrum.scope((Scope<IOException> scope) -> {
            Fork<String> user = scope.fork(() -> user(id));
            Fork<List<String>> cart = scope.fork(() -> cart(id));
            return new Page(user.get(), cart.get());
        });
    }

    public static String scopeReturns() throws IOException, InterruptedException {
        return page(7).toString();
    }

    /** The original is thrown, not what get() wraps it in. */
    public static List<Object> scopeThrowsTheOriginal() throws InterruptedException {
        try {
            return List.of(page(-1));
        } catch (IOException e) {
            return List.of(e.getClass().getSimpleName(), e.getMessage());
        }
    }

    /** No checked exceptions: nothing to say. */
    public static int scopeOfUnchecked() throws InterruptedException {
        return Thrum.scope(scope -> {
            var one = scope.fork(() -> 1);
            var two = scope.fork(() -> {
                var inner = scope.fork(() -> 1);
                return 1 + inner.get();
            });
            return one.get() + two.get();
        });
    }

    /** A fork whose value is not asked for fails: the scope still throws it, and its sibling has ended. */
    public static List<Object> forgottenFork() throws InterruptedException {
        CountDownLatch waiting = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        IOException thrown = new IOException("forgotten");
        AtomicReference<Fork<String>> sibling = new AtomicReference<>();
        AtomicReference<String> how = new AtomicReference<>("runs");
        try {
            Thrum.scope((Scope<IOException> scope) -> {
                sibling.set(scope.fork(() -> {
                    waiting.countDown();
                    try {
                        pass(never);
                    } catch (InterruptedException e) {
                        how.set("interrupted");
                        throw e;
                    }
                    return "late";
                }));
                scope.fork(() -> {
                    pass(waiting);
                    throw thrown;
                });
                return "body";
            });
            return List.of("no exception");
        } catch (IOException e) {
            return List.of(e == thrown, how.get(), sibling.get().isDone());
        }
    }

    public static List<Object> getOfFailedAndCancelled() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        RuntimeException thrown = new RuntimeException("no");
        AtomicReference<Fork<?>> failed = new AtomicReference<>();
        AtomicReference<Fork<?>> cancelled = new AtomicReference<>();
        CountDownLatch waiting = new CountDownLatch(1);
        try {
            Thrum.scope(scope -> {
                cancelled.set(scope.fork(() -> {
                    waiting.countDown();
                    pass(never);
                    return 0;
                }));
                pass(waiting);
                failed.set(scope.fork(() -> {
                    throw thrown;
                }));
                return 0;
            });
        } catch (RuntimeException e) {
            return List.of(e == thrown, get(failed.get()), get(cancelled.get()));
        }
        return List.of("no exception");
    }

    private static String get(Fork<?> fork) throws InterruptedException {
        try {
            return String.valueOf(fork.get());
        } catch (CompletionException e) {
            return "failed: " + e.getCause().getMessage();
        } catch (CancellationException e) {
            return "cancelled";
        }
    }

    /** A fork of the outer scope fails where an inner one asks for it: the inner throws what get() did, the outer the original. */
    public static List<Object> outerForkInInnerScope() throws InterruptedException {
        RuntimeException thrown = new RuntimeException("outer");
        CountDownLatch asked = new CountDownLatch(1);
        AtomicReference<Throwable> inside = new AtomicReference<>();
        try {
            Thrum.scope(outer -> {
                Fork<Integer> fork = outer.fork(() -> {
                    pass(asked);
                    throw thrown;
                });
                inside.set(outcome(() -> Thrum.scope(inner -> {
                    asked.countDown();
                    return getWhenDone(fork);
                })));
                return 0;
            });
            return List.of("no exception");
        } catch (RuntimeException e) {
            return List.of(e == thrown, inside.get() instanceof CompletionException, inside.get().getCause() == thrown);
        }
    }

    private static <R> R getWhenDone(Fork<R> fork) throws InterruptedException {
        while (!fork.isDone()) {
            Thread.onSpinWait();
        }
        return fork.get();
    }

    /** What get() throws is no second failure. */
    public static List<Object> nothingRidesOnTheOriginal() throws InterruptedException {
        RuntimeException thrown = new RuntimeException("alone");
        try {
            Thrum.scope(scope -> getWhenDone(scope.fork(() -> {
                throw thrown;
            })));
            return List.of("no exception");
        } catch (RuntimeException e) {
            return List.of(e == thrown, Arrays.stream(e.getSuppressed()).filter(t -> t.getCause() == thrown).count());
        }
    }

    /** A fork of an outer scope has the deadline of the withTimeout that it is started in. The sibling's failure comes later. */
    public static List<Object> lateForkOfAnOuterScope() throws InterruptedException {
        CountDownLatch waiting = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        IOException sibling = new IOException("sibling");
        AtomicReference<Throwable> told = new AtomicReference<>();
        try {
            Thrum.scope((Scope<IOException> scope) -> {
                scope.fork(() -> {
                    waiting.countDown();
                    try {
                        pass(never);
                    } catch (InterruptedException e) {
                        throw sibling;
                    }
                    return "late";
                });
                pass(waiting);
                AtomicReference<Fork<String>> late = new AtomicReference<>();
                try {
                    Thrum.withTimeout(Duration.ofMillis(20), () -> {
                        late.set(scope.fork(() -> {
                            pass(never);
                            return "late";
                        }));
                        return "in time";
                    });
                } catch (TimeoutException e) {
                    throw new AssertionError(e);
                }
                told.set(outcome(() -> getWhenDone(late.get())));
                return "body";
            });
            return List.of("no exception");
        } catch (IOException | CompletionException e) {
            return List.of(e.getClass().getSimpleName(), e.getCause().getClass().getSimpleName(),
                    Arrays.stream(e.getSuppressed()).filter(t -> t == sibling).count(),
                    told.get() instanceof CompletionException, told.get().getCause().getClass().getSimpleName(),
                    told.get().getMessage().equals(told.get().getCause().toString()));
        }
    }

    private static Fork<Integer> failedFork(RuntimeException thrown) throws InterruptedException {
        AtomicReference<Fork<Integer>> failed = new AtomicReference<>();
        outcome(() -> Thrum.scope(scope -> {
            failed.set(scope.fork(() -> {
                throw thrown;
            }));
            return 0;
        }));
        return failed.get();
    }

    /** The cause of a late body is what it threw, also where that is what get() threw. */
    public static boolean causeOfLateIsWhatGetThrew() throws InterruptedException {
        Fork<Integer> failed = failedFork(new RuntimeException(new InterruptedException()));
        AtomicReference<Throwable> thrown = new AtomicReference<>();
        Throwable late = outcome(() -> Thrum.withTimeout(Duration.ofMillis(20), () -> {
            outcome(() -> {
                pass(new CountDownLatch(1));
                return null;
            });
            thrown.set(outcome(failed::get));
            return raise(thrown.get());
        }));
        return late instanceof TimeoutException && late.getCause() == thrown.get();
    }

    /** Late work forks into a scope around it, which is not cancelled: the fork is late, and the scope fails. */
    public static List<Object> forkOfLateWork() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        AtomicBoolean begun = new AtomicBoolean();
        Throwable thrown = outcome(() -> Thrum.scope((Scope<TimeoutException> scope) -> Thrum.withTimeout(Duration.ofMillis(200), () -> {
            try {
                pass(never);
            } catch (InterruptedException e) {
                scope.fork(() -> {
                    begun.set(true);
                    return 1;
                });
            }
            return "handled";
        })));
        return List.of(thrown.getClass().getSimpleName(), thrown.getCause().getClass().getSimpleName(), begun.get());
    }

    /** What get() threw is suppressed as an exception of the JDK's. */
    public static List<Object> getOfFailedIsSuppressed() throws InterruptedException {
        RuntimeException thrown = new RuntimeException("fork");
        Fork<Integer> failed = failedFork(thrown);
        Throwable first = outcome(() -> Thrum.hedge(LONG, () -> {
            throw new IOException("first");
        }, failed::get));
        Throwable other = first.getSuppressed()[0];
        return List.of(first.getMessage(), other.getClass().getName(), other.getCause() == thrown);
    }

    /** The item that has asked is named all the same. */
    public static long getOfFailedInAnItem() throws InterruptedException {
        Fork<Integer> failed = failedFork(new RuntimeException("fork"));
        return outcome(() -> Thrum.pmap(1, List.of(7), item -> failed.get())).getSuppressed().length;
    }

    static final class Unprintable extends RuntimeException {
        private static final long serialVersionUID = 1;

        @Override
        public String toString() {
            throw new IllegalStateException("toString");
        }
    }

    public static List<Object> getOfUnprintable() throws InterruptedException {
        Unprintable thrown = new Unprintable();
        Throwable told = outcome(failedFork(thrown)::get);
        return List.of(told instanceof CompletionException, told.getCause() == thrown);
    }

    /** A body that handles a failed fork cannot save its scope. */
    public static String handledFailure() throws InterruptedException {
        try {
            return Thrum.scope(scope -> {
                Fork<String> fork = scope.fork(() -> {
                    throw new IllegalArgumentException("handled in vain");
                });
                try {
                    return fork.get();
                } catch (CompletionException | CancellationException e) {
                    return "saved";
                }
            });
        } catch (IllegalArgumentException e) {
            return e.getMessage();
        }
    }

    // hedge

    interface Shop {
        Price price(Item item) throws SoldOut;
    }

    static Price price(Shop nearby, Shop faraway, Item item) throws SoldOut, InterruptedException {
        return Thrum.hedge(Duration.ofMillis(80), () -> nearby.price(item), () -> faraway.price(item));
    }

    /** The one that is not needed is interrupted, and has ended when the value is returned. */
    public static List<Object> hedgeReturnsTheSecond() throws InterruptedException {
        AtomicReference<String> first = new AtomicReference<>("runs");
        String value = Thrum.hedge(Duration.ofMillis(1), () -> {
            try {
                pass(new CountDownLatch(1));
            } catch (InterruptedException e) {
                first.set("interrupted");
                throw e;
            }
            return "first";
        }, () -> "second");
        return List.of(value, first.get());
    }

    public static String hedgeReturnsTheFirst() throws InterruptedException {
        return Thrum.hedge(LONG, () -> "first", () -> "second");
    }

    public static String hedgeAtOnce() throws InterruptedException {
        return Thrum.hedge(Duration.ZERO, () -> {
            pass(new CountDownLatch(1));
            return "first";
        }, () -> "second");
    }

    /** The failure of the first, at once, though the second was to begin much later. */
    public static List<Object> hedgeThrowsTheFirst() throws InterruptedException {
        try {
            return List.of(Thrum.hedge(LONG, () -> price(new Item(-1)), () -> price(new Item(-2))));
        } catch (SoldOut e) {
            return List.of(e.getMessage(), Arrays.stream(e.getSuppressed()).anyMatch(s -> s.getMessage().equals("item -2")));
        }
    }

    // withTimeout

    public static String inTime() throws IOException, TimeoutException, InterruptedException {
        return Thrum.withTimeout(LONG, () -> user(1));
    }

    /** What the body forked is cancelled, and has ended when the exception is thrown. */
    public static List<Object> late() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        AtomicInteger ended = new AtomicInteger();
        AtomicInteger begun = new AtomicInteger();
        try {
            Thrum.withTimeout(Duration.ofMillis(50), () -> Thrum.pmap(2, List.of(1, 2), item -> {
                begun.incrementAndGet();
                try {
                    pass(never);
                } finally {
                    ended.incrementAndGet();
                }
                return item;
            }));
            return List.of("no exception");
        } catch (TimeoutException e) {
            return List.of(begun.get() == ended.get(), e.getMessage());
        }
    }

    /** What Thrum throws consists of the JDK's classes, and can be written to a stream. */
    public static String lateIsSerializable() throws IOException, InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        try {
            return Thrum.withTimeout(Duration.ofMillis(20), () -> Thrum.pmap(1, List.of(1), item -> {
                pass(never);
                return "in time";
            }).get(0));
        } catch (TimeoutException e) {
            new ObjectOutputStream(OutputStream.nullOutputStream()).writeObject(e);
            return e.getCause().getClass().getSimpleName();
        }
    }

    /** A body may call Clojure code, thrum.jdbc for instance: what Thrum throws there for the cancel is an exception of the JDK's, too. */
    public static String lateInClojureIsSerializable(Callable<Object> code) throws Exception {
        try {
            return "returned " + Thrum.withTimeout(Duration.ofMillis(200), code::call);
        } catch (TimeoutException e) {
            new ObjectOutputStream(OutputStream.nullOutputStream()).writeObject(e);
            return e.getCause().getClass().getName() + ": " + e.getCause().getMessage();
        }
    }

    /** The deadline of the caller holds inside a scope, and the inner, later one does not fire. */
    public static List<Object> nestedDeadlines() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        AtomicReference<String> inner = new AtomicReference<>("nothing");
        try {
            Thrum.withTimeout(Duration.ofMillis(50), () -> {
                try {
                    return Thrum.withTimeout(LONG, () -> {
                        pass(never);
                        return 1;
                    });
                } catch (Exception e) {
                    inner.set(e.getClass().getSimpleName());
                    throw e;
                }
            });
            return List.of("no exception");
        } catch (TimeoutException e) {
            return List.of("outer", inner.get());
        }
    }

    /** At the deadline a body that tries to fork once more is no failure of its own. */
    public static String forkAfterTheDeadline() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        try {
            return Thrum.withTimeout(Duration.ofMillis(50), () -> Thrum.scope(scope -> {
                try {
                    pass(never);
                } catch (InterruptedException e) {
                    scope.fork(() -> "one more");
                }
                return "body";
            }));
        } catch (TimeoutException e) {
            return "late";
        }
    }

    /** The body's own TimeoutException is its own, the same instance. */
    public static boolean timeoutOfTheBody() throws InterruptedException {
        TimeoutException thrown = new TimeoutException("mine");
        try {
            Thrum.withTimeout(LONG, () -> {
                throw thrown;
            });
            return false;
        } catch (TimeoutException e) {
            return e == thrown;
        }
    }

    /** A library may answer the interrupt with an exception that does not say so. */
    public static String anotherAnswerToTheInterrupt() throws InterruptedException {
        return told(() -> Thrum.withTimeout(Duration.ofMillis(20), () -> {
            try {
                pass(new CountDownLatch(1));
            } catch (InterruptedException e) {
                throw new IllegalStateException("The query was stopped");
            }
            return 1;
        }));
    }

    public static long hugeTimeout() throws InterruptedException, TimeoutException {
        return Thrum.withTimeout(Duration.ofSeconds(Long.MAX_VALUE), () -> 1L);
    }

    public static long smallTimeoutIsRoundedUp() throws InterruptedException {
        try {
            return Thrum.withTimeout(Duration.ofNanos(1), () -> {
                new CountDownLatch(1).await();
                return 1L;
            });
        } catch (TimeoutException e) {
            return e.getMessage().contains("within 1 ms") ? 0L : -1L;
        }
    }

    // Interrupts, and what others throw

    public static List<Object> interruptOfTheCaller() throws Exception {
        CountDownLatch waiting = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        AtomicInteger running = new AtomicInteger();
        FutureTask<String> work = new FutureTask<>(() -> {
            try {
                Thrum.pmap(1, List.of(1), item -> {
                    running.incrementAndGet();
                    waiting.countDown();
                    try {
                        pass(never);
                    } finally {
                        running.decrementAndGet();
                    }
                    return item;
                });
                return "no exception";
            } catch (InterruptedException e) {
                return "interrupted, running: " + running.get() + ", flag: " + Thread.currentThread().isInterrupted();
            }
        });
        Thread caller = Thread.ofPlatform().daemon().start(work);
        pass(waiting);
        caller.interrupt();
        return List.of(work.get(20, TimeUnit.SECONDS));
    }

    /** Throws what it is given, through every method; returns what came out. */
    public static List<Throwable> through(Throwable t) {
        Iterable<Object> unreadable = () -> raise(t);
        return List.of(
                outcome(() -> Thrum.pmap(1, unreadable, item -> item)),
                outcome(() -> Thrum.pmap(1, List.of(1), item -> raise(t))),
                outcome(() -> Thrum.scope(scope -> raise(t))),
                outcome(() -> Thrum.scope(scope -> scope.fork(() -> raise(t)))),
                outcome(() -> Thrum.scope(scope -> scope.fork(() -> raise(t)).get())),
                outcome(() -> Thrum.withTimeout(LONG, () -> raise(t))),
                outcome(() -> Thrum.withTimeout(LONG, () -> Thrum.scope(s -> Thrum.pmap(1, List.of(1), item -> raise(t))))));
    }

    @SuppressWarnings("unchecked")
    private static <R, X extends Throwable> R raise(Throwable t) throws X {
        throw (X) t;
    }

    private interface Attempt {
        Object run() throws Throwable;
    }

    private static Throwable outcome(Attempt attempt) {
        try {
            return new AssertionError("returned " + attempt.run());
        } catch (Throwable t) {
            return t;
        }
    }

    private static String told(Attempt attempt) {
        Throwable t = outcome(attempt);
        return t.getClass().getSimpleName() + ": " + t.getMessage();
    }

    // Misuse

    public static List<String> misuse() {
        return List.of(
                told(() -> Thrum.pmap(0, List.of(1), item -> item)),
                told(() -> Thrum.pmap(-1, List.of(1), item -> item)),
                told(() -> Thrum.pmap(1, null, item -> item)),
                told(() -> Thrum.pmap(1, () -> null, item -> item)),
                told(() -> Thrum.pmap(1, List.of(1), null)),
                told(() -> Thrum.scope(null)),
                told(() -> Thrum.scope(scope -> scope.fork(null))),
                told(() -> Thrum.withTimeout(null, () -> 1)),
                told(() -> Thrum.withTimeout(LONG, null)),
                told(() -> Thrum.withTimeout(Duration.ZERO, () -> 1)),
                told(() -> Thrum.withTimeout(Duration.ofMillis(-5), () -> 1)),
                told(() -> Thrum.hedge(null, () -> 1, () -> 1)),
                told(() -> Thrum.hedge(LONG, null, () -> 1)),
                told(() -> Thrum.hedge(LONG, () -> 1, null)),
                told(() -> Thrum.hedge(Duration.ofMillis(-1), () -> 1, () -> 1)));
    }

    public static List<String> closedScope() throws InterruptedException {
        AtomicReference<Scope<RuntimeException>> leaked = new AtomicReference<>();
        Thrum.scope(scope -> {
            leaked.set(scope);
            return null;
        });
        return List.of(told(() -> leaked.get().fork(() -> 1)),
                told(() -> Thrum.scope(another -> leaked.get().fork(() -> 1))));
    }

    /** A fork has failed, so the body is interrupted; then it forks once more. */
    public static String cancelledScope() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        AtomicReference<String> then = new AtomicReference<>("nothing");
        outcome(() -> Thrum.scope(scope -> {
            scope.fork(() -> {
                throw new IllegalArgumentException("cancels");
            });
            try {
                pass(never);
            } catch (InterruptedException e) {
                then.set(told(() -> scope.fork(() -> 1)));
            }
            return 0;
        }));
        return then.get();
    }

    /** A thread that works for no scope forks into a scope that is open. */
    public static String foreignThread() throws InterruptedException {
        Exchanger<Scope<RuntimeException>> handed = new Exchanger<>();
        FutureTask<String> foreign = new FutureTask<>(() -> {
            Scope<RuntimeException> scope = handed.exchange(null);
            return told(() -> scope.fork(() -> 1));
        });
        Thread.ofVirtual().start(foreign);
        return Thrum.scope(scope -> {
            handed.exchange(scope);
            try {
                return foreign.get();
            } catch (java.util.concurrent.ExecutionException e) {
                return e.toString();
            }
        });
    }

    public static String waitsForItself() throws InterruptedException {
        Exchanger<Fork<String>> itself = new Exchanger<>();
        return told(() -> Thrum.scope(scope -> {
            Fork<String> fork = scope.fork(() -> itself.exchange(null).get());
            itself.exchange(fork);
            return fork.get();
        }));
    }

    public static String inCancelledWork() throws InterruptedException {
        CountDownLatch never = new CountDownLatch(1);
        AtomicReference<String> then = new AtomicReference<>();
        try {
            Thrum.withTimeout(Duration.ofMillis(50), () -> {
                try {
                    pass(never);
                } catch (InterruptedException e) {
                    then.set(outcome(() -> Thrum.pmap(1, List.of(1), item -> item)).getClass().getSimpleName());
                }
                throw new CancellationException();
            });
            return "no exception";
        } catch (TimeoutException e) {
            return then.get();
        }
    }
}

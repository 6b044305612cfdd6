package io.github.thrumclj.samples;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;

import clojure.java.api.Clojure;
import io.github.thrumclj.Thrum;

/** The first call in a process, with its interrupt flag set, while Clojure's own loading of Thrum begins on another thread. */
public final class FirstCall {
    private FirstCall() {
    }

    public static void main(String[] args) throws Exception {
        Clojure.var("clojure.core", "identity").invoke("Clojure is loaded");
        CountDownLatch go = new CountDownLatch(1);
        FutureTask<Object> other = new FutureTask<>(() -> {
            go.await();
            return Clojure.var("clojure.core", "requiring-resolve").invoke(Clojure.read("thrum.core/with-scope-call"));
        });
        Thread.ofPlatform().daemon().start(other);
        Thread.currentThread().interrupt();
        go.countDown();
        try {
            Thrum.load();
            boolean interrupted = Thread.interrupted();
            System.out.println(Thrum.scope(scope -> scope.fork(() -> "works").get()) + ", flag: " + interrupted + ", " + other.get());
        } catch (Exception e) {
            System.out.println(e.getClass().getSimpleName() + " of " + e.getCause());
        }
        System.exit(0);
    }
}

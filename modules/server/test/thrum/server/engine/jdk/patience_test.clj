(ns thrum.server.engine.jdk.patience-test
  "Threads that block on one connection of the JDK's server, each for as long as it may."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jdk.patience :as patience])
  (:import
   (java.io InputStream OutputStream)
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.concurrent.locks ReentrantLock)
   (thrum.server.engine.jdk.patience Patience)))

(set! *warn-on-reflection* true)

(defn- kept
  "Calls (f patience) on a thread that a keeper looks at every few ms."
  [f]
  (let [keeper (patience/keeper [100])]
    (try
      (patience/run! keeper #(f (patience/here keeper)) 60000)
      (finally (patience/close! keeper)))))

(defn- blocking
  "Starts a thread that blocks on the connection for so long at most, and returns what is delivered
  when it has been interrupted: whether the interrupt outlived that."
  [patience ms]
  (let [entered (CountDownLatch. 1), outcome (promise)]
    (Thread/startVirtualThread
      (fn []
        (try
          (patience/in-time [_guard patience ms]
            (.countDown entered)
            (.await (CountDownLatch. 1)))
          (catch InterruptedException _
            (deliver outcome {:still (.isInterrupted (Thread/currentThread))})))))
    (.await entered)
    outcome))

(deftest a-cut-ends-what-begins-to-block-at-that-moment
  (kept (fn [patience]
          (let [blocks! #(.await (CountDownLatch. 1) 10 TimeUnit/SECONDS)
                ;; Behind the check the cut would not be seen.
                cut! #(patience/fire! patience false)
                out (patience/output (proxy [OutputStream] []
                                       (write [_ _ _] (blocks!))
                                       (flush [] (blocks!)))
                                     cut! patience 60000)
                in (patience/input (proxy [InputStream] [] (read [_ _ _] (blocks!) -1))
                                   (ReentrantLock.) cut! patience 60000)]
            (patience/leave! patience)
            (is (thrown? InterruptedException (.write out (byte-array 1) 0 1)))
            (is (thrown? InterruptedException (.flush out)))
            (is (thrown? InterruptedException (.read in (byte-array 1) 0 1)))))))

(deftest each-thread-that-blocks-has-its-own-time
  (kept (fn [patience]
          (let [slow (blocking patience 60000), quick (blocking patience 50)]
            (patience/in-time [_guard patience 60000])
            (is (= {:still false} (deref quick 10000 nil)) "the exchange's thread blocks no more")
            (is (not (realized? slow)))
            (patience/fire! patience false)
            (is (= {:still false} (deref slow 10000 nil)))
            (is (not (Thread/interrupted)) "which does not block")))))

(deftest nothing-is-kept-of-what-has-run
  (let [keeper (patience/keeper [100]), kept (atom nil)]
    (try
      (is (thrown? Error (patience/run! keeper
                                        #(do (reset! kept (patience/here keeper))
                                             (throw (Error. "for the test")))
                                        60000)))
      (is (= [true nil] [(some? @kept) (patience/here keeper)]))
      (finally (patience/close! keeper)))))

(defn- others
  "Returns the guards of the threads beside that of the exchange."
  [patience]
  (.get (doto (.getDeclaredField Patience "others") (.setAccessible true)) patience))

(deftest the-guard-of-another-thread-is-forgotten
  (kept (fn [patience]
          (is (= 1 (deref (future (patience/in-time [_guard patience 60000]
                                    (count (others patience))))
                          5000 :late)))
          (is (empty? (others patience))))))

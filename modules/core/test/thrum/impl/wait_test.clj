(ns thrum.impl.wait-test
  "Waits: what is ready is seen, and no interrupt is lost."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(deftest what-is-ready-when-the-waiter-stands-is-not-waited-for
  (let [waiter (AtomicReference.)]
    (with-redefs [deadline/park-until (fn [_ _] (throw (ex-info "It parks" {})))]
      (is (true? (wait/await-signal! nil waiter nil #(some? (.get waiter))))))))

(deftest what-is-ready-is-not-refused-to-cancelled-work
  (let [waited (promise)]
    (is (thrown? CancellationException
          (t/with-scope [s]
            (t/cancel! s)
            (deliver waited (wait/until nil nil (constantly true)))
            (t/checkpoint))))
    (is (true? (deref waited 0 :nothing)))))

(defn- parked? [^Thread thread]
  (and (= Thread$State/WAITING (.getState thread)) (not (.isInterrupted thread))))

(defn- waiting
  "Calls f on a thread of its own, with a function that waits anyway. Returns [thread finish!
  look!]: finish! ends the wait and returns the outcome of f; look! has the thread look in vain."
  [f]
  (let [ready (AtomicBoolean.), looks (AtomicLong.)
        ready? #(do (.incrementAndGet looks) (.get ready))
        [^Thread thread outcome] (gate/start "waits"
                                   (fn [] (f #(wait/until-anyway nil nil ready?))))]
    [thread
     #(do
        (.set ready true)
        (LockSupport/unpark thread)
        (deref outcome 5000 :late))
     #(let [before (.get looks)]
        (LockSupport/unpark thread)
        (is (gate/eventually 5000 (fn [] (< before (.get looks))))))]))

(deftest an-interrupt-of-a-wait-that-goes-on-anyway-stays
  (let [[^Thread thread finish! look!] (waiting #(do (%) (Thread/interrupted)))]
    (is (gate/eventually 5000 #(parked? thread)))
    (dotimes [_ 2]
      (.interrupt thread)
      (is (gate/eventually 5000 #(parked? thread)) "it waits again, and does not spin"))
    (look!)
    (is (= {:value true} (finish!)))))

(deftest an-interrupt-of-such-a-wait-stays-although-a-cancel-follows
  (let [scope (promise)
        in-scope (fn [wait]
                   (t/with-scope [s] (deliver scope s) (wait))
                   (Thread/interrupted))
        [^Thread thread finish!] (waiting in-scope)]
    (is (gate/eventually 5000 #(parked? thread)))
    (.interrupt thread)
    (is (gate/eventually 5000 #(parked? thread)))
    (t/cancel! (deref scope 5000 nil))
    (is (= {:value true} (finish!)))))

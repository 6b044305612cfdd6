(ns thrum.memory-test
  "What is held while work runs, and after it has ended."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.lang.ref Reference WeakReference)
   (java.util HashSet)
   (java.util.concurrent Callable CompletableFuture Executor ExecutorService)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- collected? [^WeakReference reference]
  (boolean (gate/eventually 10000
                            #(or (nil? (.get reference))
                                 (do
                                   (System/gc)
                                   (nil? (.get reference)))))))

;; The head of a lazy item

(defn- lazy-item []
  (map (fn [_] (Object.)) (iterate inc 0)))

(defn- items
  "Returns a lazy seq of one lazy item that nothing else holds."
  []
  (map (fn [_] (lazy-item)) (list 1)))

(defn- lets-go?
  "Walks into the item; returns whether its head is collected meanwhile."
  [item]
  (let [head (WeakReference. (first item)), walked (drop 10 item)]
    (first walked)
    (collected? head)))

(defn- let-go-of-both? [a b]
  (and (lets-go? a) (lets-go? b)))

(def ^:private ways
  "By name: a function of nothing that has lets-go? called on a lazy item, and returns what that
  returned."
  {"clojure.core/pmap" #(first (clojure.core/pmap lets-go? (items)))
   "future" #(let [item (lazy-item)] @(t/future (lets-go? item)))
   "fork" #(let [item (lazy-item)] (t/with-scope [s] @(t/fork s (lets-go? item))))
   "all" #(let [item (lazy-item)] (first (t/all (lets-go? item))))
   "pvalues" #(let [item (lazy-item)] (first (t/pvalues (lets-go? item))))
   "future-via a pool" #(let [item (lazy-item)
                              direct (reify
                                       Executor
                                       (execute [_ r] (.run r)))]
                          @(t/future-via [direct] (lets-go? item)))
   "with-executor" #(let [item (lazy-item)]
                      (t/with-executor [e] @(t/future-via [e] (lets-go? item))))
   "abandon-on-interrupt" #(let [item (lazy-item)]
                             (t/abandon-on-interrupt (fn []) (lets-go? item)))
   "with-timeout" #(let [item (lazy-item)] (t/with-timeout 60000 (lets-go? item)))
   "pmap" #(first (t/pmap 2 lets-go? (items)))
   "pmap that wraps" #(first
                        (t/pmap {:limit 2, :wrap (fn [body] (fn [] (body)))} lets-go? (items)))
   "pmap of two collections" #(first (t/pmap 2 let-go-of-both? (items) (items)))
   "pmap in batches" #(first (t/pmap {:limit 2, :batch 2} lets-go? (items)))
   "upmap" #(first (t/upmap 2 lets-go? (items)))
   "fmap" #(deref (first (t/fmap 2 lets-go? (items))))
   "map" #(first (t/map lets-go? (items)))
   "pmapv" #(first (t/pmapv 2 lets-go? (items)))
   "pmapv of two collections" #(first (t/pmapv 2 let-go-of-both? (items) (items)))
   "prun!" #(let [result (promise)]
              (t/prun! 2 (fn [item] (deliver result (lets-go? item))) (items))
              @result)
   "pmap's transducer" #(first (into [] (t/pmap 2 lets-go?) (items)))
   ;; Not by sequence: the iterators that it goes through hold the last item.
   "pmap's transducer, of two items" #(let [rf ((t/pmap 2 let-go-of-both?) conj)]
                                        (first (rf (rf [] (lazy-item) (lazy-item)))))
   "upmap's transducer" #(first (into [] (t/upmap 2 lets-go?) (items)))
   "for" #(first (t/for [item (items)] (lets-go? item)))
   "pfor" #(first (t/pfor 2 [item (items)] (lets-go? item)))})

(deftest the-head-of-an-item-is-not-held-while-it-is-worked-on
  (doseq [[way f] ways]
    (is (true? (gate/in-time 30000 f)) way)))

(defn- holds-on?
  [item]
  (let [head (WeakReference. (first item))
        held? (not (gate/eventually 50
                                    #(do
                                       (System/gc)
                                       (nil? (.get head)))))]
    (first item)
    held?))

(deftest a-head-that-is-held-is-seen
  (is (true? (first (t/pmap 2 holds-on? (items))))))

;; What a task that has ended holds

(def ^:dynamic *bound* nil)

(def ^:private kept-tasks
  "By name: a function of f that returns a task which has ended, and was started where *bound* is
  bound; f is called in it."
  {"future" (fn [f] (doto (t/future (f)) deref))
   "future-call" (fn [f] (doto (t/future-call f) deref))
   "future that failed" (fn [f]
                          (doto (t/future (f) (throw (Exception. "no")))
                            (-> deref
                                (try
                                  (catch Exception _)))))
   "future that was cancelled" (fn [f]
                                 (let [running (promise)
                                       task
                                       (t/future (f) (deliver running true) (Thread/sleep 60000))]
                                   @running
                                   (future-cancel task)
                                   task))
   "future-via" (fn [f]
                  (let [direct (reify
                                 Executor
                                 (execute [_ r] (.run r)))]
                    (doto (t/future-via [direct] (f)) deref)))
   "future-via that is never run" (fn [f]
                                    (let [idle (reify
                                                 Executor
                                                 (execute [_ _]))]
                                      (doto (t/future-via [idle] (f)) future-cancel)))
   "submit" (fn [f] (t/with-executor [e] (doto (.submit ^ExecutorService e ^Callable f) .get)))
   "fork" (fn [f] (t/with-scope [s] (doto (t/fork s (f)) deref)))
   "fork, named" (fn [f] (t/with-scope [s] (doto (t/fork s {:name "kept"} (f)) deref)))
   "fork inside a deadline"
   (fn [f] (t/with-scope [s] (t/with-timeout 60000 (doto (t/fork s (f)) deref))))
   "daemon" (fn [f] (t/with-scope [s] (doto (t/fork s {:daemon? true} (f)) deref)))
   "fmap" (fn [f] (doto (first (t/fmap 2 (fn [_] (f)) [1])) deref))})

(defn- check-let-go
  "Checks that each [task reference], by name, lets go of what the reference is to. All are made
  before the first collection, which takes most of the time."
  [kept]
  (doseq [[what [_ reference]] kept]
    (is (collected? reference) what))
  (Reference/reachabilityFence kept))

(deftest a-task-that-has-ended-does-not-hold-its-bindings
  (check-let-go
    (update-vals kept-tasks
                 (fn [start]
                   (gate/in-time 5000
                                 (fn []
                                   (let [big (Object.)]
                                     [(binding [*bound* big] (start (fn [] nil)))
                                      (WeakReference. big)])))))))

(deftest a-task-that-has-ended-does-not-hold-what-its-body-closed-over
  (check-let-go
    (update-vals
      kept-tasks
      (fn [start]
        (gate/in-time 5000
                      (fn []
                        (let [big (Object.)]
                          [(start (fn [] (hash big) nil)) (WeakReference. big)])))))))

(deftest a-task-that-has-ended-does-not-hold-the-thread-that-ran-it
  (check-let-go
    (update-vals (dissoc kept-tasks "future-via that is never run")
                 (fn [start]
                   (let [thread (promise)
                         ;; A form asks whose the thread's interrupt is.
                         body (fn []
                                (deliver thread (WeakReference. (Thread/currentThread)))
                                (t/with-timeout 60000 nil))
                         task (gate/in-time 5000 #(t/with-timeout 60000 (start body)))]
                     [task @thread])))))

(deftest a-task-that-has-ended-does-not-hold-its-siblings-results
  (doseq [[what start] {"fmap" (fn [f]
                                 (let [tasks (doall (t/fmap 4 f (range 4)))]
                                   (run! deref tasks)
                                   (first tasks)))
                        "fork" (fn [f]
                                 (t/with-scope [s]
                                   (let [tasks (mapv (fn [i] (t/fork s (f i))) (range 4))]
                                     (run! deref tasks)
                                     (first tasks))))}]
    (let [references (atom {})
          task (start (fn [i]
                        (let [result (Object.)]
                          (swap! references assoc i (WeakReference. result))
                          result)))]
      (is (every? collected? (vals (dissoc @references 0))) what)
      (is (some? (.get ^WeakReference (@references 0))) what)
      (Reference/reachabilityFence task))))

(deftest prun!-lets-go-of-the-values-of-items-that-have-ended
  (let [values (atom []), last-begun (promise), gate (promise)
        call (fn [i]
               (if (= i 40)
                 (do (deliver last-begun true) @gate)
                 (let [value (Object.)]
                   (swap! values conj (WeakReference. value))
                   value)))
        run (t/future (t/prun! 8 call (range 41)))]
    @last-begun
    (is (gate/eventually 5000 #(= 40 (count @values))))
    (is (every? collected? @values))
    (deliver gate :go)
    (is (nil? @run))))

(deftest a-batch-that-was-taken-is-not-held
  (let [results (t/pmap {:limit 1, :batch 2} (fn [_] (Object.)) (range 100))
        value (WeakReference. (first results))
        more (drop 10 results)]
    (is (some? (first more)))
    (is (collected? value))
    (is (some? (last more)))))

;; The head of a schedule

(deftest the-waits-of-a-schedule-that-are-over-are-not-held
  (let [head (promise), calls (atom 0)
        schedule #(let [waits (map (fn [_] 0) (iterate inc 0))]
                    (deliver head (WeakReference. waits))
                    waits)]
    (is (true? (t/retry {:schedule (schedule), :attempts 9}
                 (if (= 3 (swap! calls inc))
                   (collected? @head)
                   (throw (Exception. "again"))))))))

;; What waits for a task

(defn- waiters
  "Returns how many threads and functions wait for the task."
  [task]
  (let [waiters (.get (doto (.getDeclaredField Task "waiters") (.setAccessible true)) task)]
    (cond
      (nil? waiters) 0
      (instance? HashSet waiters) (.size ^HashSet waiters)
      :else 1)))

(defn- wait-in-vain
  "Realises the seq on an interrupted thread."
  [tasks]
  (.interrupt (Thread/currentThread))
  (is (instance? InterruptedException (thrown (first tasks)))))

(deftest a-running-task-does-not-hold-what-waits-for-it-no-more
  (let [gate (promise), task (t/future @gate), other (t/future @gate)
        begin (fn [] [(t/as-completed [task other]) (t/->completable-future task)])]
    (let [[tasks ^CompletableFuture future] (begin)]
      (is (= 2 (waiters task)))
      (wait-in-vain tasks)
      (is (= 1 (waiters task)))
      (is (.complete future :other))
      (is (= [0 0] (map waiters [task other]))))
    (dotimes [_ 10]
      (let [[tasks ^CompletableFuture future] (begin)]
        (thrown (t/with-scope [s] (t/cancel! s) (first tasks)))
        (.completeExceptionally future (Exception. "no"))))
    (is (= [0 0] (map waiters [task other])))
    (deliver gate true)
    (is (true? (t/value task 5000 :late)))
    (is (true? (t/value other 5000 :late)))))

(deftest a-returned-permit-holds-no-other
  (let [limiter (t/limiter 3)
        [a b c] (repeatedly 3 #(t/acquire! limiter))
        others (mapv #(WeakReference. %) [a c])]
    (run! t/release! [b a c])
    (is (every? collected? others))
    (Reference/reachabilityFence b)))

(ns thrum.limit-test
  "Permits: who gets one, in which order, and that none is ever lost."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.group :as group]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.limit :as limit]
   [thrum.impl.place :as place]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.lang.management ManagementFactory)
   (java.util HashMap LinkedHashSet Random)
   (java.util.concurrent CancellationException CountDownLatch TimeUnit)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.function LongBinaryOperator)
   (thrum.impl.limit ILimiter IPermit Limiter)
   (thrum.impl.place Place)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- fork! [scope f]
  (let [owner (reify completion/CompletionHandler
                (failed [_ _ _])
                (ended [_ task] (group/child-left! (group/children-of scope) task)))]
    (doto (task/task (context/capture nil scope) owner 0 f)
      (->> (group/start! scope)))))

(defn- waiting? [limiter n]
  (gate/eventually 10000 #(= n (:waiting (datafy limiter)))))

(defn- waiter
  "Starts a thread that asks for a permit and keeps it; returns [thread outcome] when it waits as
  the n-th."
  [limiter n]
  (let [started (gate/start (str "waiter-" n) #(limit/acquire! limiter))]
    (is (waiting? limiter n))
    started))

(defn- permit-of [[_ outcome]]
  (:value (deref outcome 10000 {:value :late})))

(defn- failure-of [[_ outcome]]
  (:thrown (deref outcome 10000 {:thrown :late})))

(defn- at-rest? [limiter]
  (let [{:keys [in-use waiting owners]} (limit/facts limiter)]
    (and (= 0 in-use waiting)
         (= {} owners)
         (.isEmpty ^HashMap (.-owned ^Limiter limiter)))))

(defn- facts [t]
  (select-keys (ex-data t) [:type :limiter :permits :in-use :waiting :queue :wait-ms]))

;; Who gets one

(deftest a-free-permit-is-had-at-once
  (let [limiter (limit/limiter 1 {})]
    (is (= :value (limit/call-with limiter (fn [] (is (= 1 (:in-use (datafy limiter)))) :value))))
    (is (= :again (limit/call-with limiter (constantly :again))))
    (is (at-rest? limiter))))

(deftest permits-are-handed-out-in-the-order-of-asking
  (let [limiter (limit/limiter 1 {})
        order (atom [])
        first-permit (limit/acquire! limiter)
        waiters (mapv (fn [i]
                        (let [[_ outcome] (gate/start
                                            "waiter"
                                            #(limit/call-with limiter
                                               (fn [] (swap! order conj i))))]
                          (is (waiting? limiter (inc i)))
                          outcome))
                      (range 20))]
    (limit/release! first-permit)
    (run! #(deref % 10000 :late) waiters)
    (is (= (range 20) @order))
    (is (at-rest? limiter))))

(deftest nobody-overtakes-those-who-wait
  (let [limiter (limit/limiter 1 {}), held (limit/acquire! limiter), longest (waiter limiter 1)]
    (limit/release! held)
    ;; Whether the waiter has woken up yet or not, the permit is its own.
    (is (= 1 (:in-use (datafy limiter))))
    (let [late (gate/start "late" #(limit/acquire! limiter))]
      (is (waiting? limiter 1))
      (limit/release! (permit-of longest))
      (limit/release! (permit-of late)))
    (is (at-rest? limiter))))

(deftest at-most-so-many-are-inside
  (let [limiter (limit/limiter 3 {})
        inside (AtomicLong.)
        most (AtomicLong.)
        scope (group/group "s" nil)
        enter #(let [n (.incrementAndGet inside)]
                 (when (< (.get most) n) (.set most n))
                 (.decrementAndGet inside))]
    (dotimes [_ 8] (fork! scope (fn [] (dotimes [_ 3000] (limit/call-with limiter enter)))))
    (gate/in-time 20000 #(group/join! scope))
    (is (<= 1 (.get most) 3))
    (is (at-rest? limiter))))

(deftest any-thread-may-return-a-permit
  (let [limiter (limit/limiter 1 {}), permit (limit/acquire! limiter)]
    (gate/in-time 10000 #(limit/release! permit))
    (is (at-rest? limiter))
    (testing "and its first holder may ask again"
      (with-open [_ (limit/acquire! limiter)]
        (is (= 1 (:in-use (datafy limiter)))))
      (is (at-rest? limiter)))))

(deftest a-child-does-not-inherit-a-permit
  (let [limiter (limit/limiter 1 {:queue 0}), scope (group/group "s" nil), refusal (promise)]
    (limit/call-with limiter
                     (fn []
                       (fork! scope (fn [] (deliver refusal (thrown (limit/acquire! limiter)))))
                       (group/join! scope)))
    (is (= :thrum/rejected (:type (ex-data @refusal))))
    (is (at-rest? limiter))))

;; Who does not

(deftest a-full-queue-rejects-at-once
  (let [limiter (limit/limiter 1 {:queue 1, :name "db"})
        held (limit/acquire! limiter)
        waiting (waiter limiter 1)
        refusal (failure-of (gate/start "late" #(limit/acquire! limiter)))]
    (is (= {:type :thrum/rejected, :limiter "db", :permits 1, :in-use 1, :waiting 1, :queue 1}
           (facts refusal)))
    (is (= "No permit of db without waiting, and the queue of 1 is full (1 of 1 in use, 1 waiting)"
           (ex-message refusal)))
    (is (= 1 (:rejected (datafy limiter))))
    (limit/release! held)
    (limit/release! (permit-of waiting))
    (is (at-rest? limiter))))

(deftest a-wait-has-its-end
  (let [limiter (limit/limiter 2 {:wait-ms 5})
        held (limit/acquire! limiter)
        [_ other] (gate/start "other" #(limit/acquire! limiter))
        _ (deref other 10000 :late)
        refusal (failure-of (gate/start "late" #(limit/acquire! limiter)))]
    (is (= {:type :thrum/rejected, :permits 2, :in-use 2, :waiting 0, :wait-ms 5} (facts refusal)))
    (is (= "No permit within 5 ms (2 of 2 in use, 0 waiting)" (ex-message refusal)))
    (is (= 1 (:rejected (datafy limiter))))
    (run! limit/release! [held (:value @other)])
    (is (at-rest? limiter))))

(deftest no-wait-at-all-is-a-wait-of-0-ms
  (let [limiter (limit/limiter 1 {:wait-ms 0})]
    (with-open [_ (limit/acquire! limiter)]
      (is (= :thrum/rejected
             (:type (ex-data (failure-of (gate/start "late" #(limit/acquire! limiter))))))))
    (is (= :value (limit/call-with limiter (constantly :value))))
    (is (at-rest? limiter))))

(defn- nested
  "Calls f inside n calls that hold a permit each."
  [limiter n f]
  (if (zero? n)
    (f)
    (limit/call-with limiter #(nested limiter (dec n) f))))

(deftest a-thread-whose-own-permits-are-all-there-are-would-wait-for-itself
  (doseq [n [1 2 5]
          options [{} {:queue 0} {:wait-ms 1}]
          ask [limit/acquire! #(limit/call-with % (constantly :late))]]
    (let [limiter (limit/limiter n (assoc options :name "db"))
          refusal (gate/in-time 5000 (fn [] (nested limiter n #(thrown (ask limiter)))))]
      (is (= {:type :thrum/deadlock, :limiter "db", :permits n, :in-use n, :waiting 0}
             (dissoc (facts refusal) :queue :wait-ms)))
      (is (= "This thread itself holds too many permits of db, and would wait for ever"
             (ex-message refusal)))
      (is (at-rest? limiter))
      (is (= 0 (:rejected (datafy limiter)))))))

(deftest a-thread-may-hold-several-permits-while-some-are-free
  (let [limiter (limit/limiter 5 {})]
    (is (= :value
           (gate/in-time
             5000
             (fn [] (nested limiter 4 (fn [] (with-open [_ (limit/acquire! limiter)] :value)))))))
    (is (= :value
           (limit/call-with limiter
                            (fn [] (limit/call-with (limit/limiter 1 {}) (constantly :value))))))
    (is (at-rest? limiter))))

(deftest a-thread-waits-for-its-own-permit-that-another-thread-may-return
  (doseq [[permits own] [[1 0] [2 0] [2 1] [3 2]]]
    (let [limiter (limit/limiter permits {})
          handed-over (promise)
          asking (gate/start "dispatcher"
                             (fn []
                               (nested limiter
                                       own
                                       (fn []
                                         (let [others (vec (repeatedly (- permits own)
                                                                       #(limit/acquire! limiter)))]
                                           (deliver handed-over others)
                                           (limit/release! (limit/acquire! limiter))
                                           (run! limit/release! (rest others))
                                           :value)))))]
      (is (vector? (deref handed-over 10000 :late)))
      (is (waiting? limiter 1))
      (run! limit/release! (take 1 (deref handed-over 0 nil)))
      (is (= :value (permit-of asking)))
      (is (at-rest? limiter)))))

(deftest a-dispatcher-hands-its-permits-to-the-tasks-of-its-jobs
  (doseq [permits [1 2 3]]
    (let [limiter (limit/limiter permits {})
          scope (group/group "s" nil)
          inside (AtomicLong.)
          most (AtomicLong.)
          done (AtomicLong.)
          job (fn [permit]
                (try
                  (.accumulateAndGet most
                                     (.incrementAndGet inside)
                                     (reify
                                       LongBinaryOperator
                                       (applyAsLong [_ a b] (max a b))))
                  (.incrementAndGet done)
                  (finally
                    (.decrementAndGet inside)
                    (limit/release! permit))))]
      (gate/in-time 10000
                    (fn []
                      (dotimes [_ 100]
                        (let [permit (limit/acquire! limiter)] (fork! scope #(job permit))))
                      (group/join! scope)))
      (is (= 100 (.get done)))
      (is (<= 1 (.get most) permits))
      (is (at-rest? limiter)))))

(deftest who-waits-for-what-it-alone-could-return-is-freed-by-a-cancel
  (let [limiter (limit/limiter 1 {})
        [^Thread thread :as asking] (gate/start "own"
                                                #(let [permit (limit/acquire! limiter)]
                                                   (try
                                                     (limit/acquire! limiter)
                                                     (finally
                                                       (limit/release! permit)))))]
    (is (waiting? limiter 1))
    (.interrupt thread)
    (is (instance? InterruptedException (failure-of asking)))
    (is (at-rest? limiter))))

(deftest a-permit-is-returned-once
  (let [limiter (limit/limiter 2 {})
        permit (limit/acquire! limiter)
        other (:value @(second (gate/start "other" #(limit/acquire! limiter))))]
    (limit/release! permit)
    (is (= :thrum/invalid (:type (ex-data (thrown (limit/release! permit))))))
    (is (= 1 (:in-use (datafy limiter))))
    (limit/release! other)
    (is (at-rest? limiter))))

(deftest wrong-arguments-are-answered-at-the-call
  (doseq [permits [0 -1 nil 1.5 "2"]]
    (is (= {:type :thrum/invalid, :value permits}
           (select-keys (ex-data (thrown (t/limiter permits {}))) [:type :value]))))
  (doseq [options [{:queue -1} {:wait-ms -1} {:wait-ms 1.5} {:name ""} {:que 1} []]]
    (is (= :thrum/invalid (:type (ex-data (thrown (t/limiter 1 options))))) (pr-str options))))

(deftest a-limiter-describes-itself
  (let [limiter (limit/limiter 2 {:name "db", :queue 5, :wait-ms 50})]
    (is (= {:limiter "db", :permits 2, :queue 5, :wait-ms 50, :in-use 0, :waiting 0, :rejected 0}
           (datafy limiter)))
    (limit/call-with limiter #(is (= 1 (:in-use (datafy limiter))))))
  (is (= "#<limiter {:permits 1, :in-use 0, :waiting 0, :rejected 0}>"
         (pr-str (limit/limiter 1 {})))))

;; Nothing is lost

(deftest what-the-body-throws-is-thrown-and-the-permit-returned
  (let [limiter (limit/limiter 1 {})]
    (doseq [failure [(Exception. "no") (ex-info "no" {}) (AssertionError. "no")
                     (StackOverflowError.) (InterruptedException. "by hand")
                     (CancellationException.) (OutOfMemoryError. "by hand")]]
      (dotimes [_ 2]
        (is (identical? failure (thrown (limit/call-with limiter (fn [] (throw failure)))))))
      (is (at-rest? limiter)))))

(deftest an-interrupted-waiter-leaves-the-queue
  (let [limiter (limit/limiter 1 {})
        held (limit/acquire! limiter)
        [^Thread thread :as interrupted] (waiter limiter 1)
        other (waiter limiter 2)]
    (.interrupt thread)
    (is (instance? InterruptedException (failure-of interrupted)))
    (is (waiting? limiter 1))
    (limit/release! held)
    (limit/release! (permit-of other))
    (is (at-rest? limiter))
    (is (= 0 (:rejected (datafy limiter))))))

(deftest an-interrupt-that-came-before-is-thrown-also-where-a-permit-is-free
  (let [limiter (limit/limiter 1 {})
        interrupted (gate/start
                      "interrupted"
                      (fn [] (.interrupt (Thread/currentThread)) (limit/acquire! limiter)))]
    (is (instance? InterruptedException (failure-of interrupted)))
    (is (at-rest? limiter))))

(deftest cancelled-work-waits-no-longer
  (let [limiter (limit/limiter 1 {})
        scope (group/group "s" nil)
        end (promise)]
    (with-open [_ (limit/acquire! limiter)]
      (fork! scope (fn [] (deliver end (thrown (limit/acquire! limiter)))))
      (is (waiting? limiter 1))
      (group/cancel! scope :over)
      (group/join! scope)
      (is (= {:type :thrum/cancelled, :reason :over}
             (select-keys (ex-data @end) [:type :reason]))))
    (is (at-rest? limiter))))

(defn- in-place
  "Calls f where every look at the state of the place, but the first, calls look, which returns why
  the work is cancelled, or nil."
  [look f]
  (let [looks (AtomicLong.), flag (interrupt/interrupt-flag (Thread/currentThread))]
    (place/enter! (reify Place
                    (cancelReason [_] (when (< 1 (.incrementAndGet looks)) (look)))
                    (isOver [_] false)
                    (outer [_])
                    (interruptFlag [_] flag)
                    (acknowledge [_])))
    (try (f) (finally (place/enter! nil)))))

(deftest a-permit-that-is-granted-while-its-waiter-is-cancelled-is-handed-on
  (let [limiter (limit/limiter 1 {})
        held (promise)
        next-in-line (promise)
        grant-and-cancel #(do
                            (deliver next-in-line (waiter limiter 2))
                            (limit/release! @held)
                            :over)
        cancelled (gate/in-time
                    5000
                    (fn []
                      (deliver held (permit-of (gate/start "holder" #(limit/acquire! limiter))))
                      (in-place grant-and-cancel #(thrown (limit/acquire! limiter)))))]
    (is (instance? CancellationException cancelled))
    (limit/release! (permit-of @next-in-line))
    (is (at-rest? limiter))))

(deftest a-permit-that-is-granted-at-the-last-moment-is-kept
  (let [limiter (limit/limiter 1 {:wait-ms 0})
        held (permit-of (gate/start "holder" #(limit/acquire! limiter)))
        grant #(limit/release! held)]
    (gate/in-time 5000
                  (fn []
                    (in-place grant
                              #(with-open [_ (limit/acquire! limiter)]
                                 (is (= 1 (:in-use (datafy limiter))))))))
    (is (at-rest? limiter))
    (is (= 0 (:rejected (datafy limiter))))))

(defn- stress
  "Has threads ask for the permits of the limiter, again and again, until all have had `turns`,
  while each is interrupted at random. Returns how often the body ran."
  [limiter threads turns seed]
  (let [random (Random. seed)
        entered (AtomicLong.)
        done (CountDownLatch. threads)
        turn #(try
                (limit/call-with limiter (fn [] (.incrementAndGet entered)))
                (catch InterruptedException _)
                (catch clojure.lang.ExceptionInfo _))
        running (vec (repeatedly threads
                                 (fn []
                                   (Thread/startVirtualThread
                                     (fn [] (dotimes [_ turns] (turn)) (.countDown done))))))]
    (while (not (.await done 20 TimeUnit/MICROSECONDS))
           (.interrupt ^Thread (nth running (.nextInt random threads))))
    (.get entered)))

(deftest permits-that-are-granted-together-do-not-hold-each-other
  (let [limiter (limit/limiter 1 {}), held (limit/acquire! limiter)
        waiters (mapv #(waiter limiter %) [1 2])]
    (limit/resize! limiter 3)
    (is (= [nil nil] (mapv #(.heir ^IPermit (permit-of %)) waiters)))
    (limit/release! held)))

(deftest no-permit-is-lost-when-waiters-are-interrupted-at-random
  (doseq [[permits options] [[1 {}] [3 {}] [2 {:queue 4}] [2 {:wait-ms 0}]]]
    (let [limiter (limit/limiter permits options)
          seed (System/nanoTime)]
      (is (pos? (long (gate/in-time 20000 #(stress limiter 16 200 seed))))
          (str options " seed " seed))
      (is (gate/eventually 10000 #(at-rest? limiter)) (str options " " limiter " seed " seed)))))

(defn- interrupting-at
  "Returns a listener that interrupts the thread which is the k-th to reach a point of the limiter,
  by the way: :flag sets its interrupt, :throw throws."
  [k way ^AtomicLong reached]
  (fn [point]
    (when (and (= "limit" (namespace point)) (= k (dec (.incrementAndGet reached))))
      (if (= :flag way)
        (.interrupt (Thread/currentThread))
        (throw (InterruptedException. "at a point"))))))

(defn- meeting
  "Has a holder, one who gives up and one who waits meet. Returns the limiter when all have ended."
  [options]
  (let [limiter (limit/limiter 1 options)
        scope (group/group "s" nil)
        inside (promise)
        gate (promise)]
    (fork! scope (fn [] (limit/call-with limiter (fn [] (deliver inside true) @gate))))
    (deref inside 10000 :late)
    (let [cancelled (fork! scope (fn [] (limit/call-with limiter (constantly :late))))]
      (fork! scope (fn [] (limit/call-with limiter (constantly :value))))
      (gate/eventually 100 #(= 2 (:waiting (datafy limiter))))
      (fork! scope (fn [] (future-cancel cancelled)))
      (deliver gate :go)
      (group/join! scope)
      limiter)))

;; Runs to the end of the sweep where points are compiled in, in the JVM of thrum.schedule-fuzz;
;; else once, without an interrupt.
(deftest an-interrupt-at-any-point-loses-no-permit
  (doseq [options [{} {:wait-ms 1}]
          way [:flag :throw]]
    (loop [k 0]
      (let [reached (AtomicLong.)]
        (reset! sync-point/listener (interrupting-at k way reached))
        (try
          (is (at-rest? (gate/in-time 5000 #(meeting options)))
              (str options " " way " at point " k))
          (finally
            (reset! sync-point/listener nil)))
        (when (< k (.get reached)) (recur (inc k)))))))

;; Many

(defn- cpu-ms
  "Returns how many ms of CPU this JVM has used: what other processes do does not count."
  ^double []
  (let [^com.sun.management.OperatingSystemMXBean os (ManagementFactory/getOperatingSystemMXBean)]
    (/ (.getProcessCpuTime os) 1e6)))

(deftest a-limit-that-falls-does-not-look-at-those-who-wait
  (let [limiter (limit/limiter 20 {})]
    (dotimes [_ 20] (limit/acquire! limiter))
    (dotimes [_ 100000] (.ask ^ILimiter limiter (#'limit/permit limiter true 1)))
    (is (= {:in-use 20, :waiting 100000} (select-keys (datafy limiter) [:in-use :waiting])))
    ;; A look at each of them takes more than a ms.
    (let [before (cpu-ms)]
      (dotimes [_ 4000]
        (limit/resize! limiter 19)
        (limit/resize! limiter 20))
      (is (< (- (cpu-ms) before) 1000)))))

(defn- cancel-cost
  "Cancels n waiters; returns how many ms of CPU that took until all had ended."
  [n]
  (let [limiter (limit/limiter 1 {}), scope (group/group "s" nil)]
    (with-open [_ (limit/acquire! limiter)]
      (dotimes [_ n] (fork! scope (fn [] (limit/acquire! limiter))))
      (is (gate/eventually 40000 #(= n (:waiting (datafy limiter)))))
      (let [start (cpu-ms)]
        (group/cancel! scope :over)
        (group/join! scope)
        (is (= 0 (:waiting (datafy limiter))))
        (- (cpu-ms) start)))))

;; A fair Semaphore of the JDK takes 10 to 14 s. How the time grows is measured by -M:bench: a ratio
;; of two times is no test on a machine that does other work.
(deftest forty-thousand-waiters-are-cancelled-within-seconds
  (cancel-cost 10000)
  (is (< (cancel-cost 40000) 5000)))

(defn- counts
  "Returns a map of counts that takes no new key while full? holds true."
  ^HashMap [full?]
  (proxy [HashMap] []
    (put [k v]
      (let [^HashMap this this]
        (when (and @full? (not (.containsKey this k)))
          (throw (OutOfMemoryError. "on purpose")))
        (proxy-super put k v)))))

(deftest a-permit-is-handed-over-without-memory
  (doseq [ask [#(limit/call-with % (fn [] :held))
               #(do (limit/release! (limit/acquire! %)) :held)]]
    (let [full? (atom false)
          limiter (Limiter. nil 1 nil nil (counts full?) (LinkedHashSet.) nil 0 0 0 0)
          first-one (promise)
          ;; It waits for its second, and another thread returns its first.
          [_ heir] (gate/start "heir" #(do (deliver first-one (limit/acquire! limiter))
                                           (ask limiter)))]
      (is (gate/eventually 5000 #(= 1 (:waiting (datafy limiter)))))
      (reset! full? true)
      (limit/release! @first-one)
      (is (= {:value :held} (deref heir 5000 :stuck)))
      (is (= {:in-use 0, :waiting 0} (select-keys (datafy limiter) [:in-use :waiting]))))))

(deftest a-limiter-holds-no-thread-that-has-left-its-queue
  (let [owned (HashMap.), limiter (Limiter. nil 1 nil 0 owned (LinkedHashSet.) nil 0 0 0 0)
        ask #(gate/in-time 5000 (fn [] (thrown (% limiter))))
        owners #(:owners (limit/facts limiter))]
    (with-open [_ (limit/acquire! limiter)]
      (is (= [:thrum/rejected :thrum/rejected]
             (map (comp :type ex-data ask) [limit/acquire! #(limit/call-with % (fn [] :held))])))
      (is (= [{} {(Thread/currentThread) 1}] [owned (owners)])))
    (is (= [{} {}] [owned (owners)]))))

(deftest those-who-have-permits-are-known-in-any-order-of-return
  (let [limiter (limit/limiter 5 {}), random (Random. 7)
        owners #(:owners (limit/facts limiter))
        borrow #(gate/in-time 5000 (fn [] [(Thread/currentThread) (limit/acquire! limiter)]))]
    (dotimes [_ 100]
      (loop [borrowed (into {} (repeatedly 5 borrow))]
        (is (= (update-vals borrowed (constantly 1)) (owners)))
        (when (seq borrowed)
          (let [[thread permit] (nth (vec borrowed) (.nextInt random (count borrowed)))]
            (limit/release! permit)
            (recur (dissoc borrowed thread))))))))

(ns thrum.depth-test
  "Scopes nest as deep as memory allows: nothing recurses along them. And a stack that overflows at
  the brink of a form leaves nothing of the form behind."
  (:require
   [clojure.datafy :as datafy]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.group :as group]
   [thrum.impl.place :as place]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (clojure.lang ExceptionInfo)
   (thrum.impl.place Cancellable)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- on-stack
  "Returns the value of f, or throws what it threw, on a thread with a stack of so many KB; fails
  after a minute."
  [kb f]
  (let [outcome (promise)
        body (bound-fn [] (deliver outcome (try {:value (f)} (catch Throwable t {:thrown t}))))
        thread (doto (Thread. nil body "stack" (* 1024 (long kb))) (.setDaemon true) (.start))
        {:keys [value thrown] :as ended} (deref outcome 60000 nil)]
    (when-not ended (throw (ex-info "It hangs" {:stack (vec (take 20 (.getStackTrace thread)))})))
    (if thrown (throw thrown) value)))

;; Depth

(defn- nested
  "Returns n scopes, each in the one before, the innermost last."
  [n opener]
  (vec (take n (iterate #(group/group "inner" %) (group/opened-group "outer" nil nil opener nil)))))

(defn- fork! [scope f]
  (let [owner (reify completion/CompletionHandler
                (failed [_ _ _])
                (ended [_ task] (group/child-left! (group/children-of scope) task)))]
    (group/start! scope (task/task (context/capture nil scope) owner 0 f))))

(deftest a-fork-a-hundred-thousand-scopes-deep-starts-is-joined-and-cancelled
  (on-stack 256
            (fn []
              (let [opener (task/latch "opener")
                    scopes (nested 100000 opener)
                    outer (first scopes)
                    inner (peek scopes)
                    gate (promise)]
                (fork! inner #(deref gate))
                (testing "all of them have work" (is (= #{1} (set (map group/running scopes)))))
                (testing "its end ends it for all"
                  (deliver gate true)
                  (group/join! outer)
                  (is (= #{0} (set (map group/running scopes)))))
                (is (identical? opener (.opener ^Cancellable inner)))
                (testing "a cancel reaches it"
                  (let [task (fork! inner #(deref (promise)))]
                    (group/cancel! outer :enough)
                    (group/join! outer)
                    (is (future-cancelled? task))
                    (is (= :enough (.cancelReason ^Cancellable inner)))))
                (testing "nothing can be added any more, and nothing is left of the attempt"
                  (is (= :thrum/closed (:type (ex-data (thrown (fork! inner #(deref (promise))))))))
                  (is (= #{0} (set (map group/running scopes)))))))))

(deftest a-start-that-fails-deep-inside-leaves-no-scope-in-its-parent
  (on-stack 256
    (fn []
      (let [scopes (nested 50000 nil), middle (nth scopes 25000)]
        (group/close! middle :ended)
        (is (= :thrum/closed (:type (ex-data (thrown (fork! (peek scopes) #(deref (promise))))))))
        (is (= #{0} (set (map group/running scopes))))
        (group/end! (first scopes) :ended)))))

(defn- nest [n f]
  (if (zero? (long n))
    (f)
    (t/with-scope [_s] (nest (dec (long n)) f))))

(defn- nest-through-tasks [n f]
  (if (zero? (long n))
    (f)
    (t/with-scope [s] @(t/fork s (nest-through-tasks (dec (long n)) f)))))

(deftest forms-nest-as-deep-as-the-stack
  (let [stack (* 256 1024)]
    (is (= :ok (on-stack stack #(nest 6000 (fn [] (t/with-scope [s] @(t/fork s :ok)))))))
    (is (= :late
           (on-stack stack
                     (fn [] (t/with-timeout [20 :late] (nest 6000 #(Thread/sleep 60000)))))))))

(deftest forms-nest-through-tasks
  (is (= :ok (on-stack 256 #(nest-through-tasks 1000 (constantly :ok)))))
  (is (= :late
         (on-stack
           256
           (fn [] (t/with-timeout [300 :late] (nest-through-tasks 1000 #(Thread/sleep 60000))))))))

(deftest children-that-come-and-go-at-once-keep-the-scopes-in-their-parents
  (dotimes [_ 100]
    (let [scopes (nested 5 nil), outer (first scopes)
          work #(dotimes [i 20] (deref (fork! (nth scopes (mod i 5)) (fn []))))
          threads (mapv (fn [i] (gate/start (str "forker " i) work)) (range 3))]
      (is (= #{{:value nil}} (set (map #(deref (second %) 20000 :stuck) threads))))
      (group/join! outer)
      (is (= #{0} (set (map group/running scopes)))))))

;; The brink

(defn- dive
  "Calls f so many frames deeper."
  [n f]
  (if (zero? (long n))
    (f)
    (let [value (dive (dec (long n)) f)]
      (if (nil? value) value (identity value)))))

(defn- overflows? [n form]
  (try
    (dive n #(form (fn [] (dive 20 (fn [] :fine)))))
    false
    (catch StackOverflowError _ true)
    ;; It came to its deadline.
    (catch ExceptionInfo _ false)))

(defn- first-overflow
  "Returns the depth, to a hundred, at which the form no more fits on the stack."
  [form]
  (first (drop-while #(not (overflows? % form)) (iterate #(+ 100 (long %)) 500))))

(def ^:private forms
  {"timeout" (fn [f] (t/with-timeout 30 (f)))
   "scope" (fn [f] (t/with-scope [_s] (f)))
   "shield" (fn [f] (t/shield 30 (f)))
   "nested" (fn [f] (t/with-timeout 30 (t/with-scope [_s] (t/shield 20 (f)))))})

(defn- left-by
  "Overflows the stack at every depth around the form. Returns what was left behind: places, and
  interrupts that come later."
  [form]
  ;; Every class must be there: one that cannot be initialised stays so.
  (dotimes [_ 200]
    (overflows? 10 form)
    (thrown (form #(throw (StackOverflowError.)))))
  (let [brink (long (first-overflow form))
        ;; Frames shrink when they are compiled, and the brink moves.
        overflown (count (take 40 (filter #(overflows? % form) (range (- brink 150) (* 10 brink)))))
        place (place/current)]
    (is (= 40 overflown))
    (cond-> []
      place (conj :place)
      (try (Thread/sleep 80) false (catch InterruptedException _ true)) (conj :interrupt))))

(deftest an-overflow-at-the-brink-of-a-form-leaves-nothing-behind
  (doseq [[what form] forms]
    (testing what
      (on-stack 512
                (fn []
                  (is (= [] (left-by form)))
                  (is (= :late (t/with-timeout [20 :late] (Thread/sleep 60000))) "a later deadline")
                  (let [attempts (atom 0)]
                    (is (= "again"
                           (ex-message (thrown (t/retry {:schedule [0 0], :attempts 3}
                                                        (swap! attempts inc)
                                                        (throw (Exception. "again")))))))
                    (is (= 3 @attempts) "later attempts")))))))

(deftest an-overflow-in-a-form-leaves-the-form-around-it-as-it-was
  (on-stack 512
    (fn []
      (is (= :ok (t/with-scope [s]
                   (let [place (place/current)]
                     (is (= [:place] (left-by (forms "nested"))))
                     (is (identical? place (place/current))))
                   @(t/fork s :ok))))
      (is (nil? (place/current)))
      (is (not (Thread/interrupted))))))

(defn- fork-and-nest [depth]
  (when (pos? (long depth))
    (t/with-scope [s]
      (let [task (t/fork s 1)]
        (fork-and-nest (dec (long depth)))
        @task))))

(deftest a-recursion-over-scopes-with-forks-overflows-and-ends
  ;; Every class must be there.
  (dotimes [_ 100] (fork-and-nest 5))
  (doseq [kb [512 513 515 518 522]]
    (is (instance? StackOverflowError
                   (on-stack kb #(try (fork-and-nest 1000000) (catch Throwable t t)))))))

(defn- fork-and-walk [depth]
  (t/with-scope [s] @(t/fork s 1))
  (inc (long (fork-and-walk (inc (long depth))))))

(defn- map-and-walk [depth]
  (t/pmapv 2 inc [1 2])
  (inc (long (map-and-walk (inc (long depth))))))

;; Mostly a StackOverflowError; of a class that overflows as it is initialised, another.
(deftest a-recursion-in-a-scope-whose-forms-do-not-nest-ends
  (dotimes [_ 100]
    (t/with-scope [_]
      (t/with-scope [s] @(t/fork s 1))
      (t/pmapv 2 inc [1 2])))
  (doseq [walk [map-and-walk fork-and-walk], kb (range 200 260)]
    (is (instance? Throwable (on-stack kb #(try
                                             (t/with-scope [_] (walk 0))
                                             (catch Throwable t t)))))))

(deftest a-form-joins-and-closes-also-where-the-stack-is-full-when-its-body-has-ended
  (let [self (Thread/currentThread), stand! place/enter!, full (atom true)
        running (promise), ended (promise), closed (promise)
        stand-once! (fn [place]
                      (if (and (nil? place) (identical? self (Thread/currentThread))
                               (compare-and-set! full true false))
                        (throw (StackOverflowError.))
                        (stand! place)))
        e (with-redefs [place/enter! stand-once!]
            (thrown (t/with-scope [s]
                      (t/use! s :it (fn [_] (deliver closed true)))
                      (t/fork s
                        (deliver running true)
                        (try (Thread/sleep 60000) (finally (deliver ended true))))
                      @running)))]
    (is (instance? StackOverflowError e))
    (is (= [true true] (mapv realized? [ended closed])))
    (is (nil? (place/current)))))

(deftest a-full-stack-does-not-enter-the-queue-of-a-rate
  (let [rate (t/rate-limiter 1 {:per-ms 60000, :wait-ms 0})]
    (t/acquire! rate)
    (with-redefs [wait/room (fn ^long [^long _] (throw (StackOverflowError.)))]
      (is (instance? StackOverflowError (thrown (t/acquire! rate))))
      (is (= 0 (:waiting (datafy/datafy rate)))))))

(def ^:private alarms-on-a-full-stack
  "Has the first alarm of a process go off with ever more room on the stack, up to enough."
  (pr-str
    '(do
       (require '[thrum.impl.callers :as callers])
       (defn below [n f] (if (pos? n) (inc (long (below (dec n) f))) (do (f) 0)))
       (defn fits? [n f] (try (below n f) true (catch StackOverflowError _ false)))
       (let [call! #(callers/call! (fn []))
             full (first (drop-while #(fits? % (fn [])) (iterate #(+ 20 %) 100)))]
         (first (filter #(or (zero? %) (fits? % call!)) (iterate dec full)))
         (println (fits? 0 call!))
         (System/exit 0)))))

(deftest a-full-stack-at-the-first-alarm-does-not-end-the-alarms-of-the-process
  (let [java (jvm/clojure-main (jvm/this-home)
                               ;; Compiled meanwhile, frames would be smaller than those counted.
                               ["-Xss512k" "-XX:CompileCommand=quiet"
                                "-XX:CompileCommand=exclude,user$below::*"]
                               (System/getProperty "java.class.path"))
        {:keys [lines]} (jvm/quietly (conj java "-e" alarms-on-a-full-stack) 280000)]
    (is (= "true" (jvm/last-line lines)) lines)))

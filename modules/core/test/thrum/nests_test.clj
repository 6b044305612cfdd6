(ns thrum.nests-test
  "Forms in forms on one thread: no interrupt of a form's outlives it, in any order of
  cancels; none is lost; and another thread's is neither lost nor doubled."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.place :as place]
   [thrum.impl.scope :as scope]
   [thrum.impl.timer :as timer]
   [thrum.nests :as nests]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util.concurrent CancellationException Executor Executors)
   (thrum.impl.interrupt InterruptFlag)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- interrupt-self! []
  (.interrupt (Thread/currentThread)))

;; Every order of cancels in every nest of three

(defn- tuples [n choices]
  (if (zero? (long n))
    [[]]
    (for [tuple (tuples (dec (long n)) choices), choice choices] (conj tuple choice))))

(def ^:private orders
  "Which of three forms are cancelled, in which order: from none to all."
  (filter #(or (empty? %) (apply distinct? %))
          (mapcat #(tuples % (range 3)) (range 4))))

(def ^:private endings
  "How a body goes on after the cancels."
  {:checkpoint t/checkpoint
   :sleep #(Thread/sleep 0)
   :return (constantly :value)
   :failure #(throw (ex-info "body" {}))
   :swallowed #(try
                 (Thread/sleep 0)
                 (catch InterruptedException _))
   :flag-again #(try
                  (Thread/sleep 0)
                  (catch InterruptedException e (interrupt-self!) (throw e)))
   :shielded #(do
                (t/shield 30000 (Thread/sleep 0))
                (Thread/sleep 0))
   :looked-twice #(try
                    (t/checkpoint)
                    (catch CancellationException _ (Thread/sleep 0) (t/checkpoint)))})

(def ^:private nests (tuples 3 [:scope :fallback :shield :on-cancel]))

(defn- signals-of [{:keys [nest order ending foreign]}]
  (nests/signals #(do
                    (when foreign (interrupt-self!))
                    (nests/in-nest nest (fn [cancels]
                                          (run! (fn [i] ((cancels i))) order)
                                          ((endings ending)))))))

(defn- wrong
  "Returns the runs after which the signals are not those expected."
  [expected? runs]
  (nests/with-alarms
    (into []
          (keep #(let [seen (signals-of %)] (when-not (expected? seen) (assoc % :seen seen))))
          runs)))

(defn- runs [foreign endings]
  (for [nest nests, order orders, ending endings]
    {:nest nest, :order order, :ending ending, :foreign foreign}))

(deftest no-interrupt-of-a-forms-outlives-it
  (is (= [] (wrong empty? (runs false (keys endings)))))
  (is (nil? (place/current))))

(deftest an-interrupt-that-came-before-is-seen-once
  (is (= [] (wrong #(= 1 (count %)) (runs true [:checkpoint :sleep :return :failure :shielded]))))
  (testing "unless the body has used it up"
    (is (= [] (wrong #(<= (count %) 1) (runs true [:swallowed :looked-twice]))))))

;; What an inner form has used up

(defn- outer-answer
  "Cancels an outer and an inner form, both with a fallback, in this order; the inner one ends by
  ending. Returns what the outer one answers when its own body then sleeps."
  [order ending]
  (nests/with-alarms
    (gate/in-time 5000
      #(nests/in-nest [:fallback]
         (fn [cancels]
           (nests/in-nest [:fallback] cancels
             (fn [cancels]
               (run! (fn [i] ((cancels i))) order)
               ((endings ending))))
           (Thread/sleep 60000))))))

(deftest a-cancel-of-the-outer-form-is-not-lost-with-that-of-the-inner
  (doseq [order [[0 1] [1 0]], ending [:checkpoint :sleep :return :swallowed :flag-again :shielded]]
    (is (= :late (outer-answer order ending)) (pr-str order ending))))

;; Tasks

(deftest a-tasks-interrupt-reaches-it-behind-a-form-of-its-own
  (doseq [order [[:form :task] [:task :form]]]
    (let [form (promise), cancelled (promise), ended (promise)
          task (t/future
                 (try
                   (try
                     (t/with-scope [s]
                       (deliver form s)
                       (while (not (realized? cancelled)) (Thread/onSpinWait))
                       (Thread/sleep 60000))
                     (catch CancellationException _))
                   (Thread/sleep 60000)
                   (finally (deliver ended true))))
          cancel {:form #(t/cancel! % :enough), :task (fn [_] (future-cancel task))}]
      (run! #((cancel %) @form) order)
      (deliver cancelled true)
      (is (deref ended 5000 false) (pr-str order)))))

(def ^:private ^Executor on-caller
  (reify Executor (execute [_ runnable] (.run runnable))))

(defn- via-caller
  "Returns the signals after a task on the calling thread, inside a scope; f is called there, with
  the scope."
  [f]
  (nests/signals #(t/with-scope [s] (t/future-via [on-caller] (f s)))))

(deftest an-interrupt-ends-with-a-task-on-a-borrowed-thread
  (testing "the form around it is cancelled inside the task"
    (is (= #{} (via-caller #(t/cancel! %))))
    (is (= #{}
           (via-caller #(do
                          (t/cancel! %)
                          (Thread/sleep 0))))))
  (testing "forms in it and around it are cancelled"
    (is (= #{} (via-caller #(t/with-scope [inner] (t/cancel! inner) (t/cancel! %) (t/checkpoint)))))
    (is (= #{}
           (via-caller #(t/with-scope [inner] (t/cancel! %) (t/cancel! inner) (Thread/sleep 0))))))
  (testing "another thread's stays"
    (is (= #{:flag} (via-caller (fn [_] (interrupt-self!)))))
    (is (= #{:flag}
           (via-caller #(do
                          (interrupt-self!)
                          (t/cancel! %)))))))

(defn- cancelled-on-pool
  "Returns whether the pool's thread is interrupted after a task on it was cancelled."
  []
  (with-open [pool (Executors/newSingleThreadExecutor)]
    (let [running (promise)
          task (t/future-via [pool]
                 (deliver running true)
                 (while (not (t/cancelled?)) (Thread/onSpinWait)))]
      @running
      (future-cancel task)
      (.get (.submit pool ^Callable #(Thread/interrupted))))))

(deftest a-pools-thread-keeps-nothing-of-a-cancelled-task
  (is (false? (cancelled-on-pool))))

;; What the thread has got from the form around a task, inside the task

(defn- outer-answer-through-a-task
  "Cancels a form with a fallback around a task on the calling thread, and one in the task, in this
  order; the inner one ends by ending. Returns what the outer one answers when its own body then
  sleeps."
  [order ending]
  (nests/with-alarms
    (gate/in-time 5000
      #(nests/in-nest [:fallback]
         (fn [cancels]
           (t/future-via [on-caller]
             (nests/in-nest [:fallback] cancels
               (fn [cancels]
                 (run! (fn [i] ((cancels i))) order)
                 ((endings ending)))))
           (Thread/sleep 60000))))))

(deftest a-cancel-of-a-form-is-not-lost-through-a-task-on-its-thread
  (doseq [order [[0 1] [1 0] [0]], ending [:checkpoint :sleep :return :swallowed :shielded]]
    (is (= :late (outer-answer-through-a-task order ending)) (pr-str order ending))))

;; Another thread's, and a failure that is thrown in its place

(deftest somebody-elses-interrupt-stays-behind-a-failure-that-came-before
  (is (= #{:flag}
         (nests/signals
           #(t/with-scope [s {:on-error :collect}]
              (let [fork (t/fork s (throw (Exception. "fork")))]
                (try @fork (catch Exception _))
                (interrupt-self!)
                (Thread/sleep 60000)))))))

(defn- on-leaving
  "Calls f while the calling thread, which stands in no place, leaves its outermost one: after its
  body has ended, and before that is looked at."
  [leaving! f]
  (let [self (Thread/currentThread), stand! place/enter!]
    (with-redefs [place/enter! (fn [place]
                                   (stand! place)
                                   (when (and (nil? place) (identical? self (Thread/currentThread)))
                                     (leaving!)))]
      (f))))

(deftest somebody-elses-interrupt-stays-behind-a-failure-that-came-after
  (let [fail (promise), scope (promise)]
    (is (= #{:flag}
           (on-leaving
             #(do (deliver fail true)
                  (gate/eventually 5000 (fn [] (scope/cancel-reason @scope))))
             #(nests/signals
                (fn []
                  (t/with-scope [s]
                    (deliver scope s)
                    (t/fork s @fail (throw (Exception. "fork")))
                    (interrupt-self!)
                    (Thread/sleep 60000)))))))))

(deftest an-interrupt-that-waits-is-not-sent-when-it-is-not-needed-any-more
  (let [^InterruptFlag flag (interrupt/interrupt-flag (Thread/currentThread))]
    (.masked flag (fn [] (.send flag) (.clear flag)))
    (is (not (Thread/interrupted)))))

;; Random ones: as many as -Dthrum.nests says

(def ^:private random-nests (Long/getLong "thrum.nests" 2000))

(deftest ^{:time-limit-ms (+ 300000 (* 5 (long random-nests)))} random-nests-keep-interrupts-apart
  (let [seed (System/nanoTime), faults (nests/faults random-nests seed)]
    (is (= [] (take 5 faults)) (str (count faults) " of " random-nests ", seed " seed))
    (is (gate/eventually 10000 #(zero? (long (timer/scheduled)))))
    (is (nil? (place/current)))))

(ns thrum.throwables-test
  "Any throwable, thrown at any place: the same instance comes out, and nothing is left running.
  The same at any place where a thread cannot start."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (clojure.lang IExceptionInfo)
   (java.io IOException InterruptedIOException)
   (java.net SocketException SocketTimeoutException)
   (java.nio.channels ClosedByInterruptException)
   (java.util.concurrent CancellationException ExecutionException)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private throwables
  {"Exception" #(Exception. "e")
   "ex-info" #(ex-info "e" {})
   "Error" #(Error. "e")
   "StackOverflowError" #(StackOverflowError.)
   "InterruptedException, without an interrupt" #(InterruptedException.)})

(defn- for-ever []
  (wait/sleep! (deadline/in-ms 1000000)))

(defn- nothing [])

(def ^:private places
  "Functions of a function that throws: it is called in that place, beside others that run for ever
  where that is possible."
  {"body" #(t/with-scope [s] (t/fork s (for-ever)) (%))
   "body of a timeout" #(t/with-timeout 1000 (%))
   "body of a shield" #(t/shield 1000 (%))
   "fork" #(t/with-scope [s] (t/fork s (for-ever)) (t/fork s (%)) (for-ever))
   "fork, through deref" #(t/with-scope [s] (t/fork s (for-ever)) @(t/fork s (%)))
   "daemon" #(t/with-scope [s] (t/fork s {:daemon? true} (%)) (for-ever))
   "fork that collects" #(t/with-scope [s {:on-error :collect}] (t/fork s (%)) :value)
   "two forks, the same instance"
   #(t/with-scope [s {:on-error :collect}] (t/fork s (%)) (t/fork s (%)) :value)
   "body and fork, the same instance" #(t/with-scope [s {:on-error :collect}]
                                         (deref (t/fork s
                                                  (try
                                                    (%)
                                                    (catch Throwable _))))
                                         (t/fork s (%))
                                         (%))
   "all" #(t/all (for-ever) (%) (for-ever))
   "plet" #(t/plet [_ (for-ever) b (%)] b)
   "race" #(t/race (for-ever) (%))
   "any" #(t/any (%) (%))
   "settle" #(throw (:error (second (t/settle :value (%)))))
   "close function" #(t/with-scope [s] (t/use! s :x (fn [_] (%))) (t/fork s (nothing)) :value)
   "two close functions, the same instance"
   #(t/with-scope [s] (t/use! s :x (fn [_] (%))) (t/use! s :y (fn [_] (%))) :value)
   "fallback" #(t/with-timeout [1 (%)] (for-ever))
   "wrap" #(t/with-scope [s {:wrap (fn [_] (%))}] (t/fork s (nothing)) (for-ever))
   "what wrap returned"
   #(t/with-scope [s {:wrap (fn [_] (fn [] (%)))}] (t/fork s (nothing)) (for-ever))
   "wrap of pmapv" #(t/pmapv {:limit 2, :wrap (fn [_] (%))} identity [1 2 3])
   "f of pmapv" #(t/pmapv 2 (fn [i] (if (= 1 i) (%) (for-ever))) (range 5))
   "permit" #(let [limiter (t/limiter 1)]
               (t/all (t/with-permit limiter (%)) (t/with-permit limiter (for-ever))))})

(defn- run [f]
  (gate/in-time 10000 #(virtual-clock/run 1 f)))

(def ^:private clean {:interrupted false, :alive 0, :planned 0})

(defn- rides-on-itself? [^Throwable t]
  (some #(identical? t %) (.getSuppressed t)))

(deftest the-same-instance-comes-out
  (doseq [[what make] throwables, [where call] places]
    (testing (str what " in " where)
      (let [^Throwable t (make)
            result (run (fn [] (call #(throw t))))]
        (is (identical? t (:thrown result)) (pr-str result))
        (is (not (rides-on-itself? t)))
        (is (= clean (select-keys result (keys clean))))))))

;; Exceptions that harm the thread that looks at them

(defn- fail! []
  (throw (IllegalStateException. "do not look")))

(defn- endless [] (endless))

(defn- hostile
  "Returns an exception whose own code fails or never ends where it is looked at."
  ^Throwable [kind]
  (case kind
    :odd-data (ex-info "user" (sorted-map "a" 1))
    :throwing-data (proxy [RuntimeException IExceptionInfo] ["user"] (getData [] (fail!)))
    :throwing-keys (ex-info "user"
                            {(reify
                               Object
                               (hashCode [_] (hash :type))
                               (equals [_ _] (fail!)))
                             1})
    :throwing-type (ex-info "user" {:type (lazy-seq (fail!))})
    :throwing-cause (proxy [RuntimeException] ["user"] (getCause [] (fail!)))
    :endless-cause (proxy [RuntimeException] ["user"] (getCause [] (hostile :endless-cause)))
    :own-cause (proxy [ExecutionException] ["user"] (getCause [] this))
    :deep-cause (proxy [RuntimeException] ["user"] (getCause [] (endless)))
    :throwing-message (proxy [SocketException] ["user"] (getMessage [] (fail!)))
    :throwing-string
    (proxy [RuntimeException] ["user"] (toString [] (fail!)) (getMessage [] (fail!)))
    :throwing-trace (proxy [RuntimeException] ["user"] (getStackTrace [] (fail!)))
    :unequal (proxy [RuntimeException] ["user"] (equals [_] (fail!)) (hashCode [] (fail!)))
    :no-suppression (proxy [RuntimeException] ["user" nil false false])))

(def ^:private hostile-kinds
  [:odd-data :throwing-data :throwing-keys :throwing-type :throwing-cause :endless-cause
   :own-cause :deep-cause :throwing-message :throwing-string :throwing-trace :unequal
   :no-suppression])

(defn- after-interrupt
  "Waits for ever, and throws t when it is interrupted."
  [^Throwable t]
  (try
    (for-ever)
    (catch InterruptedException _ (throw t))
    (catch CancellationException _ (throw t))))

(defn- through-deref [f]
  (try (f) (catch ExecutionException e (throw (or (ex-cause e) e)))))

(def ^:private cancelled-places
  "Forms in which t is thrown by work that has been cancelled, and is thrown by the form, for it is
  no interruption."
  {"body" (fn [t] (t/with-timeout 5 (after-interrupt t)))
   "body of a shield" (fn [t] (t/shield 5 (after-interrupt t)))
   "body beside a fork"
   (fn [t] (t/with-scope [s {:timeout-ms 5}] (t/fork s (for-ever)) (after-interrupt t)))
   "fork"
   (fn [t]
     (t/with-scope [s {:timeout-ms 5}] (t/fork s (for-ever)) (t/fork s (after-interrupt t)) :body))
   "daemon"
   (fn [t]
     (t/with-scope [s {:timeout-ms 5}] (t/fork s {:daemon? true} (after-interrupt t)) (for-ever)))
   "inner form" (fn [t]
                  (t/with-timeout 5 (t/with-scope [s] (t/fork s (for-ever)) (after-interrupt t))))
   "close function"
   (fn [t] (t/with-timeout 5 (t/with-scope [s] (t/use! s :x (fn [_] (throw t))) :value)))})

(def ^:private failing-places
  "Forms in which t is thrown by work that has not been cancelled."
  (assoc (dissoc places "fork, through deref" "settle" "fallback")
         "fork, through deref"
         (fn [f] (through-deref #(t/with-scope [s] (t/fork s (for-ever)) @(t/fork s (f)))))
         "future" (fn [f] (through-deref #(deref (t/future (f)))))
         "settle" (fn [f] (throw (:error (first (t/settle (f))))))
         "pmap" (fn [f] (doall (t/pmap 2 (fn [i] (if (= 1 i) (f) i)) (range 5))))
         "upmap" (fn [f] (doall (t/upmap 2 (fn [_] (f)) (range 5))))
         "transducer" (fn [f] (into [] (t/pmap 2 (fn [_] (f))) (range 5)))
         "pcalls" (fn [f] (doall (t/pcalls f f)))
         "retry" (fn [f] (t/retry {:schedule [0], :attempts 2} (f)))
         "retry of a task"
         (fn [f] (through-deref (fn [] (t/retry {:schedule [0], :attempts 2} @(t/future (f))))))
         "executor" (fn [f] (through-deref #(t/with-executor [e] @(t/future-via [e] (f)))))))

(defn- joined-and-closed?
  "Calls f with a resource in use and a fork that has to be waited for; returns whether both
  have ended when f leaves."
  [f]
  (let [trail (atom [])
        result (run (fn []
                      (t/with-scope [s]
                        (t/use! s :resource (fn [_] (swap! trail conj :closed)))
                        (t/fork s
                          (try
                            (for-ever)
                            (finally
                              (t/shield 50 (wait/sleep! (deadline/in-ms 9)))
                              (swap! trail conj :fork))))
                        (wait/sleep! (deadline/in-ms 1))
                        (f))))]
    (assoc result :trail @trail)))

(deftest an-exception-that-harms-its-readers-is-thrown-as-any-other
  (doseq [kind hostile-kinds, [where call] failing-places]
    (testing (str kind " in " where)
      (let [t (hostile kind)
            {:keys [thrown trail] :as result} (joined-and-closed? (fn [] (call #(throw t))))]
        (is (true? (identical? t thrown)))
        (is (= [:fork :closed] trail))
        (is (= clean (select-keys result (keys clean))))))))

(deftest an-exception-that-harms-its-readers-is-thrown-by-cancelled-work
  (doseq [kind hostile-kinds, [where call] cancelled-places]
    (testing (str kind " in " where)
      (let [t (hostile kind)
            {:keys [thrown trail] :as result} (joined-and-closed? #(call t))]
        (is (true? (identical? t thrown)))
        (is (= [:fork :closed] trail))
        (is (= clean (select-keys result (keys clean))))))))

(deftest an-interruption-is-found-behind-what-cannot-be-read
  (doseq [data [(sorted-map "a" 1)
                {(reify
                   Object
                   (equals [_ _] (fail!)))
                 1}]]
    (is (= :late
           (:value (run (fn []
                          (t/with-timeout [5 :late]
                                          (try
                                            (for-ever)
                                            (catch InterruptedException e
                                              (throw (ex-info "wrapped" data e))))))))))))

(deftest only-what-a-cancel-has-caused-is-left-out
  (let [beside (fn [t]
                 (let [begun (promise), failure (ex-info "first" {})]
                   (try
                     (t/with-scope [s]
                       (t/fork s
                         (deliver begun true)
                         (try (for-ever) (catch CancellationException _ (throw t))))
                       @begun
                       (throw failure))
                     (catch Exception _))
                   (vec (.getSuppressed ^Throwable failure))))]
    (doseq [t [(InterruptedException.) (CancellationException.) (ClosedByInterruptException.)
               (SocketException. "Closed by interrupt") (InterruptedIOException.)
               (error/closed "s" :ended) (ex-info "wrapped" {} (InterruptedException.))]]
      (is (= [] (beside t))))
    (doseq [t [(SocketException. "Connection reset") (SocketTimeoutException.) (IOException.)]]
      (is (= [t] (beside t))))))

;; A conclusion that fails

(deftest a-form-whose-conclusion-fails-has-joined-and-closed-all-the-same
  (doseq [failing [#'error/casualty? #'failures/merged #'error/timeout #'error/cancelled]
          error [(StackOverflowError.) (OutOfMemoryError.)]]
    (testing failing
      (let [trail (atom [])
            fail (fn [& _] (throw error))
            result
            (run (fn []
                   (with-redefs-fn {failing fail}
                     #(t/with-timeout 5
                                      (t/with-scope [s]
                                        (t/use! s :resource (fn [_] (swap! trail conj :closed)))
                                        (t/fork s
                                          (try
                                            (for-ever)
                                            (finally
                                              (wait/undisturbed (fn [] (LockSupport/parkNanos 9)))
                                              (swap! trail conj :fork))))
                                        (after-interrupt (ex-info "body" {})))))))]
        (is (some? (:thrown result)))
        (is (= [:fork :closed] @trail))
        (is (= clean (select-keys result (keys clean))))))))

;; Threads that do not start

(def ^:private forms
  "Forms with several threads, each with a value."
  {"forks" #(t/with-scope [s] (let [a (t/fork s 1) b (t/fork s 2) c (t/fork s 3)] (+ @a @b @c)))
   "forks that run" #(t/with-scope [s]
                       (t/fork s {:daemon? true} (for-ever))
                       (t/fork s {:daemon? true} (for-ever))
                       @(t/fork s 3))
   "forks that collect" #(t/with-scope [s {:on-error :collect}] (t/fork s 1) (t/fork s 2) 3)
   "forks of forks" #(t/with-scope [s] @(t/fork s @(t/fork s @(t/fork s 3))))
   "used" #(t/with-scope [s] (t/use! s 1 identity) (t/fork s 1) (t/fork s 2) 3)
   "timeout" #(t/with-timeout 100 (t/all 1 2 3))
   "timeout with fallback" #(t/with-timeout [100 :late] (t/all 1 2 3))
   "shield" #(t/shield 100 (t/all 1 2 3))
   "all" #(t/all 1 2 3)
   "plet" #(t/plet [a 1 b 2] (+ a b))
   "race" #(t/race (for-ever) (for-ever) (wait/sleep! (deadline/in-ms 3)))
   "any" #(t/any (for-ever) (for-ever) (wait/sleep! (deadline/in-ms 3)))
   "settle" #(t/settle 1 2 3)
   "pmapv" #(t/pmapv 2 inc [1 2 3 4])
   "pmap" #(doall (t/pmap 2 inc [1 2 3 4]))
   "upmap" #(doall (t/upmap 2 inc [1 2 3 4]))
   "pvalues" #(doall (t/pvalues 1 2 3))
   "nested" #(t/with-scope [s] (t/fork s (t/all 1 2)) (t/all 3 4))})

(defn- failing-at
  "Returns the function that makes a thread, but its k-th call throws t; started counts them."
  [make started k t]
  (fn [name body]
    (when (= k (swap! started inc)) (throw t))
    (make name body)))

(defn- failed-start
  "Runs the form with a k-th thread that cannot start. Returns its result with the :failure, or nil
  where there are fewer threads."
  [form k]
  (let [started (atom 0)
        failure (OutOfMemoryError. "no thread")
        result (run #(with-redefs [jdk/virtual-thread
                                   (failing-at jdk/virtual-thread started k failure)
                                   jdk/next-thread
                                   (failing-at jdk/next-thread started k failure)]
                       (form)))]
    (when (<= (long k) (long @started)) (assoc result :failure failure))))

(deftest a-thread-that-cannot-start-leaves-nothing
  (doseq [[where form] forms]
    (let [results (take-while some? (map #(failed-start form %) (iterate inc 1)))]
      (is (seq results) where)
      (doseq [[k {:keys [failure thrown] :as result}] (map-indexed vector results)]
        (testing (str where ", thread " (inc (long k)))
          (is (identical? failure thrown) (pr-str (:value result)))
          (is (= clean (select-keys result (keys clean)))))))))

(deftest the-matrix-sees-another-instance
  (testing "control: a place that wraps what is thrown"
    (let [t (Exception. "e")]
      (is (not (identical? t (:thrown (run (fn [] @(t/future (throw t)))))))))))

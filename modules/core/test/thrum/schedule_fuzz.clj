(ns thrum.schedule-fuzz
  "Small programs on the machine, disturbed at the points where threads meet: by a change of
  threads, drawn by a seed, and by an interrupt of the caller at the k-th point, for every k. For a
  JVM with -Dthrum.sync-points=true."
  (:require
   [clojure.datafy :as datafy]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.group :as group]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.wait :as wait]
   [thrum.limit-test :as limit-test]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.runner :as runner]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util Random)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; What a program counts its waits in. In real time a machine with much to do may hold a thread up
;; for longer than such a wait, and one that takes fifty would end before one that takes five.

(def ^:private ^:dynamic *unit-ms*
  1)

(def ^:private real-unit-ms
  10)

(defn- ms [units]
  (* (long *unit-ms*) (long units)))

(defn- later [units x]
  (wait/sleep! (deadline/in-ms (ms units)))
  x)

(defn- await-cancel []
  (while (not (t/cancelled?)) (Thread/yield)))

(defn- fail [x]
  (throw (ex-info "failed" {:failed x})))

;; Each takes {:limiter l, :closed atom} and has one outcome, :value or the :failed of what it
;; throws, under any schedule.
;; :own-interrupt - it interrupts its caller itself, so that another's may become one with it;
;; :if-interrupted - another outcome.

(def ^:private programs
  {:scope {:outcome [1 2]
           :f (fn [_]
                (t/with-scope [s]
                  (let [a (t/fork s (later 5 1)) b (t/fork s (later 3 2))] [@a @b])))}
   :awaited
   {:outcome :body
    :f (fn [_]
         (t/with-scope [s] (t/fork s (later 5 1)) (t/fork s {:daemon? true} (later 50 2)) :body))}
   :failing-fork
   {:outcome :a
    :own-interrupt true
    :f
    (fn [_]
      (t/with-scope [s] (t/fork s (later 3 nil) (fail :a)) (t/fork s (later 50 2)) (later 60 3)))}
   :collected {:outcome :a
               :f (fn [_]
                    (t/with-scope [s {:on-error :collect}]
                      (t/fork s (later 3 nil) (fail :a))
                      (t/fork s (later 5 2))
                      :body))}
   :cancelled {:outcome :own-value
               :own-interrupt true
               :f (fn [_]
                    (t/with-scope [s] (t/fork s (later 50 1)) (t/cancel! s :enough) :own-value))}
   :late {:outcome :late
          :own-interrupt true
          :f (fn [_] (t/with-timeout [(ms 5) :late] (later 50 1)))}
   :in-time {:outcome 1, :f (fn [_] (t/with-timeout [(ms 50) :late] (later 5 1)))}
   :all {:outcome [1 2 3], :f (fn [_] (t/all (later 3 1) (later 1 2) (later 2 3)))}
   :all-failing {:outcome :b
                 :f (fn [_]
                      (t/all (later 9 1)
                             (do
                               (later 3 nil)
                               (fail :b))
                             (later 50 3)))}
   :race {:outcome 2, :f (fn [_] (t/race (later 50 1) (later 3 2)))}
   :any {:outcome 3
         :f (fn [_]
              (t/any (do
                       (later 1 nil)
                       (fail :a))
                     (later 50 2)
                     (later 5 3)))}
   :settle {:outcome [{:value 1} {:value 2}], :f (fn [_] (t/settle (later 2 1) (later 1 2)))}
   :pmapv {:outcome [0 1 2 3], :f (fn [_] (t/pmapv 2 #(later (- 5 (long %)) %) (range 4)))}
   :pmapv-failing {:outcome 1, :f (fn [_] (t/pmapv 2 #(later % (fail %)) [1]))}
   :prun!-failing
   {:outcome 3
    :f (fn [_] (t/prun! 2 #(do (later % nil) (when (= 3 %) (fail %))) [1 2 3]))}
   :pmapv-late {:outcome :late
                :own-interrupt true
                :f (fn [_] (t/with-timeout [(ms 5) :late] (t/pmapv 2 #(later % %) [1 50])))}
   ;; A fork that knows of the cancel further out before its scope is marked.
   :nested-cancelled
   {:outcome :thrum/cancelled
    :own-interrupt true
    :f (fn [_]
         (try
           (t/with-scope [outer]
             (t/fork outer (t/cancel! outer :enough))
             (t/with-scope [s] (t/fork s (await-cancel) (t/checkpoint)) :body))
           (catch CancellationException e (t/error-type e))))}
   ;; An item that knows of the cancel before the fan-out is closed.
   :prun!-cancelled
   {:outcome :thrum/cancelled
    :own-interrupt true
    :f (fn [_]
         (try
           (t/with-scope [s]
             (t/fork s (t/cancel! s :enough))
             (t/prun! 1 (fn [_] (await-cancel) (throw (InterruptedException.))) [1]))
           (catch CancellationException e (t/error-type e))))}
   :item-late {:outcome :thrum/timeout
               :own-interrupt true
               :f (fn [_]
                    (try
                      (t/pmapv {:limit 2, :item-timeout-ms (ms 5)} #(later % %) [3 50 4])
                      (catch clojure.lang.ExceptionInfo e (t/error-type e))))}
   :nested {:outcome [:late 2]
            :own-interrupt true
            :f (fn [_]
                 (t/with-scope [s]
                   (let [a (t/fork s (later 9 2))]
                     [(t/with-timeout [(ms 5) :late] (t/all (later 50 1) (later 60 2))) @a])))}
   ;; The cleanup of a late body was interrupted: the fallback answers for both.
   :shield {:outcome [:late 1]
            :if-interrupted [:late nil]
            :own-interrupt true
            :f (fn [_]
                 (let [cleaned (atom nil)]
                   [(t/with-timeout [(ms 5) :late]
                                    (try
                                      (later 50 1)
                                      (finally
                                        (t/shield (ms 500) (reset! cleaned (later 9 1))))))
                    @cleaned]))}
   :use {:outcome :body
         :f (fn [{:keys [closed]}]
              (t/with-scope [s]
                (t/use! s
                        :a
                        #(do
                           (swap! closed conj %)
                           (later 1 nil)))
                (t/fork s (later 3 1))
                (t/use! s
                        :b
                        #(do
                           (swap! closed conj %)
                           (later 1 nil)))
                :body))}
   :limiter {:outcome [1 2 3]
             :f (fn [{:keys [limiter]}]
                  (t/all (t/with-permit limiter (later 3 1))
                         (t/with-permit limiter (later 2 2))
                         (t/with-permit limiter (later 1 3))))}
   :limiter-late {:outcome [:late :late]
                  :f (fn [{:keys [limiter]}]
                       (let [held #(t/with-permit limiter (later 50 nil))]
                         (t/all (t/with-timeout [(ms 5) :late] (held))
                                (t/with-timeout [(ms 6) :late] (held)))))}
   :retry {:outcome 3
           :f (fn [_]
                (let [tries (atom 0)]
                  (t/retry {:schedule (t/constant (ms 3)), :attempts 5}
                           (if (< (long (swap! tries inc)) 3) (fail :again) (later 1 @tries)))))}})

;; What came of a run

(defn- outcome [{:keys [value thrown]}]
  (cond
    (instance? InterruptedException thrown) :interrupted
    thrown (:failed (ex-data thrown) thrown)
    :else value))

(defn- in-use [limiter]
  (:in-use (datafy/datafy limiter)))

(defn- left-over
  "Returns what a run has left behind, or nil."
  [{:keys [alive planned]} {:keys [limiter closed]}]
  (not-empty
    (cond-> {}
      (not= 0 alive) (assoc :threads alive)
      (not= 0 planned) (assoc :alarms planned)
      (not= 0 (in-use limiter)) (assoc :permits (in-use limiter))
      (not (contains? #{[] [:a] [:b :a]} @closed)) (assoc :closed @closed))))

(defn- run-disturbed
  "Runs a program; on-point is called with the caller's thread and the point. Returns [result
  left-over]."
  [{:keys [f]} seed on-point]
  (let [env {:limiter (t/limiter 1), :closed (atom [])}
        body (fn []
               (let [caller (Thread/currentThread)]
                 (reset! sync-point/listener #(on-point caller %))
                 (f env)))
        result (try (gate/in-time 10000 #(virtual-clock/run seed body))
                    (finally (reset! sync-point/listener nil)))]
    [result (left-over result env)]))

;; Another order of threads

(defn- on-the-machine? []
  (.isVirtual (Thread/currentThread)))

(defn- change-threads
  "Now and then the machine goes on with another thread: that is what yielding means there."
  [^Random random]
  (fn [_ _]
    (when (and (on-the-machine?) (zero? (.nextInt random 3))) (Thread/yield))))

(defn- schedule-failure
  [[name program] seed]
  (let [[result left] (run-disturbed program seed (change-threads (Random. seed)))]
    (when (or left (:interrupted result) (not= (:outcome program) (outcome result)))
      {:program name
       :seed seed
       :outcome (outcome result)
       :left left
       :interrupted (:interrupted result)})))

;; An interrupt at every point

(defn- interrupt-at
  "on-point for an interrupt of the caller at the k-th point; seen counts them."
  [k seen]
  (fn [^Thread caller _]
    (when (= k (swap! seen inc)) (.interrupt caller))))

(defn- shows-interrupt?
  "The caller can know: by the flag, by what is thrown, or by what rides on it, where a fork had
  failed before."
  [{:keys [interrupted ^Throwable thrown]}]
  (if (instance? InterruptedException thrown)
    (not interrupted)
    (or interrupted (some #(instance? InterruptedException %) (some-> thrown .getSuppressed)))))

(defn- interrupt-failure
  "Returns a failure, :ok, or nil where the program has fewer than k points."
  [[name program] seed k]
  (let [seen (atom 0)
        [result left] (run-disturbed program seed (interrupt-at k seen))
        expected? (into #{:interrupted} (vals (select-keys program [:outcome :if-interrupted])))]
    (cond
      (< (long @seen) (long k)) nil
      (or left
          (not (expected? (outcome result)))
          (not (or (shows-interrupt? result) (:own-interrupt program))))
      {:program name
       :seed seed
       :point k
       :outcome (outcome result)
       :left left
       :interrupted (:interrupted result)}
      :else :ok)))

(defn- interrupts [program seed]
  (take-while some? (map #(interrupt-failure program seed %) (iterate inc 1))))

;; The same on the threads of the JDK, in real time

(defn- dawdle [^Random random]
  (fn [_]
    (LockSupport/parkNanos (* 1000 (.nextInt random 50)))))

(defn- real-failure [[name {:keys [f] :as program}] seed]
  (let [env {:limiter (t/limiter 1), :closed (atom [])}
        result (try
                 (reset! sync-point/listener (dawdle (Random. seed)))
                 (try
                   {:value (gate/in-time 10000 #(binding [*unit-ms* real-unit-ms] (f env)))}
                   (catch Throwable t {:thrown t}))
                 (finally (reset! sync-point/listener nil)))
        left (left-over {:alive 0, :planned 0} env)]
    (when (or left (not= (:outcome program) (outcome result)))
      {:program name, :real true, :seed seed, :outcome (outcome result), :left left})))

;; All of it

(defn- outcomes
  [seeds]
  (concat
    (for [program programs seed (take seeds (range))] (or (schedule-failure program seed) :ok))
    (for [program programs
          seed (take (quot seeds 20) (range))
          result (interrupts program seed)]
      result)
    (for [program programs
          seed (take (quot seeds 40) (range))]
      (or (real-failure program seed) :ok))))

(defn- report!
  "Prints the failures, at most ten, and then a line of how many there were."
  [outcomes]
  (let [failures (remove #{:ok} outcomes)]
    (run! prn (take 10 failures))
    (println (str (count outcomes) " runs, " (count failures) " failures"))))

(defn- points?
  "True if a point is reached, so that points were compiled in."
  []
  (let [reached (promise)]
    (try
      (reset! sync-point/listener #(deliver reached %))
      (t/pmapv 1 identity [1])
      (realized? reached)
      (finally (reset! sync-point/listener nil)))))

(defn run
  "Prints what so many schedules found, and then what two found of a library that joins nobody: the
  control. Throws ex-info where the points are not compiled in."
  [seeds]
  (when-not (points?)
    (throw (ex-info "The points are not compiled in: -Dthrum.sync-points=true is missing" {})))
  (report! (outcomes seeds))
  (with-redefs [group/join! (fn [_])] (report! (outcomes 2))))

(defn- run-limiter
  "Prints how the limiter's own sweep went, which interrupts those who wait too, not the caller
  alone."
  []
  (let [sweep #'limit-test/an-interrupt-at-any-point-loses-no-permit]
    (println "limiter" (:outcome (runner/run-var sweep {})))))

(defn -main
  "Argument: how many seeds."
  [seeds]
  (run (parse-long seeds))
  (run-limiter)
  (flush)
  (System/exit 0))

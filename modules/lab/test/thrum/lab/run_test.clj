(ns thrum.lab.run-test
  "In which order a plan is run, that nothing an experiment throws ends the run, and what is left of
  a run that was ended."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.text :as report.text]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]))

(set! *warn-on-reflection* true)

(def ^:private idle
  {:open! (constantly {}), :sample! (constantly {:ms 1.0})})

(defn- order
  "Returns the contenders of the samples of one part, in the order in which they were taken."
  [part]
  (let [taken (atom [])
        rows [{:contender :a, :repeat 3} {:contender :b, :repeat 2}]
        note (fn [{:keys [event row]}]
               (when (= :sample-starts event) (swap! taken conj (:contender row))))]
    (run/run! {:idle idle} [{:experiment :idle, :parts [(assoc part :contenders rows)]}] note)
    @taken))

(deftest rows-are-run-one-after-the-other-or-in-turns
  (is (= [:a :a :a :b :b] (order {:part :p})))
  (is (= [:a :b :a :b :a] (order {:part :p, :in-turns? true}))))

(defn- unable
  "Returns an experiment that must not be run, whose opening returns env."
  [env]
  {:open! (fn [_] (env)), :sample! (fn [& _] (throw (AssertionError.)))})

(deftest an-experiment-that-cannot-be-opened-is-skipped-with-the-reason
  (let [closed (atom 0)
        events (atom [])
        done (run/run! {:x (unable (fn [] {:skipped "Maven failed", :close! #(swap! closed inc)}))}
                       [{:experiment :x
                         :parts [{:part :p, :contenders [{:contender :a, :repeat 1}]}]}]
                       #(swap! events conj %))]
    (is (= ["Maven failed"] (map :skipped (:parts (first done)))))
    (is (= [:experiment-starts :experiment-skipped] (map :event @events)))
    (is (= 1 @closed))))

(deftest what-is-skipped-is-not-opened
  (let [opened (atom 0)]
    (run/run! {:x (unable (fn [] (swap! opened inc) {}))}
              [{:experiment :x
                :parts [{:part :p, :skipped "no mvn", :contenders [{:contender :a, :repeat 1}]}
                        {:part :q, :contenders [{:contender :b, :skipped "no jar", :repeat 1}]}]}]
              (fn [_]))
    (is (= 0 @opened))))

;; Experiments that throw

(defn- throws-at
  "Returns an experiment with two rows that calls (fail!) in one of its steps: :plan, :open, :first,
  :second or :close."
  [step fail!]
  (let [at (fn [here value] (when (= here step) (fail!)) value)]
    {:name :x
     :plan (fn [_ _]
             (at :plan
                 {:experiment :x
                  :title "X"
                  :about "It throws."
                  :parts [{:part :p
                           :title "P"
                           :contenders [{:contender :a, :name "a", :repeat 1}
                                        {:contender :b, :name "b", :repeat 1}]}]}))
     :open! (fn [_] (at :open {:close! #(at :close nil)}))
     :sample! (fn [_ _ {:keys [contender]} _]
                (at (if (= :a contender) :first :second) {:ms 1.0}))}))

(defn- run-beside-idle
  "Runs the experiment and, after it, one that does nothing; returns the result."
  [experiment]
  (let [{name :experiment, :as plan} (experiment/planned experiment {} {})
        idle-plan {:experiment :idle
                   :title "Idle"
                   :parts
                   [{:part :i, :title "I", :contenders [{:contender :i, :name "i", :repeat 1}]}]}]
    {:experiments (run/run! {name experiment, :idle idle} [plan idle-plan] (fn [_]))}))

(defn- stack-overflow! []
  (letfn [(deeper [n] (+ 1 (long (deeper (inc n)))))]
    (deeper 0)))

(def ^:private failures
  "By what a row says of them: everything that a step may throw."
  {"java.lang.IllegalStateException: bad" #(throw (IllegalStateException. "bad"))
   "java.lang.AssertionError: " #(throw (AssertionError.))
   "java.lang.StackOverflowError: " stack-overflow!
   "java.io.IOException: mvn" #(throw (java.io.IOException. "mvn"))
   "its message cannot be read" #(throw (proxy [RuntimeException] []
                                          (getMessage [] (throw (Error. "no message")))))})

(deftest whatever-an-experiment-throws-is-a-row-and-the-rest-is-kept
  (doseq [[words fail!] failures
          [step expected] {:plan [:failed]
                           :open [:failed :failed]
                           :first [:failed :done]
                           :second [:done :failed]
                           :close [:done :done :failed]}]
    (testing (str step " " words)
      (let [result (run-beside-idle (throws-at step fail!))
            [broken idle] (map (comp first :parts) (:experiments result))]
        (is (= expected (map :verdict (:contenders broken))))
        (is (= [:done] (map :verdict (:contenders idle))))
        (is (= 1 (result/exit-code result)))
        (is (str/includes? (report.text/report (assoc result :machine {})) words))
        (is (str/includes? (report.html/page (assoc result :machine {})) words))))))

(deftest a-sample-that-is-none-is-a-failure
  (doseq [sample [nil 7 {:ms "long"}]]
    (let [odd {:open! (constantly {:close! nil}), :sample! (constantly sample)}
          [{:keys [parts]}] (run/run! {:x odd}
                                      [{:experiment :x
                                        :parts [{:part :p
                                                 :contenders [{:contender :a, :repeat 2}]}]}]
                                      (fn [_]))]
      (is (= [:failed] (map :verdict (:contenders (first parts)))) (pr-str sample)))))

(deftest what-cannot-be-shown-costs-no-report
  (let [fail (fn [& _] (throw (StackOverflowError.)))
        odd {:columns fail, :conditions fail, :label fail, :headline fail, :meaning fail}
        row {:contender :a, :name "a", :verdict :done, :median-ms 3.0, :samples [{:ms 3.0}]}
        result {:machine {}
                :experiments [{:experiment :odd
                               :title "Odd"
                               :parts [{:part :p, :title "P", :contenders [row]}]}]}]
    (doseq [odd [odd (assoc odd :columns [{:heading "x", :show fail}]) (assoc odd :rows fail)]]
      (with-redefs [experiments/by-name {:odd odd}]
        (is (str/includes? (report.text/report result) "\nMachine"))
        (is (str/includes? (report.html/page result) "id=\"machine\""))))))

(deftest an-interrupt-that-is-not-the-users-costs-one-sample
  (doseq [interrupt! [#(.interrupt (Thread/currentThread)) #(throw (InterruptedException.))]
          step [:first :second :open :close]]
    (let [{[broken idle] :experiments} (run-beside-idle (throws-at step interrupt!))]
      (is (not-any? :interrupted? [broken idle]))
      (is (= [:done] (map :verdict (:contenders (first (:parts idle))))))
      (is (not (Thread/interrupted))))))

(deftest progress-that-cannot-be-shown-costs-nothing
  (let [[{:keys [parts]}] (run/run! {:idle idle}
                                    [{:experiment :idle
                                      :parts [{:part :p
                                               :contenders [{:contender :a, :repeat 1}]}]}]
                                    (fn [_] (throw (java.io.IOException. "Broken pipe"))))]
    (is (= [:done] (map :verdict (:contenders (first parts)))))))

;; The end before its time

(defn- plan-of
  [name]
  {:experiment name
   :parts [{:part name, :contenders [{:contender :a, :repeat 1} {:contender :b, :repeat 1}]}]})

(defn- verdicts [plans]
  (map (fn [{:keys [parts]}] (map :verdict (:contenders (first parts)))) plans))

(defn- ended-in
  "Returns [at-that-moment result] of two experiments of two rows, the run of which is over in the
  sample that is the nth of all."
  [nth-sample end!]
  (let [over (promise)
        journal (atom nil)
        then (promise)
        left (atom nth-sample)
        experiment {:open! (constantly {})
                    :sample! (fn [& _]
                               (when (zero? (swap! left dec))
                                 (deliver over true)
                                 (deliver then @journal)
                                 (end!))
                               {:ms 1.0})}
        done (run/run! {:x experiment, :y experiment}
                       [(plan-of :x) (plan-of :y)]
                       (fn [_])
                       {:over over, :journal journal})]
    [@then done]))

(deftest the-journal-holds-what-was-measured-at-any-moment
  (doseq [end! [(fn []) #(throw (InterruptedException.)) #(throw (Error. "a child died"))
                #(.interrupt (Thread/currentThread))]
          [n expected] {1 [[:interrupted :not-run] [:not-run :not-run]]
                        2 [[:done :interrupted] [:not-run :not-run]]
                        3 [[:done :done] [:interrupted :not-run]]
                        4 [[:done :done] [:done :interrupted]]}]
    (let [[then done] (ended-in n end!)]
      (is (= expected (verdicts then) (verdicts done)))
      (is (= [130 130] (map #(result/exit-code {:experiments %}) [then done])))
      (is (not (Thread/interrupted)) "no interrupt is left for what writes the result"))))

(deftest a-run-that-is-over-starts-nothing
  (let [opened (atom 0)]
    (is (= [[:not-run :not-run]]
           (verdicts (run/run! {:x (unable (fn [] (swap! opened inc) {}))} [(plan-of :x)] (fn [_])
                               {:over (doto (promise) (deliver true)), :journal (atom nil)}))))
    (is (= 0 @opened))))

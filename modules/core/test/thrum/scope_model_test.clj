(ns thrum.scope-model-test
  "Thrum does with programs of scopes what their model says, to the millisecond."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [clojure.test.check :as tc]
   [clojure.test.check.properties :as prop]
   [thrum.impl.error :as error]
   [thrum.impl.timer :as timer]
   [thrum.program :as program]
   [thrum.scope-model :as model]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util.concurrent CancellationException ExecutionException)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

;; What is compared: {:at ms, :value v | :thrown x, :forks {id [start end]}, :closes {scope [[id ms]
;; ...]}}

(defn- expected [program]
  (let [{:keys [at value thrown events]} (model/outcome program)
        forks (filter #(= :fork (:event %)) events)
        closes (filter #(or (= :close (:event %)) (:too-late %)) events)]
    {:at at
     :value value
     :thrown (when thrown (select-keys thrown [:kind :id :ms :reason]))
     :forks (into {} (map (juxt :id (juxt :start :at))) forks)
     :closes (update-vals (group-by :scope (sort-by :at closes)) #(mapv (juxt :id :at) %))}))

(defn- described
  "Returns a throwable as the model names it."
  [t]
  (let [{:keys [type timeout-ms], :program/keys [failure]} (ex-data t)]
    (cond failure {:kind :failure, :id failure}
          (= :thrum/timeout type) {:kind :timeout, :ms timeout-ms}
          (= :thrum/closed type) {:kind :closed}
          (instance? ExecutionException t) (recur (ex-cause t))
          (instance? CancellationException t) {:kind :cancelled
                                               :reason (:reason (ex-data t))}
          :else {:kind :unexpected, :throwable t})))

(defn- actual
  "Returns what the run came to, and the log."
  [program seed]
  (let [log (atom [])
        running (atom {})
        run #(program/run program {:log log, :running running})
        {:keys [value thrown nanos], :as result} (gate/in-time 10000
                                                               (fn [] (virtual-clock/run seed run)))
        events (group-by :event @log)]
    {:result result
     :log events
     :outcome {:at (quot nanos 1000000)
               :value value
               :thrown (some-> thrown
                               described)
               :forks (into {} (map (juxt :id (juxt :start :end))) (:fork events))
               :closes (update-vals (group-by :scope (:close events)) #(mapv (juxt :id :at) %))}}))

(defn- scopes-of-forks
  "Returns by id the scope of every fork of the program."
  [program]
  (into {}
        (comp (filter #(= :fork (:op %))) (map (juxt :id :scope)))
        (tree-seq coll? seq program)))

(defn- first-of-two?
  "True if one threw what a fork's inherited deadline throws, and the other what a close threw at
  that instant, in another scope than such a fork's. A deadline that several forks have comes to
  each of them, and what the end of one leads to need not wait for the next."
  [program {:keys [at closes forks]} thrown]
  (let [{[timeout] :timeout, [failure] :failure} (group-by :kind thrown)
        [scope] (some (fn [[_ ended :as closed]] (when (some #{[(:id failure) at]} ended) closed))
                      closes)
        ended (keys (filter (fn [[_ [_ end]]] (= at end)) forks))]
    (boolean (and timeout (nil? (:ms timeout)) failure scope
                  (some #(not= scope %) (map (scopes-of-forks program) ended))))))

(defn- same?
  "The deadline of a fork's caller may speak for the fork's: both have come at that instant."
  [program expected actual]
  (let [thrown (map :thrown [expected actual])]
    (and (= (dissoc expected :thrown) (dissoc actual :thrown))
         (or (apply = thrown)
             (every? #(= :timeout (:kind %)) thrown)
             (first-of-two? program actual thrown)))))

(defn- sound?
  "What holds for any outcome: no task outlives a scope, closes come after its forks, and nothing is
  left."
  [{:keys [log result]}]
  (and (every? #(zero? (:running %)) (:end log))
       (every? #(zero? (:running %))
               (remove (comp (set (map :id (:refused log))) :id) (:close log)))
       (= {:interrupted false, :alive 0, :planned 0}
          (select-keys result [:interrupted :alive :planned]))))

(defn- mismatch
  "Returns what the model and the run say where they differ, or nil."
  [program seed]
  (let [expected (expected program)
        {:keys [outcome], :as actual} (actual program seed)]
    (when-not (and (same? program expected outcome) (sound? actual))
      {:expected expected
       :actual outcome
       :result (dissoc (:result actual) :thrown)
       :log (:log actual)})))

(defn- check [n]
  (tc/quick-check n (prop/for-all [program program/programs, seed program/seeds]
                      (nil? (mismatch program seed)))
                  :max-size 60))

(def ^:private programs
  "How many; .ci/run has more, by -Dthrum.programs."
  (Long/getLong "thrum.programs" 300))

(deftest scopes-do-what-their-model-says
  (let [{:keys [pass? shrunk seed]} (check programs)
        [program machine-seed :as smallest] (:smallest shrunk)]
    (is pass?
        (pr-str {:seed seed
                 :smallest smallest
                 :mismatch (when-not pass? (mismatch program machine-seed))}))
    (is (zero? (timer/scheduled)))))

;; Found by seed 1795753391215.
(deftest what-fails-with-the-task-that-it-joins-fails-after-it
  (let [inner {:op :scope
               :id 4
               :pause 2
               :on-error :collect
               :body {:op :fork
                      :id 5
                      :scope 4
                      :daemon? false
                      :pause 4
                      :task {:op :throw, :id 7, :pause 16}
                      :then {:op :fork
                             :id 8
                             :scope 1
                             :daemon? false
                             :pause 32
                             :task {:op :throw, :id 9, :pause 256}
                             :then {:op :join, :id 10, :joins 8, :pause 64}}}}]
    (is (nil? (mismatch {:op :scope
                         :id 1
                         :on-error :cancel
                         :body {:op :fork
                                :id 2
                                :scope 1
                                :daemon? false
                                :pause 1
                                :task inner
                                :then {:op :sleep, :id 11, :pause 128}}}
                        0)))))

;; Found by seed 1795765456045.
(deftest what-a-deadline-of-two-forks-leads-to-may-come-before-it-comes-to-the-other
  (let [sleep (fn [id pause] {:op :sleep, :id id, :pause pause})
        fork (fn [id scope pause task then]
               {:op :fork, :id id, :scope scope, :daemon? false, :pause pause
                :task task, :then then})
        failing-close {:op :use, :id 8, :scope 2, :pause 32, :fails? true}
        in-time (fn [body] {:op :shield, :id 3, :pause 2, :deadline 512, :body body})
        inner (in-time (fork 4 2 4 (fork 5 1 8 (sleep 6 1024) (sleep 7 2048)) failing-close))]
    (is (nil? (mismatch {:op :scope
                         :id 1
                         :on-error :cancel
                         :body {:op :scope, :id 2, :pause 1, :on-error :keep, :body inner}}
                        0)))))

(deftest a-library-that-breaks-its-rules-is-found-out
  (testing "control: a consequence of a cancel counts as a failure"
    (with-redefs [error/casualty? (constantly false)]
      (is (not (:pass? (check 300)))))))

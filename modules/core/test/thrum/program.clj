(ns thrum.program
  "Programs of scopes as data: how they are generated, and how Thrum runs them.

  Every operation begins with a pause, and all pauses and deadlines are different powers of two, so
  that no two sums are the same: two things happen at the same instant only where one is the cause
  of the other. That determines the outcome."
  (:require
   [clojure.test.check.generators :as gen]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait]))

(set! *warn-on-reflection* true)

;; What is generated: a tree. Weights order the durations; :to and :of choose among the scopes and
;; tasks in sight.

(def ^:private weight (gen/choose 0 100))
(def ^:private index (gen/choose 0 3))

(defn- op [op & kvs]
  (apply gen/hash-map :op (gen/return op) kvs))

(def ^:private leaf
  (gen/frequency [[4 (op :sleep :pause weight)] [2 (op :throw :pause weight)]
                  [2 (op :join :pause weight :of index)] [1 (op :cancel :pause weight :to index)]
                  [2
                   (op :use
                       :pause weight
                       :to index
                       :fails? (gen/frequency [[4 (gen/return false)] [1 (gen/return true)]]))]]))

(def ^:private maybe-weight
  (gen/frequency [[2 (gen/return nil)] [1 weight]]))

(defn- inner
  [node]
  (gen/frequency [[4 (op :do :nodes (gen/vector node 1 3))]
                  [6
                   (op :fork
                       :pause weight
                       :to index
                       :daemon? (gen/frequency [[4 (gen/return false)] [1 (gen/return true)]])
                       :task node
                       :then node)]
                  [3
                   (op :scope
                       :pause weight
                       :deadline maybe-weight
                       :on-error (gen/elements [:cancel :cancel :collect :keep])
                       :body node)]
                  [2 (op :timeout :pause weight :deadline weight :fallback? gen/boolean :body node)]
                  [1 (op :shield :pause weight :deadline weight :body node)]
                  [2 (op :finally :body node :cleanup node)]]))

(defn- tree [depth]
  (if (zero? depth)
    leaf
    (gen/frequency [[1 leaf] [5 (inner (tree (dec depth)))]])))

;; What is run: nodes have ids, durations are ms, scopes and tasks are named by the ids of their
;; nodes.

(defn- numbered
  "Returns the node with :id in it and those below."
  [node]
  (let [ids (atom 0)
        number (fn number [node]
                 (cond
                   (and (map? node) (:op node)) (let [id (swap! ids inc)]
                                                  (assoc (update-vals node number) :id id))
                   (vector? node) (mapv number node)
                   :else node))]
    (number node)))

(defn- nodes [node]
  (filter :op (tree-seq coll? #(if (map? %) (vals %) (seq %)) node)))

(defn- weights
  "Returns [weight id key] of every duration, sorted."
  [node]
  (sort (for [{:keys [id] :as node} (nodes node), key [:pause :deadline], :when (key node)]
          [(key node) id key])))

(defn- timed
  [node]
  (let [ms
        (into {} (map-indexed (fn [i [_ id key]] [[id key] (bit-shift-left 1 i)])) (weights node))
        set-ms (fn set-ms [x]
                 (cond (map? x) (let [x (update-vals x set-ms)]
                                  (reduce #(if (%2 %1) (assoc %1 %2 (ms [(:id x) %2])) %1)
                                          x
                                          [:pause :deadline]))
                       (vector? x) (mapv set-ms x)
                       :else x))]
    (set-ms node)))

(defn- pick [choices i]
  (when (seq choices) (nth choices (mod i (count choices)))))

(declare resolved)

(defn- resolved-fork
  "A task sees the scopes that its own belongs to, and their tasks."
  [{:keys [id to] :as node} {:keys [scopes tasks] :as sight}]
  (let [scope (pick scopes to), outer (drop-while #(not= scope %) scopes)]
    (-> node
        (assoc :scope scope)
        (update :task resolved {:scopes outer, :tasks (filter #(some #{(:scope %)} outer) tasks)})
        (update :then resolved (update sight :tasks #(cons {:id id, :scope scope} %))))))

(defn- forks-into? [scopes node]
  (some #(and (= :fork (:op %)) (some #{(:scope %)} scopes)) (nodes node)))

;; A fork keeps the deadline of the form that it is forked in, and fails at the same instant as the
;; form throws. If the scope of the fork gets something else than that timeout from inside, it
;; is open what comes first.

(defn- without-fallback [{:keys [body], :as node} scopes]
  (cond-> node
    (forks-into? scopes body) (assoc :fallback? false)))

(defn- without-collecting
  "A scope that collects failures throws an earlier one instead of the timeout."
  [{:keys [on-error], :as node} scopes]
  (cond-> node
    (and (= :collect on-error)
         (some #(and (:deadline %) (forks-into? scopes %)) (nodes node))) (assoc :on-error
                                                                                 :cancel)))

(defn- resolved [{:keys [id op] :as node} {:keys [scopes tasks] :as sight}]
  (case op
    (:sleep :throw) node
    :join (assoc node :joins (:id (pick tasks (:of node))))
    (:cancel :use) (assoc node :scope (pick scopes (:to node)))
    :do (update node :nodes (partial mapv #(resolved % sight)))
    :fork (resolved-fork node sight)
    :scope (-> node
               (update :body resolved (update sight :scopes #(cons id %)))
               (without-collecting scopes))
    :timeout (-> node (update :body resolved sight) (without-fallback scopes))
    :shield (update node :body resolved sight)
    :finally (-> node (update :body resolved sight) (update :cleanup resolved sight))))

(defn- program [tree]
  (-> {:op :scope, :on-error :cancel, :body tree}
      numbered
      timed
      (resolved nil)))

(defn- short-enough? [tree]
  (<= (count (weights (numbered tree))) 40))

(def seeds
  "Generates seeds of the machine's order."
  (gen/choose 0 1000000))

(def programs
  "Generates programs."
  (gen/fmap program (gen/such-that short-enough? (gen/bind (gen/choose 1 5) tree) 100)))

;; How Thrum runs it

(defn- failure [id]
  (ex-info "failed" {:program/failure id}))

(defn- now-ms []
  (quot (deadline/now) 1000000))

(defn- log! [{:keys [log]} event]
  (swap! log conj event))

(defn- count-running! [{:keys [running]} scope n]
  (swap! running update scope (fnil + 0) n))

(declare run)

(defn- run-task
  "Runs the task of a fork, and notes when, and how many run in its scope."
  [env {:keys [id task scope]}]
  (let [start (now-ms)]
    (count-running! env scope 1)
    (try
      (run task env)
      (finally
        (count-running! env scope -1)
        (log! env {:event :fork, :id id, :start start, :end (now-ms)})))))

(defn- close!
  [env {:keys [id scope fails?]}]
  (log! env
        {:event :close, :id id, :scope scope, :at (now-ms), :running (get @(:running env) scope 0)})
  (when fails? (throw (failure id))))

(defn- use-it! [env {:keys [id] :as node} scope]
  (try
    (t/use! scope id (fn [_] (close! env node)))
    (catch Throwable t
      (log! env {:event :refused, :id id})
      (throw t))))

(defn- options [{:keys [deadline on-error]}]
  (cond-> {:on-error on-error}
    deadline (assoc :timeout-ms deadline)))

(defn- run-scope [{:keys [id body] :as node} env]
  (try
    (t/with-scope [s (options node)]
      (run body (assoc-in env [:scopes id] s)))
    (finally
      (log! env {:event :end, :id id, :running (get @(:running env) id 0)}))))

(defn run
  "Runs the node on the calling thread. env: {:scopes {id scope}, :tasks {id task}, :log atom of
  events, :running atom}."
  [{:keys [op id pause body] :as node} env]
  (when pause (wait/sleep! (deadline/in-ms pause)))
  (let [scope (get-in env [:scopes (:scope node)])]
    (case op
      :sleep id
      :throw (throw (failure id))
      :join (when-some [task (get-in env [:tasks (:joins node)])] @task)
      :cancel (do (t/cancel! scope id) id)
      :use (use-it! env node scope)
      :do (reduce (fn [_ node] (run node env)) nil (:nodes node))
      :fork (let [task (t/fork-call scope {:daemon? (:daemon? node)} #(run-task env node))]
              (run (:then node) (assoc-in env [:tasks id] task)))
      :scope (run-scope node env)
      :timeout (if (:fallback? node)
                 (t/with-timeout [(:deadline node) [:fallback id]] (run body env))
                 (t/with-timeout (:deadline node) (run body env)))
      :shield (t/shield (:deadline node) (run body env))
      :finally (try (run body env) (finally (run (:cleanup node) env))))))

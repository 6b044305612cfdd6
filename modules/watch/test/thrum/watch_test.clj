(ns thrum.watch-test
  "What is seen of programs that run."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.spi.watch :as spi-watch]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.watch :as watch]
   [thrum.watch.carriers :as carriers]
   [thrum.watch.impl.groups :as groups]
   [thrum.watch.impl.rules :as rules]
   [thrum.watch.impl.sampler :as sampler]
   [thrum.watch.impl.snapshot :as snapshot]
   [thrum.watch.impl.tree :as tree]
   [thrum.watch.registered :refer [call-registered]])
  (:import
   (java.lang.ref Reference)
   (java.util IdentityHashMap)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- nodes []
  (mapcat #(tree-seq :children :children %) (watch/tree {:stacks? true})))

(defn- node-named [prefix]
  (first (filter #(str/starts-with? (str (:name %)) prefix) (nodes))))

(defn- tried [f]
  (try (f) (catch Exception _)))

(defn- tried-to [f]
  (try
    (f)
    (catch Exception e e)))

(deftest an-event-counts-the-lints-that-it-has
  (let [looks (atom [[{:rule :old}] []])
        sampler (reify sampler/Sampling
                  (lints [_] (ffirst (swap-vals! looks next)))
                  (latest [_] nil))
        {:keys [lints sentences]} ((#'watch/event sampler))]
    (is (= [{"old" 1} [{:rule :old}]] [lints sentences]))))

(deftest what-is-no-watch-is-refused
  (doseq [f [watch/port watch/token watch/lints], x [nil 7777]
          :let [e (tried-to #(f x))]]
    (is (= [:thrum/invalid x] ((juxt :type :value) (ex-data e))))
    (is (str/includes? (ex-message e) "as start! returns it"))))

(deftest the-tree-shows-what-belongs-to-what
  (let [gate (promise), begun (promise)
        task (t/future
               (t/with-scope [s {:name "checkout"}]
                 (t/fork s {:name "fetch"} (deliver begun true) @gate)
                 (t/with-timeout [60000] (t/pmapv 2 (fn [_] @gate) [1 2 3]))))]
    @begun
    (is (gate/eventually 20000
          #(let [{:keys [children waits-for]} (node-named "checkout")]
             (and (= 2 (:running (node-named "pmapv")))
                  waits-for
                  (some #{[:task :parked]} (map (juxt :kind :thread-state) children))))))
    (let [{:keys [name state children waits-for]} (node-named "checkout")
          fetch (first (filter (comp #{:task} :kind) children))
          {[fan-out] :children, :keys [deadline-ms]} (node-named "timeout")]
      (is (= [:open (str name "/fetch-0")] [state (:name fetch)]))
      (is (= [:task :running :parked] (map fetch [:kind :state :thread-state])))
      (is (some #(str/includes? % "watch_test.clj") (:stack fetch)))
      (is (< 0 deadline-ms 60001))
      (is (= [:fan-out [:task :task]] [(:kind fan-out) (map :kind (:children fan-out))]))
      (is (= (str "children " (:name fan-out)) waits-for))
      (is (some #(= [:task name] [(:kind %) (:name (first (:children %)))]) (watch/tree))))
    (deliver gate :go)
    @task))

(deftest a-scope-whose-body-has-ended-is-shown-without-a-thread
  (let [gate (promise)
        task (t/future (t/with-scope [s {:name "waiting"}] (t/fork s @gate) nil))]
    (is (gate/eventually 5000
          #(= {:body-ended? true} (select-keys (node-named "waiting") [:body-ended? :thread]))))
    (deliver gate :go)
    @task))

(defn- most-often-asked
  "Returns how often, at most, one thing was asked for its facts while f ran."
  [f]
  (let [asked (IdentityHashMap.), facts spi-watch/facts]
    (with-redefs [spi-watch/facts (fn [thing]
                                    (locking asked
                                      (.put asked thing (inc (long (.getOrDefault asked thing 0)))))
                                    (facts thing))]
      (f))
    (reduce max 0 (.values asked))))

(deftest a-look-asks-each-thing-once-however-many-belong-to-it
  (let [gate (promise), n 100
        siblings (t/future
                   (t/pmapv n
                            (fn [_] (t/with-scope [s {:name "sibling"}] @(t/fork s @gate)))
                            (range n)))
        forks #(count (filter (fn [{:keys [kind name]}]
                                (and (= :task kind) (str/starts-with? name "sibling")))
                              (nodes)))]
    (is (gate/eventually 20000 #(= n (forks))))
    (is (= [1 1] (map most-often-asked [watch/tree watch/groups])))
    (deliver gate :go)
    @siblings))

(deftest wrong-options-are-refused
  (doseq [[read options] [[watch/tree {:fold true}]
                          [watch/tree {:fold? 1}]
                          [watch/groups {:stacks 7}]
                          [watch/groups {:max-stacks -1}]]]
    (is (= :thrum/invalid (t/error-type (tried-to #(read options)))) options)))

(deftest what-begins-while-it-is-looked-at-is-no-younger-than-new
  (let [node {:id "a", :kind :scope, :name "a", :since 9000000, :deadline 3000000}
        [shown] (tree/tree {:at 5000000, :nodes [node]} {})]
    (is (= [0 -2] ((juxt :age-ms :deadline-ms) shown)))))

(deftest a-tree-of-a-recursion-that-has-run-away-has-an-end
  (let [chain (for [i (range 20000)]
                {:id i, :kind :scope, :name i, :parent (when (pos? i) (dec i))})
        levels (take-while some? (iterate (comp first :children)
                                          (first (tree/tree {:at 0, :nodes chain} {}))))]
    (is (= 200 (count levels)))
    (is (= [199 1] ((juxt :name :left-out) (last levels))))))

(deftest groups-count-the-threads-at-a-line
  (let [gate (promise)
        tasks (mapv (fn [_] (t/future (deref gate 20000 nil))) (range 30))
        group #(first (filter (comp #{[30 :timed-parked]} (juxt :count :state)) (watch/groups)))]
    (is (gate/eventually 5000 group))
    (let [{:keys [waits-at frame state sample stack]} (group)]
      (is (= "thrum.watch-test -> CountDownLatch.await" waits-at))
      (is (str/includes? frame "watch_test.clj"))
      (is (= [:timed-parked 5] [state (count sample)]))
      (is (some #(str/includes? % "watch_test.clj") stack)))
    (is (= 30 (:count (first (watch/groups {:max-stacks 7})))) "those without a stack are counted")
    (deliver gate :go)
    (run! deref tasks)))

;; Programs that are ill: each blocks until its gate is delivered, and is then well.

(defn- hog [gate]
  (t/future (loop [] (when-not (realized? gate) (recur)))))

(defn- parks-often [gate]
  (t/future (loop [] (when-not (realized? gate) (Thread/sleep 1) (recur)))))

(defn- shielded-wait [begun gate]
  (t/shield 60000 (deliver begun true) (deref gate 30000 nil)))

(defn- stuck-scope [gate]
  (let [begun (promise)]
    (t/future
      (tried #(t/with-scope [s {:name "stuck"}]
                (t/fork s (shielded-wait begun gate))
                @begun
                (throw (ex-info "x" {})))))))

(defn- stuck-body [gate]
  (t/future
    (tried #(t/with-scope [s {:name "stuck-body"}]
              (t/cancel! s)
              (shielded-wait (promise) gate)))))

(defn- waits-for-a-stuck-task [gate]
  (t/future
    (tried #(t/with-scope [outer {:name "outer"}]
              (t/with-scope [s {:name "inner"}]
                (let [begun (promise)]
                  (t/fork s (shielded-wait begun gate))
                  @begun
                  (t/cancel! outer)))))))

(defn- patient-scope [gate]
  (t/future (t/with-scope [s {:name "patient"}] (t/fork s (deref gate 30000 nil)))))

(defn- late-body [gate]
  (t/future (tried #(t/with-timeout [300] (shielded-wait (promise) gate)))))

(defn- in-time [gate]
  (t/future (t/with-timeout [60000] (deref gate 30000 nil))))

(defn- permits [limiter n gate]
  (mapv (fn [_] (t/future (t/with-permit limiter (deref gate 30000 nil)))) (range n)))

(defn- sampled
  "Returns the value of f, called with a function that returns the lints of a sampler."
  [f]
  (let [sampler (sampler/start! (fn [_]))]
    (try (f #(sampler/lints sampler)) (finally (sampler/stop! sampler)))))

(def ^:private of-the-environment
  "Rules that say something of the JDK and the class path of these tests."
  #{:jdk-hang :thread-local-pool})

(defn- rules-of [lints]
  (into #{} (comp (map :rule) (remove of-the-environment)) lints))

(deftest what-is-wrong-is-said-and-ends-when-it-is-well
  (carriers/needs-another!)
  (let [gate (promise), limiter (t/limiter 1 {:name "db"})
        tasks (doall (flatten [(hog gate) (stuck-scope gate) (late-body gate)
                               (permits limiter 4 gate)]))
        expected #{:carrier-held :stuck-scope :deadline-passed :crowded}]
    (sampled
      (fn [lints]
        (is (gate/eventually 15000 #(= expected (rules-of (lints)))) (mapv :sentence (lints)))
        (is (every? #(str/includes? (str (:frame %)) "watch_test.clj")
                    (remove (comp of-the-environment :rule) (lints)))
          (mapv :frame (lints)))
        (deliver gate :go)
        (run! deref tasks)
        (is (gate/eventually 15000 #(= #{} (rules-of (lints)))))))))

(deftest a-body-that-ignores-the-cancel-of-its-scope-is-said-and-one-that-waits-for-a-task-is-not
  (let [gate (promise), work [(stuck-body gate) (waits-for-a-stuck-task gate)]]
    (sampled
      (fn [lints]
        (let [stuck #(filter (comp #{:stuck-scope} :rule) (lints))
              [task body] (gate/eventually 15000 #(when (= 2 (count (stuck))) (stuck)))]
          (is (re-find #"^inner-\d+ waits for inner-\d+/\d+, .*watch_test.clj"
                       (str (:sentence task))))
          (is (re-find #"^stuck-body-\d+ waits for its body, .*watch_test.clj"
                       (str (:sentence body)))))
        (deliver gate :go)
        (run! deref work)
        (is (gate/eventually 15000 #(= #{} (rules-of (lints)))))))))

(deftest what-is-well-raises-nothing
  (let [gate (promise), limiter (t/limiter 2 {:name "db"}), seen (atom #{})
        tasks (doall (flatten [(parks-often gate) (patient-scope gate) (in-time gate)
                               (permits limiter 4 gate)]))
        sampler (sampler/start! #(swap! seen conj (:rule %)))]
    (try
      (let [end (+ (System/nanoTime) 2500000000)]
        (is (gate/eventually 10000 #(< end (System/nanoTime)))))
      (is (= #{} (into #{} (remove of-the-environment) @seen)))
      (finally
        (deliver gate :go)
        (run! deref tasks)
        (sampler/stop! sampler)))))

(deftest what-registers-itself-is-shown
  (call-registered
    :pool
    {:name "conns", :permits 1}
    #(is (= [:pool "conns" 1] ((juxt :kind :name :permits) (node-named "conns")))))
  (is (nil? (node-named "conns"))))

(defn- two-of-one-hash
  "Returns two objects of the same identity hash, which has 31 bits."
  []
  (loop [seen {}]
    (let [object (Object.), other (get seen (System/identityHashCode object))]
      (if other
        [other object]
        (recur (assoc seen (System/identityHashCode object) object))))))

(deftest things-of-the-same-hash-are-both-shown
  (let [[a _ :as things] (two-of-one-hash)
        registrations (mapv #(spi/register! :twin % (fn [thing] {:name (if (= a thing) "a" "b")}))
                        things)
        twins (fn [k] (into #{} (comp (filter #(= :twin (:kind %))) (map k)) (watch/tree)))
        ids (twins :id)]
    (is (= #{"a" "b"} (twins :name)))
    (is (= [2 ids] [(count ids) (twins :id)]) "an id stays")
    (run! spi/unregister! registrations)
    (Reference/reachabilityFence things)))

(deftest what-registers-nonsense-blinds-nobody
  (doseq [facts ["no map" [1] {:permits "8", :in-use 9, :waiting 40} {:permits 1, :waiting 40}
                 {:deadline "soon"} {:permits 1, :in-use 1, :waiting 3, :owners [1], :askers 4}]]
    (call-registered
      :pool
      facts
      (fn []
        (is (some #{:pool} (map :kind (nodes))) (pr-str facts))
        (is (vector? (rules/conditions (snapshot/take! (constantly true)))) (pr-str facts))))))

(deftest what-registers-itself-as-a-kind-of-core-is-shown
  (doseq [kind [:limiter :task :scope]]
    (call-registered
      kind
      {:name "mine", :permits 1}
      (fn []
        (is (= [kind 1] ((juxt :kind :permits) (node-named "mine"))))
        (is (vector? (rules/conditions (snapshot/take! (constantly true)))))))))

(deftest one-thing-that-cannot-be-looked-at-does-not-end-the-look
  (let [bad (Object.), facts spi-watch/facts, limiter (t/limiter 1 {:name "well"})]
    (call-registered
      :pool
      bad
      {}
      #(with-redefs [spi-watch/facts
                     (fn [thing]
                       (if (identical? bad thing) (throw (ArithmeticException.)) (facts thing)))]
         (is (= [:pool :unknown "class java.lang.ArithmeticException"]
                ((juxt :kind :state :error) (node-named "pool"))))
         (is (= 1 (:permits (node-named "well"))))))
    (Reference/reachabilityFence limiter)))

(deftest what-is-folded-keeps-what-is-below-the-oldest
  (let [task (fn [age] {:kind :task, :name (str "fetch-" age), :state :running, :age-ms age})
        scope (fn [age] (assoc (task age) :kind :scope, :children (mapv task (range age))))
        named (fn [n] {:kind :limiter, :name (str "db-" n), :state :open})
        folded (tree/fold (concat (map scope (range 1 21)) (map named (range 12))))
        {[oldest] :scope, limiters :limiter} (group-by :kind folded)]
    (is (= [20 20 1] [(:age-ms oldest) (:count oldest) (count (:children oldest))]))
    (is (= [20 19] ((juxt :count :age-ms) (first (:children oldest)))))
    (is (= (set (map named (range 12))) (set limiters)) "each has a name of its own")
    (is (= [9 1] (map #(count (tree/fold (map task (range %)))) [9 10])))))

(deftest a-thread-has-the-name-of-its-task-before-that-of-a-scope
  (let [node (fn [kind name] {:kind kind, :name name, :thread {:tid 7}})]
    (is (= ["task-7"]
           (map :name (groups/threads {:nodes [(node :scope "s-1") (node :task "task-7")]}))))))

(deftest a-reason-that-is-a-value-is-not-shown
  (let [gate (promise), scope (promise)
        task (t/future (tried #(t/with-scope [s {:name "ended"}]
                                 (deliver scope s)
                                 (shielded-wait (promise) gate))))]
    (t/cancel! @scope {:password "secret"})
    (is (= "clojure.lang.PersistentArrayMap" (:reason (node-named "ended"))))
    (deliver gate :go)
    @task))

(defn- children-of [trees kind]
  (for [tree (mapcat #(tree-seq :children :children %) trees), :when (= kind (:kind tree))]
    (mapv (juxt :kind :name) (:children tree))))

(deftest what-a-task-registers-is-below-the-task
  (let [gate (promise)
        registers (fn [] (let [call (Object.)
                               registration (spi/register! :call call (constantly {:name "to m1"}))]
                           (deref gate 10000 :late)
                           (spi/unregister! registration)
                           call))
        task (t/future-call {:name "asks"} registers)]
    (try
      (is (gate/eventually 10000 #(some #{[[:call "to m1"]]} (children-of (watch/tree) :task))))
      (finally
        (deliver gate :go)
        @task))))

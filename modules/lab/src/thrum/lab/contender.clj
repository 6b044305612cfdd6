(ns thrum.lab.contender
  "The ways of calling one function on many items that the lab compares. A way is called as (run m f
  coll) with m {:limit :pool :cpus :window} and returns when every item is done."
  (:require
   [thrum.core :as t]
   [thrum.lab.limit-line :as limit-line])
  (:import
   (java.util.concurrent Callable ExecutorService Executors Future ThreadFactory)))

(set! *warn-on-reflection* true)

(defn- run-on
  "Submits every item to exe and waits for all; always leaves exe shut down, with what ran
  interrupted."
  [^ExecutorService exe f coll]
  (try
    (let [tasks (mapv (fn [x] (.submit exe ^Callable (fn [] (f x)))) coll)]
      (run! (fn [^Future task] (.get task)) tasks))
    (finally
      (.shutdownNow exe)
      (.close exe))))

(def ^:private daemon-threads
  (reify ThreadFactory
    (newThread [_ task] (doto (Thread. ^Runnable task) (.setDaemon true)))))

(defn- unchunked [coll]
  (lazy-seq
    (when-let [s (seq coll)]
      (cons (first s) (unchunked (rest s))))))

(defn- bound-of [{:keys [limit window]}]
  (if window {:limit limit, :window (max limit window)} limit))

(def ways
  "Every contender: its id for the command line, name, a sentence, whether it is Thrum's, how to run
  it, and :rounds, the rounds of n equal tasks it needs at best, as a function of m with :n and
  :cpus."
  [{:id :core-map
    :label (constantly "clojure.core/map")
    :about "one after the other"
    :rounds :n
    :run (fn [_ f coll] (dorun (map f coll)))}
   {:id :core-pmap
    :label (constantly "clojure.core/pmap")
    :about "chunks of 32"
    :rounds (fn [{:keys [n cpus]}] (limit-line/chunked-pmap n cpus))
    :run (fn [_ f coll] (dorun (pmap f coll)))}
   {:id :core-pmap-unchunked
    :label (constantly "clojure.core/pmap, unchunked")
    :about "one awaited, CPUs + 2 ahead"
    :rounds (fn [{:keys [n cpus]}] (limit-line/bounded n (limit-line/pmap-window cpus)))
    :run (fn [_ f coll] (dorun (pmap f (unchunked coll))))}
   {:id :pool
    :label (fn [{:keys [pool]}] (str "platform pool of " pool))
    :about "a fixed pool of platform threads"
    :rounds (fn [{:keys [n pool]}] (limit-line/bounded n pool))
    :run (fn [{:keys [pool]} f coll]
           (run-on (Executors/newFixedThreadPool pool daemon-threads) f coll))}
   {:id :raw-jdk
    :label (constantly "raw JDK virtual threads")
    :about "newVirtualThreadPerTaskExecutor in a loop"
    :rounds (constantly 1)
    :run (fn [_ f coll] (run-on (Executors/newVirtualThreadPerTaskExecutor) f coll))}
   {:id :thrum-map
    :thrum? true
    :label (constantly "t/map")
    :about "a virtual thread each, all at once"
    :rounds (constantly 1)
    :run (fn [_ f coll] (dorun (t/map f coll)))}
   {:id :thrum-pmap
    :thrum? true
    :label (fn [{:keys [limit]}] (str "t/pmap " limit))
    :about "bounded, in input order"
    :rounds (fn [{:keys [n limit]}] (limit-line/bounded n limit))
    :run (fn [m f coll] (dorun (t/pmap (bound-of m) f coll)))}
   {:id :thrum-upmap
    :thrum? true
    :label (fn [{:keys [limit]}] (str "t/upmap " limit))
    :about "bounded, in order of completion"
    :rounds (fn [{:keys [n limit]}] (limit-line/bounded n limit))
    :run (fn [m f coll] (dorun (t/upmap (bound-of m) f coll)))}
   {:id :thrum-pmap-fd-limit
    :thrum? true
    :label (constantly "t/pmap (t/fd-limit)")
    :about "bounded by the files this process may still open"
    :rounds (fn [{:keys [n limit]}] (limit-line/bounded n limit))
    :resolve-limit t/fd-limit
    :run (fn [m f coll] (dorun (t/pmap (bound-of m) f coll)))}])

(def by-id "The contenders by id." (into {} (map (juxt :id identity)) ways))

(defn ids
  "Returns the ids of all contenders, in the order they are documented."
  []
  (mapv :id ways))

(defn way
  "Returns contender id as a function of f and coll, with m filled in."
  [id m]
  (partial (get-in by-id [id :run]) m))

(defn with-limit
  "Returns m with the limit that only the process that runs contender id can know, if it has such a
  one."
  [id m]
  (if-let [ask (get-in by-id [id :resolve-limit])]
    (assoc m :limit (ask))
    m))

(defn limits
  "Returns the limit line of contender id: {:rounds :limit-line-ms}, the latter nil when a task has
  no least duration."
  [id {:keys [task-ms] :as m}]
  (let [rounds ((get-in by-id [id :rounds]) m)]
    {:rounds rounds, :limit-line-ms (when task-ms (limit-line/ms rounds task-ms))}))

(defn plan
  "Returns the row of a plan for contender id, with its limit line. m is {:n :cpus :limit :pool
  :task-ms}."
  [id m]
  (let [{:keys [label about thrum?]} (by-id id)]
    (merge {:contender id, :name (label m), :about about, :thrum? (boolean thrum?)}
           (limits id m))))

(ns thrum.cluster.impl.batch
  "Items that travel together: one call of core's map is one batch."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.cluster.impl.caller :as caller]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (clojure.lang ExceptionInfo LazySeq)))

(set! *warn-on-reflection* true)

;; Options

(defn- cores-keys [form]
  (some #(when (some #{form} (cons (:form %) (:as %))) (:options %)) options/forms))

(defn named
  "Returns core's options from a limit or a map, with a name for the threads; form: its name in
  core, a keyword. Core refuses what is neither, and a :batch, which is unknown there."
  [form limit-or-options]
  (let [name (str "cluster-" (str/replace (name form) "!" ""))]
    (cond
      (map? limit-or-options) (merge {:name name} limit-or-options)
      (pos-int? limit-or-options) {:name name, :limit limit-or-options}
      :else limit-or-options)))

(defn- checked [form given]
  (let [ks (cores-keys form)]
    (if (some #{:window} ks)
      (options/fan-out given)
      (options/check options/rows given ks))))

(defn- of-batches
  "Returns the options of a map over batches for those of a map over items."
  [{:keys [batch window item-timeout-ms] :as options}]
  (when item-timeout-ms
    (throw (spi/invalid "Over a cluster :item-timeout-ms goes without :batch"
             {:option :item-timeout-ms, :value item-timeout-ms, :accepts "no :batch beside it"})))
  (cond-> (dissoc options :batch)
    window (assoc :window (quot window batch))))

(defn options
  "Returns {:options of core's, :batch n or nil} from a limit or a map; form: its name in core, a
  keyword. Throws :thrum/invalid."
  [form limit-or-options]
  (if (map? limit-or-options)
    (let [{:keys [batch] :as checked} (checked form limit-or-options)]
      (if (and batch (< 1 batch))
        {:options (named form (of-batches checked)), :batch batch}
        {:options (named form (dissoc checked :batch))}))
    {:options (named form limit-or-options)}))

;; Batches

(defn- gathered
  "Returns [batch rest]: the first n of the items; fewer where the items end, or where the next one
  throws: then the rest throws it. Returns nil for no items."
  [n items]
  (loop [batch [], items items]
    (let [[found failure] (when (< (count batch) n)
                            (try
                              [(seq items)]
                              (catch InterruptedException e (throw e))
                              (catch Throwable t [nil t])))]
      (cond
        found (recur (conj batch (first found)) (rest found))
        (seq batch) [batch (if failure (LazySeq. (fn [] (throw failure))) items)]
        failure (throw failure)))))

(defn- in-batches [n items]
  (LazySeq. (fn []
              (when-some [[batch more] (gathered n items)]
                (cons batch (in-batches n more))))))

(defn batches
  "Returns the items of the collections, vectors of arguments, n at a time, as a lazy seq. A failure
  of a collection comes after the items before it. Throws :thrum/invalid for what is none."
  [n colls]
  (run! options/reducible colls)
  (in-batches n (apply map vector colls)))

(defn eager-batches
  "As batches, to be reduced; a single collection may be anything that can be reduced."
  [n [coll & more :as colls]]
  (if more
    (batches n colls)
    (eduction (map vector) (partition-all n) (options/reducible coll))))

(defn of-whole-batch
  "Returns the function for core's map that calls the cluster for a batch: its results, or what its
  first failing item has thrown."
  [caller function]
  (fn [items]
    (let [{:keys [results thrown]} (caller/call! caller function items)]
      (when thrown (throw thrown))
      results)))

(defn of-one
  "Returns the function for core's map that calls the cluster for one item."
  [caller function]
  (let [call (of-whole-batch caller function)]
    (fn [& arguments] (first (call [(vec arguments)])))))

(defn of-batch
  "As of-whole-batch; what it throws carries the results of the items before the failing one."
  [caller function]
  (fn [items]
    (let [{:keys [results thrown]} (caller/call! caller function items)]
      (when thrown (throw (ex-info "An item of a batch has failed" {::before results} thrown)))
      results)))

;; Back to items

(defn- as-item
  "Returns what the failing item has thrown, with what core has attached to the batch's."
  ^Throwable [^Throwable of-batch]
  (let [thrown (ex-cause of-batch)
        known (set (.getSuppressed thrown))]
    (run! #(.addSuppressed thrown %) (remove known (.getSuppressed of-batch)))
    thrown))

(defn- realised
  "Returns [batches nil], or [nil failure] where a batch has failed."
  [batches]
  (try
    [(seq batches) nil]
    (catch ExceptionInfo e
      (if (::before (ex-data e)) [nil e] (throw e)))))

;; Unlike lazy-seq's the thunks here can run again, and return no lazy seq that could throw when it
;; is too late: a failed seq throws again, it never ends early instead.

(defn- followed-by
  "Returns the items, then what more returns, realised up to the next item."
  [items more]
  (if-some [items (seq items)]
    (cons (first items) (LazySeq. (fn [] (followed-by (rest items) more))))
    (more)))

(defn- from [batches]
  (let [[batches failure] (realised batches)]
    (cond
      failure (followed-by (::before (ex-data failure)) #(throw (as-item failure)))
      batches (followed-by (first batches) #(from (rest batches))))))

(defn expanded
  "Returns the results of the batches as a lazy seq of those of the items. Where an item failed, it
  throws after those before it."
  [batches]
  (LazySeq. (fn [] (from batches))))

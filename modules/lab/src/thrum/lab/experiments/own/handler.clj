(ns thrum.lab.experiments.own.handler
  "The user's own Ring handler under load, on an engine of the user's choice: on virtual threads, by
  pools of platform threads of the usual sizes, and by one as large as the connections. All of them
  behind Thrum's run-server."
  (:require
   [clojure.string :as str]
   [thrum.lab.experiments.own.work :as work]
   [thrum.lab.experiments.ring.experiment :as ring]
   [thrum.lab.load :as load]
   [thrum.lab.server-sample :as server-sample]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private sizes
  {:quick {:warm-up-seconds 3, :seconds 4, :repeat 1}
   :full {:warm-up-seconds 10, :seconds 10, :repeat 3}})
(def ^:private usual-pools "The sizes that pools of Ring servers usually have." [50 200])

(defn- pools
  "Returns the sizes of the pools, nil for virtual threads: beyond a thread for each connection none
  makes a difference."
  [connections]
  (-> [nil] (into (filter #(< % connections)) usual-pools) (conj connections)))

(defn- row [function {:keys [engine]} {:keys [warm-up-seconds seconds repeat]} pool]
  {:contender (if pool (keyword (str "pool-" pool)) :thrum)
   :name (if pool (str "platform pool of " pool) "virtual threads")
   :about (str "run-server, the handler on " (if pool "platform" "virtual") " threads")
   :thrum? (nil? pool)
   :job {:engine engine, :way :thrum, :handler function, :pool pool}
   :params {:pool pool}
   :repeat repeat
   :estimate-ms (* repeat (server-sample/estimate-ms warm-up-seconds seconds))})

(defn- part [function {:keys [engine connections path full] :as options}]
  (let [{:keys [warm-up-seconds seconds] :as sizes} (sizes (if full :full :quick))]
    {:part :handler
     :title "Your handler"
     :about (str function " on the engine " (name engine) ", asked for " path ".")
     :connections connections
     :path path
     :warm-up-seconds warm-up-seconds
     :seconds seconds
     :in-turns? true
     :contenders (mapv #(row function options sizes %) (pools connections))}))

(defn- plan [{function :handler :as options} _]
  {:experiment :handler
   :title "Your handler"
   :about (str function " under load.")
   :function function
   :parts [(part function options)]})

;; What the figures mean

(def ^:private alike "Within this share two figures are the same, from run to run." 0.1)

(defn- against-pool [virtual {:keys [name] pool :median-per-second}]
  (let [ratio (/ virtual pool)]
    (str name ": " (text/per-second pool) "; "
         (cond
           (< (- 1 alike) ratio (+ 1 alike))
           "virtual threads do as well, and have no size to choose."
           (< 1 ratio)
           (str "virtual threads answer " (text/ratio ratio)
                " as much, because more requests can wait at once.")
           :else (str "virtual threads answer " (text/ratio ratio) " as much.")))))

(defn- waits
  "Returns what the figures say of the handler: whether it waits, or computes."
  [virtual pools connections]
  (let [small (first (filter #(< (:pool (:params %)) connections) pools)), large (last pools)]
    (cond
      (and large (< virtual (* (- 1 alike) (:median-per-second large))))
      (str "So your handler hardly waits: it keeps the processors busy, or it holds its carrier "
           "thread. Virtual threads do not help there.")
      (and small (< (* (+ 1 alike) (:median-per-second small)) virtual))
      "So your handler waits: its requests are limited by threads, not by processors."
      :else
      (str "So threads do not limit your handler under this load: it waits too little, or "
           "--connections is too small to show it."))))

(defn meaning
  "Returns what the figures say of the user's handler, with care where the machine was busy."
  [{:keys [contenders connections]} busy?]
  (let [measured (filter :median-per-second contenders)
        [{virtual :median-per-second, :keys [samples]}] (filter :thrum? measured)
        pools (remove :thrum? measured)]
    (when (and virtual (seq pools))
      (concat
        [(str "On virtual threads " (text/thousands connections) " connections get "
              (text/per-second virtual)
              (when-let [p50 (stats/median (keep :p50-ms samples))]
                (str ", half of the answers within " (text/ms p50)))
              ".")]
        (map #(against-pool virtual %) pools)
        [(if busy?
           (str "With so much other work on the machine a run says little: run it again before "
                "you conclude anything.")
           (waits virtual pools connections))]))))

;; The command line

(def ^:private engine-names
  (str (str/join ", " (map name (butlast ring/engines))) " or " (name (last ring/engines))))

(def ^:private options
  [[nil "--engine NAME" engine-names
    :default :jdk, :parse-fn keyword
    :validate [(set ring/engines) (str "must be " engine-names)]]
   [nil "--connections N" "how many connections ask at once"
    :default 120, :parse-fn parse-long, :validate work/positive]
   [nil "--path PATH" "what your handler is asked for"
    :default "/", :validate [#(str/starts-with? % "/") "must begin with /"]]])

(def experiment
  {:name :handler
   :doc "your own Ring handler under load"
   :options options
   :plan plan
   :open! (fn [{:keys [function]}] (work/resolve-function function) {})
   :sample! (fn [_ part {:keys [job]} _]
              (server-sample/sample job (assoc part :headers load/browser-headers)))
   :conditions server-sample/conditions
   :columns server-sample/columns
   :meaning meaning})

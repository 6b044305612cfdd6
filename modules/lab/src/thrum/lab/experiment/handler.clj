(ns thrum.lab.experiment.handler
  "The user's own Ring handler under load, on an engine of the user's choice: on virtual threads, by
  pools of platform threads of the usual sizes, and by one as large as the connections. All of them
  behind Thrum's run-server."
  (:require
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.own :as own]
   [thrum.lab.load :as load]
   [thrum.lab.visit :as visit]))

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
   :estimate-ms (* repeat (visit/estimate-ms warm-up-seconds seconds))})

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

(defrecord HandlerLoad [function]
  experiment/Experiment
  (about [_] {:name :handler, :doc "your own Ring handler under load"})
  (plan [_ options _]
    {:experiment :handler
     :title "Your handler"
     :about (str function " under load.")
     :parts [(part function options)]})
  (open! [_]
    (own/resolve-function function)
    {:close! (constantly nil)})
  (sample! [_ _ part {:keys [job]} _]
    (visit/sample job (assoc part :headers load/browser-headers))))

(defn experiment
  "Returns the experiment that puts the handler of that name under load."
  [function]
  (->HandlerLoad function))

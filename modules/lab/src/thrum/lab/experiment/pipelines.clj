(ns thrum.lab.experiment.pipelines
  "Items that wait, through every kind of pipeline of core.async and of thrum.async; and what is
  left of a pipeline that was abandoned."
  (:require
   [thrum.lab.channels :as channels]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.limit-line :as limit-line]))

(set! *warn-on-reflection* true)

(def ^:private open-ms "How long it usually takes to compile, for the estimate." 9000)
(def ^:private jvm-ms "How long a JVM usually takes to start, for the estimate." 2000)
(def ^:private overhead-ms "What a sample takes beyond its limit line, for the estimate: to warm up,
  and to look at what is left." 1200)
(def ^:private items 10000)
(def ^:private at-once "The n of every pipeline." 50)
(def ^:private wait-ms "How long an item waits." 5)

(def ^:private kinds
  [{:contender :core-pipeline, :name "core.async pipeline", :about "platform threads"}
   {:contender :core-pipeline-blocking
    :name "core.async pipeline-blocking"
    :about "platform threads"}
   {:contender :core-pipeline-async
    :name "core.async pipeline-async"
    :about "an io-thread each; runs n + 2"
    :more 2}
   {:contender :thrum-pipeline-blocking
    :name "a/pipeline-blocking"
    :about "thrum.async, in order"
    :thrum? true}
   {:contender :thrum-pipeline-fn
    :name "a/pipeline-fn"
    :about "thrum.async, a function, in order"
    :thrum? true}
   {:contender :thrum-upipeline
    :name "a/upipeline"
    :about "thrum.async, in order of completion"
    :thrum? true}])

;; Plan

(defn- row [{:keys [contender more] :as kind} repeats]
  (let [limit-line-ms (limit-line/ms (limit-line/bounded items (+ at-once (or more 0))) wait-ms)]
    (-> (select-keys kind [:contender :name :about])
        (assoc :thrum? (boolean (:thrum? kind))
               :job {:kind contender}
               :limit-line-ms limit-line-ms
               :repeat repeats
               :estimate-ms (* repeats (+ jvm-ms overhead-ms limit-line-ms))))))

(defn- part-plan
  [{:keys [full]}]
  {:part :pipelines
   :title "10 000 items through a pipeline, 50 at once"
   :about
   (str
     "Each item waits for 5 ms. Then a pipeline on a source without end is abandoned after 10 values, in two ways: its reader "
     "closes the channel; or it reads no more, which nobody can tell from a slow reader. 200 ms later the threads are counted that "
     "are left, but no thread of a pool that idles, and what was taken from the source meanwhile. Each sample has a JVM of its own.")
   :n items
   :at-once at-once
   :in-turns? true
   :limit-line-about "rounds × what an item waits"
   :against [{:slow :core-pipeline-blocking, :fast :thrum-pipeline-blocking}]
   :contenders (mapv #(row % (if full 3 1)) kinds)})

;; Run

(defn- ended [sample on-end]
  (on-end items)
  sample)

(defrecord Pipelines []
  experiment/Experiment
  (about [_]
    {:name :pipelines
     :doc "10 000 items through each kind of pipeline"
     :parts [[:pipelines
              (str "How long do 10 000 items take, and what is left of a pipeline that was "
                   "abandoned?")]]})
  (plan [_ options _]
    {:experiment :pipelines
     :title "Pipelines"
     :start-ms open-ms
     :about
     "Items that wait, through every kind of pipeline; and what is left of one that was abandoned."
     :parts [(part-plan options)]})
  (open! [_]
    (let [classes (channels/compile-ahead!)]
      {:classes classes, :close! #(channels/delete! classes)}))
  (sample! [_ {:keys [classes]} _ {:keys [job]} on-end]
    (ended (channels/sample {:classes classes}
                            (assoc job :job :pipeline :n at-once :wait-ms wait-ms :items items))
           on-end)))

(defn experiment
  "Returns the experiment."
  []
  (->Pipelines))

(ns thrum.lab.experiments.pipelines.experiment
  "Items that wait, through every kind of pipeline of core.async and of thrum.async; and what is
  left of a pipeline that was abandoned."
  (:require
   [clojure.string :as str]
   [thrum.lab.channels :as channels]
   [thrum.lab.columns :as columns]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private open-ms "How long it usually takes to compile, for the estimate." 9000)
(def ^:private jvm-ms "How long a JVM usually takes to start, for the estimate." 2000)
(def ^:private overhead-ms
  "What a sample takes beyond its limit line, for the estimate: to warm up, and to look at what is
  left."
  1200)
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
   :about (str "Each item waits for 5 ms. Then a pipeline on a source without end is abandoned "
               "after 10 values, in two ways: its reader closes the channel; or it reads no "
               "more, as a slow reader does. 200 ms later the threads are counted that are left, "
               "but no thread of a pool that idles, and what was taken from the source "
               "meanwhile. Each sample has a JVM of its own.")
   :n items
   :at-once at-once
   :in-turns? true
   :limit-line-about "rounds × what an item waits"
   :against [{:slow :core-pipeline-blocking, :fast :thrum-pipeline-blocking}]
   :contenders (mapv #(row % (if full 3 1)) kinds)})

(defn- plan [options _]
  {:experiment :pipelines
   :title "Pipelines"
   :start-ms open-ms
   :about (str "Items that wait, through every kind of pipeline; and what is left of one that was "
               "abandoned.")
   :parts [(part-plan options)]})

;; Run

(defn- sample! [{:keys [classes]} _ {:keys [job]} on-end]
  (let [job (assoc job :call 'thrum.lab.channels.pipeline/sample
                   :n at-once, :wait-ms wait-ms, :items items)
        sample (channels/sample {:classes classes} job)]
    (on-end items)
    sample))

;; Report

(defn- threads-left
  "Returns the threads that were left of pipelines abandoned in a way, the most of each kind in a
  sample: 0, or 50 platform, 1 virtual."
  [way {:keys [samples]}]
  (if-let [left (seq (keep way samples))]
    (let [counts (for [kind [:platform :virtual]
                       :let [most (apply max (map kind left))]
                       :when (pos? most)]
                   (str (text/thousands most) " " (name kind)))]
      (if (seq counts) (str/join ", " counts) "0"))
    "–"))

(def ^:private left-closed {:heading "left, closed", :show (partial threads-left :closed)})

(def ^:private columns
  [columns/median columns/samples columns/limit-line columns/times-limit columns/in-flight
   columns/threads
   left-closed
   {:heading "taken after", :show (partial columns/each-sample (comp :taken :closed))}
   {:heading "left, unread", :show (partial threads-left :unread)}])

(defn- label [{:keys [median-ms] :as row}]
  (when median-ms
    (str (text/ms median-ms) " · " ((:show left-closed) row) " left")))

;; Sanity

(def ^:private threads (juxt :platform :virtual))

(defn- complaints [{rows :pipelines} _]
  (when rows
    (let [ours [:thrum-pipeline-blocking :thrum-pipeline-fn :thrum-upipeline]
          each (partial sanity/every-sample rows)]
      (concat
        (sanity/at-most rows 4 ours)
        (each :peak #(<= 40 % 50) "should have had 50 items at once"
              (conj ours :core-pipeline-blocking))
        (each (comp threads :closed) #{[0 0]} "left threads, platform and virtual" ours)
        (each (comp :taken :closed) #(<= % 50) "took on from its source" ours)))))

(def experiment
  {:name :pipelines
   :doc "10 000 items through each kind of pipeline"
   :parts [[:pipelines
            "How long do 10 000 items take, and what is left of a pipeline that was abandoned?"]]
   :plan plan
   :open! (fn [_] {:classes @channels/classes})
   :sample! sample!
   :columns columns
   :label label
   :complaints complaints})

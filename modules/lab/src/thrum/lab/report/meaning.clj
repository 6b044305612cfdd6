(ns thrum.lab.report.meaning
  "What the figures of the user's own work mean, in sentences. Pure."
  (:require
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

;; A handler under load

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

(defn- of-handler [{:keys [contenders connections]} busy?]
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

;; Calls and downloads

(defn- of-calls [{:keys [name params] [{:keys [ms busy-ms longest-ms peak ok failed]}] :samples}]
  (when (and ms busy-ms (pos? ms) (pos? busy-ms))
    (let [n (+ (or ok 0) (or failed 0))]
      [(str name ": " (text/thousands n) " took " (text/ms busy-ms) " together, and " (text/ms ms)
            " side by side: " (text/ratio (/ busy-ms ms)) ". The longest took "
            (text/ms longest-ms) ", and nothing can be faster than that.")
       (when (and peak (= peak (:limit params)) (< peak n))
         (str name ": all " (text/thousands peak)
              " places were taken at once; a larger --limit might be faster."))])))

(defn sentences
  "Returns what the figures of a part mean, with care where the machine was busy; nothing of the
  lab's own experiments, which say what they ask."
  [{:keys [part contenders] :as question} busy?]
  (case part
    :handler (of-handler question busy?)
    (:urls :calls) (remove nil? (mapcat of-calls contenders))
    nil))

(ns thrum.lab.benchmarks.stream.experiment
  "Many results through a small heap: the head is not retained."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.memory :as memory]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private jobs
  {:full [{:way :pmap, :items 2000000} {:way :upmap, :items 2000000}]
   :quick [{:way :pmap, :items 20000}]})

;; In the child

(defn- half-a-kilobyte
  "Returns 512 bytes of heap: a header of 16 and 496 of content."
  [_]
  (byte-array 496))

(def ^:private ways
  {:pmap #(count (t/pmap 64 half-a-kilobyte (range %)))
   :upmap #(count (t/upmap 64 half-a-kilobyte (range %)))})

(defn measure
  "Returns {:ns, :peak, :live, :rss}, the last three in bytes."
  [{:keys [way items]}]
  (let [highest (memory/watch-collections!)
        start (System/nanoTime)
        n ((ways way) items)
        ns (- (System/nanoTime) start)
        peak (memory/heap)]
    (when-not (= items n)
      (throw (ex-info "Items were lost" {:expected items, :actual n})))
    (System/gc)
    (Thread/sleep 100)
    (let [{:keys [before after]} (highest)]
      {:ns ns, :peak (max before peak), :live after, :rss (memory/peak-rss)})))

;; In the parent

(defn- megabytes [runs k]
  (stats/spread (keep #(some-> (k %) (/ 1e6)) runs)))

(defn- rows [results]
  (for [{:keys [job runs]} results]
    {:way (:way job)
     :items (:items job)
     :seconds (stats/spread (map #(/ (:ns %) 1e9) runs))
     :peak-mb (megabytes runs :peak)
     :live-mb (megabytes runs :live)
     :rss-mb (megabytes runs :rss)}))

(def experiment
  (benchmark/experiment
    {:name :bench/stream
     :doc "the memory of a long stream"
     :title "Memory of a long stream"
     :about (str "(count (t/pmap 64 f (range n))) with results of 0.5 kB under -Xmx256m (268 "
                 "MB). Peak: with garbage, just before a collection. Live: the most that was "
                 "left by one.")
     :jvm-opts ["-Xmx256m" "-XX:+UseG1GC" "-XX:+ExitOnOutOfMemoryError"]
     :jobs jobs
     :jvms 1
     :measure `measure
     :rows rows
     :columns [{:heading "way", :left? true, :show #(str "t/" (name (:way %)))}
               {:heading "items", :show (comp text/whole :items)}
               {:heading "s", :show #(text/spread 1 (:seconds %))}
               {:heading "peak heap, MB", :show #(text/spread 0 (:peak-mb %))}
               {:heading "live heap, MB", :show #(text/spread 1 (:live-mb %))}
               {:heading "peak RSS, MB", :show #(text/spread 0 (:rss-mb %))}]}))

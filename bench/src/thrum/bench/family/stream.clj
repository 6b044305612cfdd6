(ns thrum.bench.family.stream
  "Many results through a small heap: the head is not retained."
  (:require
   [thrum.bench.memory :as memory]
   [thrum.bench.stats :as stats]
   [thrum.bench.table :as table]
   [thrum.core :as t]))

(set! *warn-on-reflection* true)

(defn jobs
  "Returns a job for each way."
  [size]
  (case size
    :full (map (fn [way] {:way way, :items 2000000}) [:pmap :upmap])
    :quick [{:way :pmap, :items 20000}]))

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
  (stats/summary (keep #(some-> (k %) (/ 1e6)) runs)))

(defn rows
  "Returns a row for each way."
  [results]
  (for [{:keys [job runs]} results]
    {:way (:way job)
     :items (:items job)
     :seconds (stats/summary (map #(/ (:ns %) 1e9) runs))
     :peak-mb (megabytes runs :peak)
     :live-mb (megabytes runs :live)
     :rss-mb (megabytes runs :rss)}))

(def family
  {:title "Memory of a long stream"
   :about
   (str
     "(count (t/pmap 64 f (range n))) with results of 0.5 kB under -Xmx256m (268 MB). Peak: with garbage, just before "
     "a collection. Live: the most that was left by one.")
   :jvm-opts ["-Xmx256m" "-XX:+UseG1GC" "-XX:+ExitOnOutOfMemoryError"]
   :jobs jobs
   :measure measure
   :rows rows
   :columns [{:title "way", :left? true, :show #(str "t/" (name (:way %)))}
             {:title "items", :show (comp table/whole :items)}
             {:title "s", :show #(table/figure 1 (:seconds %))}
             {:title "peak heap, MB", :show #(table/figure 0 (:peak-mb %))}
             {:title "live heap, MB", :show #(table/figure 1 (:live-mb %))}
             {:title "peak RSS, MB", :show #(table/figure 0 (:rss-mb %))}]})

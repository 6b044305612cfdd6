(ns thrum.watch.doctor.examine
  "What several dumps of a JVM, one after the other, and a recording say: groups and lints."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.watch.impl.environment :as environment]
   [thrum.watch.impl.frames :as frames]
   [thrum.watch.impl.groups :as groups]
   [thrum.watch.impl.locks :as locks]
   [thrum.watch.impl.rules :as rules])
  (:import
   (java.io File)
   (java.time Duration)
   (jdk.jfr.consumer RecordedEvent RecordedFrame RecordedStackTrace RecordingFile)))

(set! *warn-on-reflection* true)

(defn- queued? [{:keys [virtual? state carrier]}]
  (and virtual? (nil? carrier) (= :runnable state)))

(defn- starved
  "Threads that could run do not, while the same others hold the same carriers."
  [threads]
  (let [held (filter :carrier threads)]
    (when (seq held)
      (for [{:keys [tid name]} (take 1 (filter queued? threads))
            :let [on-carriers (sort (map #(str (:tid %) "@" (:carrier %)) held))]]
        (rules/condition :starved (str/join " " (cons tid on-carriers)) 900 (:stack (first held))
          {:queued (count (filter queued? threads)), :held (mapv :tid held)}
          "Virtual threads do not start: " name " is queued, and " (count held)
          " carriers are held, by "
          (str/join ", " (map rules/name-and-line (take 4 held))))))))

(defn conditions
  "Returns the conditions of the threads of a dump."
  [threads]
  (into [] cat [(rules/held-carriers (filter :virtual? threads))
                (starved threads)
                (locks/conditions threads)]))

(defn lints
  "Returns the lints of dumps, [at threads] each."
  [dumps]
  (let [advance (fn [state [at threads]] (rules/advance state at (conditions threads)))
        state (reduce advance {} dumps)]
    (rules/lints state (first (last dumps)))))

(defn of-environment
  "Returns the lints of a JVM's versions."
  [facts]
  (rules/lints (rules/advance {} 0 (environment/conditions facts)) 0))

(defn groups
  "Returns the virtual threads by where they wait."
  [threads]
  (groups/of-threads (filter :virtual? threads)))

;; The recording

(defn- frame [^RecordedFrame f]
  [(.getName (.getType (.getMethod f))) (.getName (.getMethod f)) nil (.getLineNumber f)])

(defn- stack [^RecordedEvent event]
  (mapv frame (some-> ^RecordedStackTrace (.getStackTrace event) .getFrames)))

(defn- pinned-sentence [stack events]
  (let [ms (reduce + (map #(.toMillis ^Duration (.getDuration ^RecordedEvent %)) events))]
    {:rule :pinned
     :id (str "recorded " (frames/line stack))
     :frame (frames/line stack)
     :since-ms 0
     :data {:times (count events), :ms ms}
     :sentence (str "A thread waited on its carrier " (count events) " times, " ms " ms in all, at "
                    (frames/line stack))}))

(defn of-recording
  "Returns the lints of a recording: what was pinned for 20 ms or more."
  [^File file]
  (->> (RecordingFile/readAllEvents (.toPath file))
       (filter #(= "jdk.VirtualThreadPinned" (.getName (.getEventType ^RecordedEvent %))))
       (group-by stack)
       (mapv (fn [[stack events]] (pinned-sentence stack events)))))

(ns thrum.cluster.impl.crew
  "Which member takes the next run: of those that take any, the one that runs the fewest of this
  caller's."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util HashMap HashSet Map Set)
   (java.util.concurrent CompletableFuture ConcurrentHashMap TimeUnit TimeoutException)))

(set! *warn-on-reflection* true)

;; Guarded by the crew itself: loads, draining, resting, reserved.
(deftype Crew [^Map loads                    ; member -> how many runs
               ^Set draining
               ^Map resting                  ; member -> the deadline until which it is spared
               ^Set reserved                 ; for work that runs alone
               ^Set met                      ; those that have answered this caller
               ^Set waiters])

(defn crew
  "Returns a crew that has given out nothing yet."
  []
  (Crew. (HashMap.) (HashSet.) (HashMap.) (HashSet.) (ConcurrentHashMap/newKeySet)
         (ConcurrentHashMap/newKeySet)))

(defn- load-of ^long [^Crew crew member]
  (long (.getOrDefault ^Map (.-loads crew) member 0)))

(defn- resting? [^Crew crew member]
  (when-some [until (.get ^Map (.-resting crew) member)]
    (not (spi/passed? (long until)))))

(defn- open? [^Crew crew member]
  (not (or (.contains ^Set (.-draining crew) member) (.contains ^Set (.-reserved crew) member))))

(defn- least-loaded [crew members]
  (when (seq members)
    (apply min-key #(load-of crew %) (shuffle members))))

(defn- add! [^Crew crew member n]
  (.put ^Map (.-loads crew) member (+ (load-of crew member) (long n))))

(defn available
  "Returns those of the members that take work."
  [^Crew crew members]
  (locking crew
    (filterv #(not (.contains ^Set (.-draining crew) %)) members)))

(defn take!
  "Returns the member for the next run, and counts it; nil where none takes any. avoid: a member
  that is taken only where there is no other."
  [^Crew crew members avoid]
  (locking crew
    (let [open (filterv #(open? crew %) members)
          fit (remove #(or (= avoid %) (resting? crew %)) open)
          member (or (least-loaded crew fit) (least-loaded crew (remove #(resting? crew %) open)))]
      (when member (add! crew member 1))
      member)))

(defn wake!
  "Has all who wait look again."
  [^Crew crew]
  (run! #(.complete ^CompletableFuture % nil) (.-waiters crew)))

(defn give-back!
  "The run on the member is over."
  [^Crew crew member]
  (when (locking crew
          (add! crew member -1)
          (.contains ^Set (.-reserved crew) member))
    (wake! crew)))

(defn drains!
  "The member takes nothing new."
  [^Crew crew member]
  (locking crew (.add ^Set (.-draining crew) member)))

(defn met!
  "The member has answered this caller."
  [^Crew crew member]
  (.add ^Set (.-met crew) member))

(defn met?
  "Returns whether it has."
  [^Crew crew member]
  (.contains ^Set (.-met crew) member))

(defn rest!
  "The member is spared for so many ms: it could not be reached."
  [^Crew crew member ms]
  (locking crew (.put ^Map (.-resting crew) member (spi/deadline-in ms))))

(defn retain!
  "Forgets all members but these."
  [^Crew crew members]
  (locking crew
    (let [gone? #(not (contains? members %))]
      (.removeIf ^Set (.-draining crew) gone?)
      (.removeIf ^Set (.-met crew) gone?)
      (.removeIf (.keySet ^Map (.-resting crew)) gone?)
      (.removeIf (.entrySet ^Map (.-loads crew))
                 #(and (zero? (long (val %))) (gone? (key %)))))))

;; One that runs alone

(defn reserve!
  "Reserves a member, and returns it: the least loaded, where another one is left beside it; nil
  where none is. Nothing new goes to it."
  [^Crew crew members avoid]
  (locking crew
    (let [open (filterv #(open? crew %) members)
          member (least-loaded crew (or (seq (remove #{avoid} open)) open))]
      (when (and member (< 1 (count open)))
        (.add ^Set (.-reserved crew) member)
        member))))

(defn empty-handed?
  "Returns whether nothing of this caller's runs on the member."
  [^Crew crew member]
  (locking crew (zero? (load-of crew member))))

(defn take-reserved!
  "Counts a run on a member that is reserved."
  [^Crew crew member]
  (locking crew (add! crew member 1)))

(defn free!
  "The member is not reserved any more. Returns nil."
  [^Crew crew member]
  (locking crew (.remove ^Set (.-reserved crew) member))
  (wake! crew)
  nil)

(defn loads
  "Returns how many runs each member has."
  [^Crew crew]
  (locking crew (into {} (.-loads crew))))

;; Waiting

(defn await!
  "Returns what (look) returns as soon as it is true; nil when timeout-ms have passed. It looks
  again after each wake!."
  [^Crew crew timeout-ms look]
  (let [end (spi/deadline-in timeout-ms)]
    (loop []
      (let [woken (CompletableFuture.)
            _ (.add ^Set (.-waiters crew) woken)
            found (try
                    (or (look)
                        (if (spi/passed? end)
                          ::late
                          (try
                            (.get woken (- end (System/nanoTime)) TimeUnit/NANOSECONDS)
                            (catch TimeoutException _))))
                    (finally (.remove ^Set (.-waiters crew) woken)))]
        (cond
          (nil? found) (recur)
          (= ::late found) nil
          :else found)))))

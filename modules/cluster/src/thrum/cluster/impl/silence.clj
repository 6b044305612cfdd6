(ns thrum.cluster.impl.silence
  "For how long nothing has come from the members that answers are awaited from. It is counted in
  beats of this node, not by the clock: a node that was frozen has missed nothing."
  {:no-doc true}
  (:import
   (java.util.concurrent ConcurrentHashMap)))

(set! *warn-on-reflection* true)

(deftype Silence [^ConcurrentHashMap beats    ; member -> how many since something came
                  ^long limit])

(def ^:private ^:const fewest-beats 5)

(defn silence
  "Returns a silence in which a member is silent after limit-ms, at a beat each beat-ms."
  [limit-ms beat-ms]
  (Silence. (ConcurrentHashMap.) (max fewest-beats (quot (long limit-ms) (long beat-ms)))))

(defn broken!
  "Something has come from the member."
  [^Silence silence member]
  (.remove ^ConcurrentHashMap (.-beats silence) member))

(defn silent?
  "Returns whether nothing has come from the member for the limit."
  [^Silence silence member]
  (<= (.-limit silence) (long (.getOrDefault ^ConcurrentHashMap (.-beats silence) member 0))))

(defn answering
  "Returns a vector of those members that are not silent."
  [^Silence silence members]
  (if (.isEmpty ^ConcurrentHashMap (.-beats silence))
    members
    (filterv #(not (silent? silence %)) members)))

(defn beat!
  "Counts a beat for the members in the set; forgets all others."
  [^Silence silence members]
  (let [^ConcurrentHashMap beats (.-beats silence)]
    (.removeIf (.keySet beats) #(not (members %)))
    (run! #(.put beats % (inc (long (.getOrDefault beats % 0)))) members)))

(ns thrum.test-kit.leak
  "Finds virtual threads of Thrum's that outlived the test which started them."
  (:require
   [clojure.string :as str]
   [clojure.test :as test]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.util WeakHashMap)
   (java.util.stream Stream)
   (jdk.internal.vm ThreadContainer ThreadContainers)))

(set! *warn-on-reflection* true)

(def prefixes
  "What the names of Thrum's threads start with, before a dash and a number."
  ["future" "thread" "executor" "map" "pmap" "upmap" "pmap-tasks" "pmapv" "prun" "for" "pfor"
   "pvalues"
   "pcalls" "scope" "async" "pipeline" "pipeline-async" "pipeline-fn" "upipeline" "pmap->chan"])

(def ^:private our-name
  "A prefix and a number (pmap-17/3), or any name followed by the number of a run and of an item
  (fetch-17/3)."
  (re-pattern (str "(?:" (str/join "|" prefixes) ")!?-\\d+.*|.+-\\d+/.+")))

(defn- stream->vec [^Stream s] (vec (.toArray s)))

(defn- containers
  "Returns the tree of thread containers as a seq. JDK-internal: needs
  --add-exports=java.base/jdk.internal.vm=ALL-UNNAMED."
  []
  (tree-seq (constantly true)
            (fn [^ThreadContainer c] (stream->vec (.children c)))
            (ThreadContainers/root)))

(defn- ours?
  [^Thread thread]
  (and (.isVirtual thread) (.isAlive thread) (re-matches our-name (.getName thread))))

(defn threads
  "Returns all live virtual threads that bear one of Thrum's names; or all threads for which
  (wanted? thread) is true."
  ([] (threads ours?))
  ([wanted?]
   (filterv wanted? (mapcat (fn [^ThreadContainer c] (stream->vec (.threads c))) (containers)))))

(defn describe
  "Returns the name of thread and the top of its stack, as lines."
  [^Thread thread]
  (str/join "\n    at " (cons (.getName thread) (take 12 (.getStackTrace thread)))))

(defonce ^:private ^WeakHashMap reported (WeakHashMap.))

(defn- fresh-leaks
  "Returns the threads that no earlier test was blamed for."
  []
  (locking reported
    (remove #(.containsKey reported %) (threads))))

(defn- blame!
  [leaks]
  (locking reported
    (run! #(.put reported % true) leaks))
  (test/do-report {:type :fail
                   :message (str (count leaks) " thread(s) left over:\n  "
                                 (str/join "\n  " (map describe (take 5 leaks))))
                   :expected []
                   :actual (mapv #(.getName ^Thread %) (take 20 leaks))}))

(defn check!
  "Waits at most ms until none of Thrum's threads is alive; reports a failure that names those which
  are."
  [ms]
  (gate/eventually ms #(empty? (fresh-leaks)))
  (some-> (seq (fresh-leaks)) blame!))

(defn no-leaks
  "A fixture: the test fails if a thread of Thrum's is still alive ten seconds after it."
  [f]
  (try (f) (finally (check! 10000))))

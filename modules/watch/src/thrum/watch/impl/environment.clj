(ns thrum.watch.impl.environment
  "What a JDK and the libraries on the class path are known for: rules of versions."
  {:no-doc true}
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.watch.impl.rules :as rules]))

(set! *warn-on-reflection* true)

(defn version
  "Returns the version in a text as a vector of numbers: [25 0 3] of \"25.0.3+9-LTS\"."
  [text]
  (mapv parse-long (re-seq #"\d+" (first (re-seq #"\d+(?:\.\d+)*" (str text))))))

(defn- padded [v]
  (vec (take 4 (concat v (repeat 0)))))

(defn- within?
  "True if the version is from first to before fixed."
  [v [from fixed]]
  (and (<= 0 (compare (padded v) (padded from)))
       (neg? (compare (padded v) (padded fixed)))))

(defn- named-version [class-path jar]
  (some-> (re-pattern (str "(?:^|[/\\\\:;.])" jar "-(\\d[\\d.]*\\d)[^/\\\\:;]*\\.jar"))
          (re-find class-path)
          second
          version))

(defn facts-of
  "Returns {:jdk version, :libraries {name version}} of a process with this version of Java and
  class path."
  [java-version class-path]
  {:jdk (version java-version)
   :libraries (into {}
                    (filter val)
                    {"jackson-core" (named-version (str class-path) "jackson-core")
                     "pgjdbc" (named-version (str class-path) "postgresql")})})

;; By a class of each: a class loader may have more than the class path.
(defn facts
  "Returns the facts of this process."
  []
  (let [classes ["com/fasterxml/jackson/core/JsonFactory.class" "org/postgresql/Driver.class"]]
    (facts-of (Runtime/version) (str/join ";" (keep io/resource classes)))))

;; As the JDK's bugs say, and its update releases' pull requests.
(def ^:private hangs
  [{:bug "JDK-8369227", :what "a virtual thread may stay parked after its unpark"
    :versions [[[25] [25 0 3]] [[26] [26 0 1]]]}
   {:bug "JDK-8373120", :what "a virtual thread may stay blocked at a monitor that is free"
    :versions [[[25] [25 0 4]] [[26] [26 0 1]]]}])

(defn- dotted [v]
  (str/join "." v))

(defn- hang-conditions [{:keys [jdk]}]
  (for [{:keys [bug what versions]} hangs
        [_ fixed :as range] versions
        :when (within? jdk range)]
    (rules/condition :jdk-hang bug 0 nil {:jdk jdk, :fixed fixed}
      "JDK " (dotted jdk) " has a known hang of virtual threads, " bug ": " what "; fixed in "
      (dotted fixed))))

(defn- thread-local-pools
  "jackson-core 2 pools its buffers by thread, but for 2.17.0; 3 does not."
  [{:keys [libraries]}]
  (when-some [v (libraries "jackson-core")]
    (when (and (within? v [[2] [3]]) (not (within? v [[2 17 0] [2 17 1]])))
      [(rules/condition :thread-local-pool "jackson-core" 0 nil {:version v}
         "jackson-core " (dotted v) " pools its buffers in ThreadLocals: each virtual thread makes "
         "its own; give its JsonFactory a RecyclerPool (2.16 and later)")])))

(defn- old-pgjdbc [{:keys [jdk libraries]}]
  (when-some [v (libraries "pgjdbc")]
    (when (and (within? v [[0] [42 7 8]]) (within? jdk [[21] [24]]))
      [(rules/condition :pgjdbc "pgjdbc" 0 nil {:version v, :jdk jdk}
         "pgjdbc " (dotted v) " on JDK " (dotted jdk) " waits inside synchronized, which pins; "
         "42.7.8 does not")])))

(defn conditions
  "Returns the conditions of the facts of a process."
  [facts]
  (vec (mapcat #(% facts) [hang-conditions thread-local-pools old-pgjdbc])))

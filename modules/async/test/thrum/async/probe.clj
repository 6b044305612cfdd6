(ns thrum.async.probe
  "Finds where core.async runs what: the main function, in a JVM of its own, prints one line of EDN.
  It runs with any release; what that has not is reported as none."
  (:require
   [clojure.core.async :as a]
   [clojure.edn :as edn]
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.test-kit.jvm :as jvm]))

(set! *warn-on-reflection* true)

(def ^:dynamic *tenant* :nobody)

(def ^:private ^ThreadLocal inside
  "In a thread that runs in the wrap: true."
  (ThreadLocal.))

(defn- marking [thunk]
  (fn []
    (.set inside true)
    (try (thunk) (finally (.remove inside)))))

(defn- here
  "Returns the facts of the calling thread."
  []
  (let [thread (Thread/currentThread)]
    {:kind (if (.isVirtual thread) :virtual :platform)
     :thread-name (.getName thread)
     :daemon? (.isDaemon thread)
     :tenant *tenant*
     :wrapped? (true? (.get inside))}))

(defn- within
  "Returns what comes out of the channel, :late after 60 s."
  [channel]
  (let [[value port] (a/alts!! [channel (a/timeout 60000)])]
    (if (= port channel) value :late)))

(defn- through [pipeline n xf]
  (let [to (a/chan n)]
    (pipeline n to xf (a/to-chan! (range n)))
    (within to)))

(def ^:private has-io-thread? (some? (ns-resolve 'clojure.core.async 'io-thread)))

(defn- async-here [_ channel]
  (a/put! channel (here))
  (a/close! channel))

(def ^:private observations
  "The uses of core.async, by name: functions that return the facts of the thread."
  (cond-> {"go" #(within (a/go (here)))
           "go, woken" #(let [gate (a/promise-chan)
                              woken (a/go (a/<! gate) (here))]
                          (a/put! gate :go)
                          (within woken))
           "thread" #(within (a/thread (here)))
           "pipeline" #(through a/pipeline 2 (map (fn [_] (here))))
           "pipeline-blocking" #(through a/pipeline-blocking 2 (map (fn [_] (here))))
           "pipeline-async" #(through a/pipeline-async 2 async-here)}
    has-io-thread? (assoc "io-thread" (eval `(fn [] (#'within (a/io-thread (#'here))))))))

(defn- place
  "Returns a thread's kind and its name without the number: `platform async-mixed`, `virtual, no
  name`."
  [{:keys [kind thread-name]}]
  (if (str/blank? thread-name)
    (str (name kind) ", no name")
    (str (name kind) " " (str/replace thread-name #"-\d+$" ""))))

(defn- dispatch-threads
  "Returns how many threads a pool for go blocks has after 100 of them."
  []
  (run! within (vec (repeatedly 100 #(a/go nil))))
  (count (filter #(str/starts-with? (.getName ^Thread %) "async-dispatch-")
                 (keys (Thread/getAllStackTraces)))))

(defn- observed
  "Returns {use observation}, in which the bindings and the wrap of the caller should be seen."
  []
  (binding [*tenant* :acme, t/*wrap* marking]
    (into {} (map (fn [[use observe]] [use (observe)])) observations)))

(defn places
  "Returns {use place}, as this JVM is."
  ([] (places (observed)))
  ([uses] (merge {"io-thread" "none"} (update-vals uses place))))

(defn -main
  "Prints {:places {use place}, :uses {use observation}, :dispatch-threads n}."
  [& _]
  (let [uses (observed)]
    (prn {:places (places uses)
          :uses uses
          :dispatch-threads (dispatch-threads)})
    (flush)
    (System/exit 0)))

(defn of
  "Returns what the probe finds in a JVM with these options and this classpath; throws ex-info with
  its output where it failed."
  [jvm-opts class-path]
  (let [quick ["-XX:TieredStopAtLevel=1" "-XX:+UseSerialGC"]
        {:keys [exit lines]}
        (jvm/quietly
          (jvm/command (jvm/this-home) (into quick jvm-opts) class-path 'thrum.async.probe [])
          280000)]
    (when-not (zero? exit)
      (throw (ex-info (str "The probe ended with " exit) {:exit exit, :lines lines})))
    (edn/read-string (jvm/last-line lines))))

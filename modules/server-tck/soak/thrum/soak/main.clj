(ns thrum.soak.main
  "./cljw -M:soak: abuse and long runs against the engines, each ending in a verdict. Ends the JVM
  with 1 if one failed.

  --engine jdk|jetty|tomcat|helidon (default: all of these), --only NAME, --seconds N for each of
  the runs under load, --controls to see each ordeal fail against what breaks it."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.soak.broken :as broken]
   [thrum.soak.chaos :as chaos]
   [thrum.soak.crowd :as crowd]
   [thrum.soak.framing :as framing]
   [thrum.soak.h2 :as h2]
   [thrum.soak.restarts :as restarts]
   [thrum.soak.slow :as slow]
   [thrum.soak.stage :as stage]
   [thrum.soak.tls :as tls]
   [thrum.soak.watched :as watched]
   [thrum.soak.websockets :as websockets]
   [thrum.test-kit.dump :as dump]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def ^:private ordeals
  (vec (concat slow/ordeals framing/ordeals broken/ordeals tls/ordeals h2/ordeals websockets/ordeals
               restarts/ordeals chaos/ordeals crowd/ordeals watched/ordeals)))

;; One ordeal

(def ^:private ^:const longest-ms "Beside its seconds under load." 90000)

(def ^:private ^:const more-threads
  "How many platform threads an ordeal may add at most at one time: an engine's own, and alarms that
  go off at once."
  64)

(def ^:private ^:const more-heap (* 24 1024 1024))

(defn- grown-since
  "Returns by how many bytes the heap has grown; what ends a moment after its exchange is waited
  for."
  ^long [heap]
  (let [grown #(- (stage/used-heap) (long heap))]
    (scene/eventually 6000 #(< (long (grown)) more-heap))
    (long (grown))))

(defn- expect-flat
  "Ends the ordeal if it left memory behind, or used platform threads as it had clients."
  [heap threads most-threads]
  (let [grown (grown-since heap)
        added (- (long most-threads) (long threads))]
    (stage/expect (< grown more-heap) (str "less than " more-heap " bytes more on the heap") grown)
    (stage/expect (<= added more-threads)
                  (str "at most " more-threads " platform threads more")
                  [added
                   (frequencies (map #(str/replace (.getName ^Thread %) #"\d+" "N")
                                     (stage/platform-threads)))])
    {:heap-kb (quot grown 1024), :threads added}))

(defn- play
  "Runs an ordeal on a stage: returns its figures, or throws its verdict."
  [{:keys [run]} stage]
  (let [count-threads #(count (stage/platform-threads))
        heap (stage/used-heap), threads (count-threads)
        [figures most-threads] (stage/sampled count-threads #(run stage))]
    (run! stage/expect-quiet @(:servers stage))
    (merge figures (expect-flat heap threads most-threads))))

(defn- stage-of [engine {:keys [seconds]}]
  {:engine engine, :seconds seconds, :endings (atom []), :servers (atom [])})

(defn- outcome
  "Returns {:figures map} or {:failed message} of an ordeal; change: what breaks the stage."
  [ordeal {:keys [seconds] :as stage} change]
  (let [stage (change stage)]
    (try
      {:figures (gate/in-time (+ longest-ms (* 1000 (long seconds))) #(play ordeal stage))}
      (catch Throwable t
        (when (= :thrum.test-kit/late (:type (ex-data t)))
          (dump/print! (:name ordeal) (Thread/currentThread)))
        (when-not (::stage/failed (ex-data t)) (.printStackTrace t))
        {:failed (str (ex-message t))})
      (finally
        (scene/end! stage)))))

;; Reports

(defn- shown [figures]
  (str/join ", " (map (fn [[k v]] (str (name k) " " v)) figures)))

(defn- print-line! [engine name sign text ms]
  (println (format "%-7s %-20s %-4s %6d ms  %s" (clojure.core/name engine) name sign ms text))
  (flush))

(defn- verdict!
  "Runs an ordeal and prints how it went; returns whether it passed."
  [engine {:keys [name], :as ordeal} options]
  (let [[{:keys [figures failed]} ms] (stage/timed
                                        #(outcome ordeal (stage-of engine options) identity))]
    (print-line! engine name (if failed "FAIL" "ok") (or failed (shown figures)) ms)
    (not failed)))

(defn- shortened [s]
  (subs s 0 (min 200 (count s))))

(defn- control!
  "Runs an ordeal that something breaks; returns whether it failed, as it must."
  [engine {:keys [name], :as ordeal} options [sentence change]]
  (let [[{:keys [failed]} ms] (stage/timed #(outcome ordeal (stage-of engine options) change))]
    (print-line! engine
                 name
                 (if failed "ok" "FAIL")
                 (str "control: " sentence " -> " (if failed (shortened failed) "not noticed"))
                 ms)
    (boolean failed)))

;; All of them

(defn- fits? [engine {:keys [needs]}]
  (every? (server/capabilities engine) needs))

(defn- in-child!
  "Runs an ordeal in a JVM of its own."
  [engine {:keys [name]} {:keys [seconds controls]}]
  (let [args (cond-> ["--engine" (clojure.core/name engine) "--only" name "--seconds" (str seconds)
                      "--child"]
               controls (conj "--controls"))]
    (-> (jvm/command (jvm/this-home) [] 'thrum.soak.main args)
        (jvm/run (+ 180000 (* 1000 (long seconds))))
        :exit
        long
        zero?)))

(defn- run-one! [engine ordeal {:keys [controls child] :as options}]
  (cond
    (and (:alone? ordeal) (not child)) (in-child! engine ordeal options)
    controls (every? true? (mapv #(control! engine ordeal options %) (:controls ordeal)))
    :else (verdict! engine ordeal options)))

(defn- chosen [{:keys [only]}]
  (filter #(or (nil? only) (= only (:name %))) ordeals))

(defn- run-all! [{:keys [engines] :as options}]
  (vec (for [engine engines, ordeal (chosen options) :when (fits? engine ordeal)]
         (run-one! engine ordeal options))))

;; Held: java.util.logging forgets loggers without a reference.
(def ^:private loggers
  (mapv #(Logger/getLogger %)
        ["thrum.server" "org.eclipse.jetty" "sun.net.httpserver" "org.apache" "io.helidon"]))

(defn- silence!
  "Keeps the servers from logging each client that went away: thousands do."
  []
  (run! #(.setLevel ^Logger % Level/OFF) loggers))

;; The command line

(defn- parsed
  [args]
  (loop [options {:engines [:jdk :jetty :tomcat :helidon], :seconds 5}
         [arg value & more :as all] args]
    (case arg
      nil options
      "--engine" (recur (assoc options :engines [(keyword value)]) more)
      "--only" (recur (assoc options :only value) more)
      "--seconds" (recur (assoc options :seconds (parse-long value)) more)
      "--controls" (recur (assoc options :controls true) (rest all))
      "--child" (recur (assoc options :child true) (rest all))
      (throw (ex-info
               (str "Unknown option " arg "; known are --engine, --only, --seconds, --controls")
               {:argument arg})))))

(defn -main
  "Runs the ordeals that args choose; ends with 0 if each passed, or, with --controls, if each
  control failed."
  [& args]
  (silence!)
  (let [options (parsed args)
        [passed ms] (stage/timed #(run-all! options))
        failed (count (remove true? passed))]
    (when-not (:child options)
      (println (str (- (count passed) failed)
                    " passed, "
                    failed
                    " failed, in "
                    (quot (long ms) 1000)
                    " s")))
    (flush)
    (System/exit (if (and (seq passed) (zero? failed)) 0 1))))

(ns thrum.lab.load.wrk
  "Load from wrk: its command line and what it prints. wrk's percentiles are corrected for what a
  stalled server held back."
  (:refer-clojure :exclude [run!])
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.load.job :as job]
   [thrum.lab.processors :as processors]))

(set! *warn-on-reflection* true)

(def ^:private most-threads "As published." 12)
(def ^:private grace-ms "How long wrk may take beyond its :seconds." 20000)

(defn command
  "Returns the command line of a job."
  [{:keys [url connections seconds headers timeout-ms], only :processors}]
  (cond->> (-> ["wrk" "--latency"
                "-t" (str (min most-threads connections))
                "-c" (str connections)
                "-d" (str seconds "s")
                "--timeout" (str (quot (+ timeout-ms 999) 1000) "s")]
               (into (mapcat (fn [[name value]] ["-H" (str name ": " value)])) headers)
               (conj url))
    only (processors/on only)))

(def ^:private unit-ms
  {"us" 0.001, "ms" 1.0, "s" 1000.0, "m" 60000.0, "h" 3600000.0})

(defn- duration-ms [word]
  (let [[_ number unit] (re-matches #"([\d.]+)(us|ms|s|m|h)" word)]
    (* (parse-double number) (unit-ms unit))))

(defn- found [pattern text]
  (second (re-find pattern text)))

(defn- errors
  [text]
  (let [[_ & sockets]
        (re-find #"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)" text)
        status (found #"Non-2xx or 3xx responses: (\d+)" text)]
    (into {}
          (remove (comp zero? val))
          (merge (zipmap [:connect :read :write :timeout] (map parse-long sockets))
                 (when status {:status (parse-long status)})))))

(defn- latency [text]
  {:p50-ms (some-> (found #"(?m)^ +50% +(\S+)" text) duration-ms)
   :p99-ms (some-> (found #"(?m)^ +99% +(\S+)" text) duration-ms)
   :max-ms (some-> (found #"(?m)^ +Latency +\S+ +\S+ +(\S+) " text) duration-ms)})

(defn figures
  "Returns what came of a job, of what wrk printed; nil where that is no report of it."
  [text]
  (when-let [[_ requests seconds] (re-find #"(\d+) requests in ([\d.]+\w+)," text)]
    (merge {:requests (parse-long requests)
            :seconds (/ (duration-ms seconds) 1000)
            :per-second (parse-double (found #"Requests/sec: +([\d.]+)" text))
            :errors (errors text)}
           (latency text))))

(defn- failed [text]
  (ex-info (str "wrk failed: " (or (first (str/split-lines (str/trim text))) "it printed nothing"))
           {:type :thrum/lab-load, :output text}))

(defn- run! [{:keys [seconds] :as job}]
  (let [text (child/output! (command job) (+ (* 1000 seconds) grace-ms))]
    (or (figures text) (throw (failed text)))))

(defn drive!
  "Runs wrk for the job, once before that to warm up, and returns what came of it; see
  thrum.lab.load."
  [job]
  (some-> (job/warm-up job) run!)
  (run! job))

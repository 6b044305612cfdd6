(ns thrum.lab.load.ab
  "Bursts from ab, the Apache HTTP server's benchmark: its command line and what it prints. ab sends
  the first request alone, and the others, so many at once, when that is answered."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.load.job :as job]))

(set! *warn-on-reflection* true)

(def ^:private grace-ms "How long ab may take beyond its requests." 20000)

(defn command
  "Returns the command line of a burst."
  [{:keys [url requests connections headers timeout-ms]}]
  (-> ["ab" "-q" "-n" (str requests) "-c" (str connections) "-s"
       (str (quot (+ timeout-ms 999) 1000))]
      (into (mapcat (fn [[name value]] ["-H" (str name ": " value)])) headers)
      (conj url)))

(defn- found [pattern text]
  (second (re-find pattern text)))

(defn- errors
  "Returns the failed requests by kind; one may be of several, an answer of another length that has
  a bad status, say."
  [text]
  (let [[_ & failures]
        (re-find #"\(Connect: (\d+), Receive: (\d+), Length: (\d+), Exceptions: (\d+)\)" text)
        failed (found #"Failed requests: +(\d+)" text)
        status (found #"Non-2xx responses: +(\d+)" text)]
    (into {}
          (remove (comp zero? val))
          (merge (when-not failures {:failed (parse-long (or failed "0"))})
                 (zipmap [:connect :read :length :exception] (map parse-long failures))
                 (when status {:status (parse-long status)})))))

(defn- latency-ms [percent text]
  (some-> (found (re-pattern (str "(?m)^ *" percent "% +(\\d+)")) text) parse-double))

(defn figures
  "Returns what came of a burst, of what ab printed; nil where that is no report of a whole one."
  [text]
  (when-let [seconds (found #"Time taken for tests: +([\d.]+) seconds" text)]
    {:requests (parse-long (found #"Complete requests: +(\d+)" text))
     :seconds (parse-double seconds)
     :per-second (parse-double (found #"Requests per second: +([\d.]+)" text))
     :p50-ms (latency-ms 50 text)
     :p99-ms (latency-ms 99 text)
     :max-ms (latency-ms 100 text)
     :errors (errors text)}))

(defn- failed
  "Returns the error of a report that is none, with the line in which ab says why."
  [text]
  (ex-info (str "ab failed: " (or (re-find #"(?m)^(?:apr_|ab: ).*$" text) "it did not say why"))
           {:type :thrum/lab-load, :output text}))

(defn burst!
  "Runs ab for the burst and returns what came of it; see thrum.lab.load."
  [job]
  (let [text (child/output! (command job) (+ (job/longest-ms job) grace-ms))]
    (or (figures text) (throw (failed text)))))

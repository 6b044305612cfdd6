(ns thrum.lab.visit
  "One sample of a server under load: start it in a JVM of its own, warm it up, measure, ask what it used, stop it."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.load :as load]
   [thrum.lab.serve :as serve])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long an answer may take before it counts as a time-out." 10000)
(def ^:private beside-ms "What a sample takes beside its load, for the estimate: two JVMs, and a look at the heap." 4000)

(defn estimate-ms
  "Returns how long a sample takes, in ms."
  [warm-up-seconds seconds]
  (+ beside-ms (* 1000 (+ warm-up-seconds seconds))))

(defn- load-job
  "Returns the job of the load. A handler of the lab's is warmed up without its sleep: there is more to compile than a sleeper asks for."
  [server {:keys [path sleep-ms] :as visit}]
  (-> (select-keys visit [:connections :seconds :warm-up-seconds :headers])
      (assoc :url (if path (str (:url server) path) (serve/url server sleep-ms))
             :timeout-ms timeout-ms)
      (cond-> sleep-ms (assoc :warm-up-url (serve/url server nil)))))

(defn- heap
  "Returns {:heap-each bytes} for a connection whose handler sleeps; nil where not all of them can sleep at once, or in a handler of the user's."
  [server {:keys [handler pool]} {:keys [connections]}]
  (when-not (or handler (and pool (< pool connections)))
    {:heap-each (serve/heap-per-sleeper server connections)}))

(defn figures
  "Puts a running server under the load of a visit, {:connections :seconds :warm-up-seconds :headers} with :sleep-ms or a :path, and
  returns what came of it (see thrum.lab.load), with :threads and :rss as serve/facts has them. Throws ex-info as load/drive! does."
  [server visit]
  (let [came (load/drive! (load-job server visit))]
    (merge came (serve/facts server))))

(defn- measure [job visit]
  (let [server (serve/start! job)]
    (try
      (let [figures (figures server visit)]
        (merge figures (heap server job visit)))
      (finally (child/stop! server)))))

(defn sample
  "Starts the server of a job (see thrum.lab.serve) and returns the sample: figures, and :heap-each where it is known. A server or a load
  that fails is the sample's :error {:class :message}; an interrupt makes it {:interrupted? true}."
  [job visit]
  (try
    (measure job visit)
    (catch InterruptedException _ {:interrupted? true})
    (catch ExceptionInfo e {:error {:class (name (:type (ex-data e))), :message (ex-message e)}})))

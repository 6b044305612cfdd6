(ns thrum.lab.visit
  "One sample of a server under load: start it in a JVM of its own, warm it up, measure, ask what it
  used, stop it."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.load :as load]
   [thrum.lab.serve :as serve]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long an answer may take before it counts as a time-out." 10000)
(def ^:private most-to-warm-up "How many connections warm a server up." 120)
(def ^:private beside-ms "What a sample takes beside its load, for the estimate: two JVMs, and a
  look at the heap." 4000)

(defn estimate-ms
  "Returns how long a sample takes, in ms."
  [warm-up-seconds seconds]
  (+ beside-ms (* 1000 (+ warm-up-seconds seconds))))

(defn- url-of [server {:keys [path sleep-ms]}]
  (if path (str (:url server) path) (serve/url server sleep-ms)))

(defn- load-job [server visit]
  (-> (select-keys visit [:connections :seconds :headers])
      (assoc :url (url-of server visit), :timeout-ms timeout-ms, :warm-up-seconds 1)))

(defn warm-up!
  "Has a running server compile its code, for the visit's :warm-up-seconds but the one that comes
  right before its load. A handler of the lab's is asked without its sleep, since there is more to
  compile than a sleeper asks for; and none by thousands of connections, whose requests a cold
  server would still be busy with afterwards."
  [server {:keys [path warm-up-seconds connections], :as visit}]
  (when (< 1 warm-up-seconds)
    (load/drive! (-> (load-job server (if path visit (dissoc visit :sleep-ms)))
                     (assoc :seconds (dec warm-up-seconds)
                            :connections (min most-to-warm-up connections)
                            :warm-up-seconds 0)))))

(defn figures
  "Puts a running server under the load of a visit, {:connections :seconds :headers} with :sleep-ms
  or a :path, after a second of the same that is not counted, and returns what came of it (see
  thrum.lab.load), with :threads and :rss as serve/facts has them. Throws ex-info as load/drive!
  does."
  [server visit]
  (merge (load/drive! (load-job server visit)) (serve/facts server)))

(defn- heap
  "Returns {:heap-each bytes} for a connection whose handler sleeps; nil where not all of them can
  sleep at once, or in a handler of the user's."
  [server {:keys [handler pool]} {:keys [connections]}]
  (when-not (or handler (and pool (< pool connections)))
    {:heap-each (serve/heap-per-sleeper server connections)}))

(defn- measure [job visit]
  (let [server (serve/start! job)]
    (try
      (warm-up! server visit)
      (let [heap (heap server job visit)]
        (merge (figures server visit) heap))
      (finally (child/stop! server)))))

(defn sample
  "Starts the server of a job (see thrum.lab.serve) and returns the sample: figures, and :heap-each
  where it is known. A server or a load that fails is the sample's :error {:class :message}; an
  interrupt makes it {:interrupted? true}."
  [job visit]
  (try
    (measure job visit)
    (catch Throwable t (trouble/sample t))))

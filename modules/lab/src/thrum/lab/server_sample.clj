(ns thrum.lab.server-sample
  "One sample of a server under load: start it in a JVM of its own, warm it up, measure, ask what it
  used, stop it."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.columns :as columns]
   [thrum.lab.load :as load]
   [thrum.lab.subject :as subject]
   [thrum.lab.text :as text]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long an answer may take before it counts as a time-out." 10000)
(def ^:private most-to-warm-up "How many connections warm a server up." 120)
(def ^:private beside-ms
  "What a sample takes beside its load, for the estimate: two JVMs, and a look at the heap."
  4000)

(defn estimate-ms
  "Returns how long a sample takes, in ms."
  [warm-up-seconds seconds]
  (+ beside-ms (* 1000 (+ warm-up-seconds seconds))))

(defn- url-of [server {:keys [path sleep-ms]}]
  (if path (str (:url server) path) (subject/url server sleep-ms)))

(defn- load-job [server plan]
  (-> (select-keys plan [:connections :seconds :headers :processors])
      (assoc :url (url-of server plan), :timeout-ms timeout-ms, :warm-up-seconds 1)))

(defn warm-up!
  "Has a running server compile its code, for the plan's :warm-up-seconds but the one that comes
  right before its load. A handler of the lab's is asked without its sleep, since there is more to
  compile than a sleeper asks for; and none by thousands of connections, whose requests a cold
  server would still be busy with afterwards."
  [server {:keys [path warm-up-seconds connections] :as plan}]
  (when (< 1 warm-up-seconds)
    (load/drive! (-> (load-job server (if path plan (dissoc plan :sleep-ms)))
                     (assoc :seconds (dec warm-up-seconds)
                            :connections (min most-to-warm-up connections)
                            :warm-up-seconds 0)))))

(defn figures
  "Puts a running server under the load of a plan, {:connections :seconds :headers} with :sleep-ms
  or a :path, after a second of the same that is not counted, and returns what came of it (see
  thrum.lab.load), with :threads and :rss as subject/facts has them. Throws ex-info as load/drive!
  does."
  [server plan]
  (merge (load/drive! (load-job server plan)) (subject/facts server)))

(defn costs
  "Puts a running server under the load of a plan, as figures does but without a second before, and
  returns what came of it, with :cpu-us, the CPU time of the server's JVM for each request."
  [server plan]
  (let [before (subject/cpu-nanos server)
        taken (load/drive! (assoc (load-job server plan) :warm-up-seconds 0))
        spent (- (subject/cpu-nanos server) before)]
    (assoc taken :cpu-us (/ spent 1e3 (:requests taken)))))

(defn- heap
  "Returns {:heap-each bytes} for a connection whose handler sleeps; nil where not all of them can
  sleep at once, or in a handler of the user's."
  [server {:keys [handler pool]} {:keys [connections]}]
  (when-not (or handler (and pool (< pool connections)))
    {:heap-each (subject/heap-per-sleeper server connections)}))

(defn- measure [job plan]
  (let [server (subject/start! job)]
    (try
      (warm-up! server plan)
      (let [heap (heap server job plan)]
        (merge (figures server plan) heap))
      (finally (child/stop! server)))))

;; Its report

(defn- errors-words
  "Returns the requests that went wrong under load, by kind: 364 timeout."
  [{:keys [samples]}]
  (let [all (apply merge-with + (keep :errors samples))]
    (cond
      (seq all) (text/commas (for [[kind n] (sort-by key all)]
                               (str (text/thousands n) " " (name kind))))
      (some :errors samples) "0"
      :else "–")))

(def columns
  "The columns of servers under load. The heap is that of a connection whose handler sleeps."
  [columns/median columns/samples columns/limit-line columns/times-limit columns/p50 columns/p99
   {:heading "errors", :show errors-words}
   columns/threads
   {:heading "RSS", :show (partial columns/of-samples #(text/bytes (long %)) :rss)}
   {:heading "heap each"
    :on-page "heap, sleeping connection"
    :show (partial columns/of-samples #(text/bytes (max 0 (Math/round (double %)))) :heap-each)}
   columns/published])

(defn conditions
  "Returns how the servers of a part were put under load, in two sentences, or one before the first
  sample."
  [{:keys [connections seconds warm-up-seconds contenders]}]
  (when connections
    (str (text/thousands connections) " connections for " seconds " s, after " warm-up-seconds
         " s to warm up; each contender has a server in a JVM of its own."
         (load/came-from "The load" contenders))))

;; The whole of it

(defn sample
  "Starts the server of a job (see thrum.lab.subject) and returns the sample: figures, and
  :heap-each where it is known. A server or a load that fails is the sample's :error {:class
  :message}; an interrupt makes it {:interrupted? true}."
  [job plan]
  (try
    (measure job plan)
    (catch Throwable t (trouble/sample t))))

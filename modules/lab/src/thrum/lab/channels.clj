(ns thrum.lab.channels
  "Work with channels, each sample in a JVM of its own: which flags and which class path it has,
  what is compiled ahead for it, and what became of its job."
  (:require
   [thrum.lab.checkout :as checkout]
   [thrum.lab.compiled :as compiled]
   [thrum.lab.job :as job]))

(set! *warn-on-reflection* true)

(def ^:private jvm-opts
  "The flags of every JVM, so that all have the same: those of one that is soon ready. Each request
  has a connection of its own: one that is kept alive has a thread to watch it."
  ["-Xmx512m" "-XX:+UseSerialGC" "-XX:TieredStopAtLevel=1" "-Dhttp.keepAlive=false"])

(def ^:private answer-ms "How long a job may take, the start of its JVM included." 120000)
(def ^:private download-ms
  "How long it may take to resolve a class path, and to download what is on it."
  180000)

;; The class path with the one release of core.async that knows clojure.core.async.vthreads

(def ^:private alpha
  "The alias that puts 1.9.829-alpha2 in place of the release that Thrum is tested with."
  "-A:core-async-alpha")

(defn alpha-class-path!
  "Returns {:class-path text}, of the checkout in folder with 1.9.829-alpha2 in it, which ./cljw
  downloads the first time; {:problem words} if it cannot."
  [folder]
  (let [{:keys [problem] :as found} (checkout/class-path! folder alpha download-ms)]
    (if problem
      {:problem (str "core.async 1.9.829-alpha2 could not be had: " problem)}
      found)))

;; Samples

(defn sample
  "Does a job, see thrum.lab.job, in a JVM of its own and returns its sample. The JVM has more
  :flags; :classes, a folder of compile-ahead!'s; and another :class-path than this one, where they
  are given."
  [{:keys [flags classes class-path]} job]
  (job/sample! {:jvm-opts (into jvm-opts flags)
                :class-path (compiled/class-path classes class-path)
                :timeout-ms answer-ms}
               job))

;; Compiled ahead, since to load core.async from its source takes longer than most samples

(def ^:private namespaces
  '[thrum.lab.job.child thrum.lab.experiments.go-blocks.requests thrum.lab.experiments.go-blocks.go
    thrum.lab.channels.pipeline thrum.lab.contender thrum.async.executor])

(defn compile-ahead!
  "Compiles what the jobs are made of, with core.async and Thrum, into a folder of its own and
  returns its path; see compiled/folder!."
  []
  (compiled/folder! {:jvm-opts jvm-opts, :timeout-ms answer-ms} namespaces))

(def classes
  "That folder: several experiments need it. What its first deref throws, also for an interrupt, all
  later ones do."
  (delay (compile-ahead!)))

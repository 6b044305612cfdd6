(ns thrum.lincheck.main
  "./cljw -M:lincheck: Lincheck's model checker on the limiter and on the state of a task, and on
  controls that it must reject: copies of their sources with one thing broken."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lincheck.dead-code :as dead-code]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(def ^:private sources "target/lincheck/src")
(def ^:private classes "target/lincheck/classes")

(def ^:private controls
  [{:name "limit-unlocked", :of "limit", :replace ["(locking this" "(do"]}
   {:name "limit-forgets"
    :of "limit"
    :replace ["          (.release limiter permit))" "          nil)"]}
   {:name "task-unlocked", :of "task", :replace ["(locking this" "(do"]}])

(defn- broken
  "Returns the source of a control; throws when there is nothing to break."
  [{:keys [name of], [old new] :replace}]
  (let [source (slurp (io/resource (str "thrum/impl/" of ".clj")))]
    (when-not (str/includes? source old)
      (throw (ex-info
               (str "thrum.impl." of " has no " (pr-str old) " that the control " name
                 " could break")
               {:control name})))
    (-> source
        (str/replace-first (str "(ns thrum.impl." of) (str "(ns thrum.lincheck.control." name))
        (str/replace old new))))

(defn- write! [{:keys [name] :as control}]
  (let [file (io/file sources "thrum/lincheck/control" (str (str/replace name "-" "_") ".clj"))]
    (io/make-parents file)
    (spit file (broken control))))

(defn- empty-folder! [path]
  (run! #(.delete ^File %) (reverse (file-seq (io/file path))))
  (.mkdirs (io/file path)))

(defn- command
  [jvm-opts & main-and-args]
  (-> [(str (io/file (jvm/this-home) "bin/java"))]
      (into jvm-opts)
      (into ["-cp"
             (str/join File/pathSeparator
                       [classes sources (System/getProperty "java.class.path")])])
      (into main-and-args)))

;; Direct linking leaves Lincheck fewer places to switch threads at that do not matter.
(defn- compile!
  []
  (jvm/run (command [(str "-Dclojure.compile.path=" classes)
                     "-Dclojure.compiler.direct-linking=true"]
                    "clojure.lang.Compile"
                    "thrum.lincheck.operations")
           300000))

(defn- check!
  [names]
  (jvm/run
    (apply command
           ["-XX:+EnableDynamicAgentLoading" "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"
            "-Dlincheck.logLevel=ERROR"]
           "clojure.main"
           "-m"
           "thrum.lincheck.checks"
           classes
           names)
    900000))

(defn- check-all! [names]
  (let [{:keys [exit]} (compile!)]
    (if (= 0 exit)
      (do (dead-code/remove! classes)
          (dead-code/copy-without! classes)
          (:exit (check! names)))
      exit)))

(defn -main
  "Ends with 0 when the subjects are accepted and the controls rejected, otherwise with another
  code. Names of checks run those alone."
  [& names]
  (run! empty-folder! [sources classes])
  (run! write! controls)
  (System/exit (check-all! names)))

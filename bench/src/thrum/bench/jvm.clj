(ns thrum.bench.jvm
  "Starts child JVMs like this one, and reads what they print."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.lang ProcessBuilder$Redirect)
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(def begin-mark "Stands on the line before the figures of a child." "--- figures")
(def end-mark "Stands on the line after the figures of a child." "--- end of figures")

(defn command
  "Returns the command line of a JVM of this Java and class path that calls a main function."
  [jvm-opts main args]
  (-> [(str (io/file (System/getProperty "java.home") "bin" "java"))]
      (into jvm-opts)
      (into ["-cp" (System/getProperty "java.class.path") "clojure.main" "-m" (str main)])
      (into args)))

(defn figures
  "Returns the EDN between the marks in a child's output, or nil."
  [output]
  (let [[_ after] (str/split output (re-pattern (str begin-mark "\n")) 2)
        [text end] (some-> after (str/split (re-pattern end-mark) 2))]
    (when end (edn/read-string text))))

(defn- start! ^Process [command]
  (-> (ProcessBuilder. ^List command)
      (.redirectError ProcessBuilder$Redirect/INHERIT)
      .start))

(defn- failed [reason data]
  (ex-info (str "A child JVM " reason) (assoc data :type :thrum.bench/child)))

(defn- ended!
  "Waits for the process to end well; kills it after timeout-ms."
  [^Process process timeout-ms]
  (when-not (.waitFor process timeout-ms TimeUnit/MILLISECONDS)
    (.waitFor (.destroyForcibly process))
    (throw (failed (str "was killed after " timeout-ms " ms") {:timeout-ms timeout-ms})))
  (when-not (zero? (.exitValue process))
    (throw (failed (str "ended with exit code " (.exitValue process))
                   {:exit (.exitValue process)}))))

(defn run
  "Runs a command and returns the figures it prints; its standard error is ours. Throws ex-info of
  :type :thrum.bench/child if it fails, prints none, or takes longer than timeout-ms."
  [command timeout-ms]
  (let [process (start! command)
        output (future (slurp (.getInputStream process)))]
    (ended! process timeout-ms)
    (or (figures @output)
        (throw (failed "printed no figures" {:output @output})))))

(ns thrum.cluster.main-test
  "The command line: arguments, and the table of a status."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.main :as main])
  (:import
   (java.io File)
   (java.util.logging Handler LogRecord Logger)))

(set! *warn-on-reflection* true)

(deftest arguments-become-options-of-join
  (is (= ["member" {:allow #{'a.b 'c}, :port 7801, :seeds ["h:1" "i:2"], :cluster "x"}]
         (main/parse ["member" "--allow" "a.b,c" "--port" "7801" "--seeds" "h:1,i:2"
                      "--cluster" "x"])))
  (is (= ["member" {:allow #{'a.b 'c}, :seeds ["h:1" "i:2"]}]
         (main/parse ["member" "--allow" "a.b, c" "--seeds" "h:1, i:2"])))
  (is (= ["status" {:engine str/trim}] (main/parse ["status" "--engine" "clojure.string/trim"])))
  (let [file (doto (File/createTempFile "options" ".edn") (spit "{:secret \"s\"}"))]
    (is (= ["status" {:secret "s", :name "n"}]
           (main/parse ["status" "--options" (str file) "--name" "n"])))))

(deftest what-is-no-argument-is-refused-with-a-sentence
  (doseq [[arguments part] [[[] "A command is missing"]
                            [["membr"] "No command \"membr\""]
                            [["member" "--alow" "x"] "Unknown option --alow"]
                            [["member" "--port"] "--port needs a value"]
                            [["member" "--port" "x"] "A number is expected, not x"]
                            [["member" "--engine" "no.such/start"] "No function no.such/start"]
                            [["member" "--engine" "clojure.core/nope"]
                             "No function clojure.core/nope"]
                            [["member" "--engine" "clojure.core/*ns*"]
                             "No function clojure.core/*ns*"]
                            [["member" "--engine" "inc"] "No function inc"]
                            [["status" "--options" "/nowhere.edn"] "holds no options"]]]
    (is (str/includes? (try (main/parse arguments) "parsed"
                            (catch clojure.lang.ExceptionInfo e (ex-message e)))
                       part))))

(defn- sentence
  "Returns what the command line says where the command does not run."
  [& arguments]
  (let [err (java.io.StringWriter.)]
    (binding [*err* err] [(main/run arguments) (str/trim (str err))])))

(deftest what-is-no-engine-is-refused-with-a-sentence
  (doseq [[engine part] [["clojure.core/inc" "The engine could not be started: java.lang.ClassCast"]
                         ["clojure.core/identity" "The :engine returned"]]
          :let [[code sentence] (sentence "status" "--engine" engine)]]
    (is (= 1 code))
    (is (str/includes? sentence part))
    (is (= 1 (count (str/split-lines sentence))))))

(defn noisy
  "Logs as an engine does that starts, and is none."
  [_]
  (doseq [name ["org.infinispan.Step" "org.jgroups.Step" "com.hazelcast.Step" "control"]]
    (.info (Logger/getLogger name) "a step"))
  :none)

(defn- collecting
  "Returns a handler that adds the name of the logger of each of those steps to the atom."
  ^Handler [logged]
  (proxy [Handler] []
    (publish [^LogRecord record]
      (when (= "a step" (.getMessage record))
        (swap! logged conj (.getLoggerName record))))
    (flush [])
    (close [])))

(deftest no-engine-logs-the-steps-of-a-join
  (let [root (Logger/getLogger ""), logged (atom []), handler (collecting logged)]
    (.addHandler root handler)
    (try
      (sentence "status" "--engine" "thrum.cluster.main-test/noisy")
      (is (= ["control"] @logged))
      (finally (.removeHandler root handler)))))

(deftest a-file-without-a-map-holds-no-options
  (let [file (doto (File/createTempFile "options" ".edn") (spit "[:secret]"))]
    (is (thrown-with-msg? clojure.lang.ExceptionInfo #"holds no options"
          (main/parse ["status" "--options" (str file)])))))

(deftest a-status-is-a-table
  (is (= ["a-1" "3" "40" "up"]
         (str/split (second (main/table {:members [{:member "a-1", :running 3, :finished 40}]}))
                    #"\s+")))
  (is (str/includes? (last (main/table {:members [{:member "a-1"}]})) "no answer")))

(deftest a-status-without-an-answer-is-a-failure
  (is (nil? (main/check-answers {:members [{:member "a-1"} {:member "a-2", :running 0}]})))
  (doseq [members [[] [{:member "a-1"}]]]
    (is (thrown-with-msg? clojure.lang.ExceptionInfo #"No member has answered"
          (main/check-answers {:members members})))))

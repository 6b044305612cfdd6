(ns thrum.watch.doctor-test
  "What the doctor says of dumps, of a process of its own, and of what is no JVM."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.watch.doctor :as doctor]
   [thrum.watch.doctor.examine :as examine]
   [thrum.watch.impl.dump :as dump])
  (:import
   (java.io StringReader)
   (java.util List)))

(set! *warn-on-reflection* true)

(defn- printed
  "Returns [exit-code text] of the doctor's run."
  [& argv]
  (let [code (volatile! nil), text (with-out-str (vreset! code (doctor/run argv)))]
    [@code (str/trim text)]))

(deftest what-cannot-be-examined-is-said-in-a-sentence
  (is (= [1 "There is no process 4194301"] (printed "4194301")))
  (let [^List command ["sleep" "60"]
        sleeper (.start (ProcessBuilder. command))
        pid (str (.pid sleeper))]
    (try
      (is (= [1 (str "Process " pid " is not a JVM")] (printed pid)))
      (is (.isAlive sleeper) "an attach would have ended it")
      (finally (.destroy sleeper)))))

(deftest wrong-arguments-are-answered-with-the-usage
  (are [argv sentence] (let [[code text] (apply printed argv)]
                         (and (= 2 code) (str/starts-with? text sentence)))
    [] "A PID is missing"
    ["x"] "The PID must be a positive integer, not \"x\""
    ["0"] "The PID must be a positive integer, not \"0\""
    ["1" "2"] "Unknown argument \"2\""
    ["1" "--jason"] "Unknown argument \"--jason\""
    ["1" "--out"] "--out needs a file"
    ["record" "1" "--seconds" "no"] "--seconds must be a positive integer, not \"no\"")
  (is (zero? (long (first (printed "--help"))))))

(def ^:private of-jdk-25
  "{\"threadDump\": {\"threadContainers\": [
     {\"container\": \"<root>\", \"threads\": [
       {\"tid\": \"30\", \"virtual\": true, \"name\": \"hog\", \"state\": \"RUNNABLE\",
        \"carrier\": \"17\", \"stack\": [\"my.app$spin.invoke(app.clj:3)\"]},
       {\"tid\": \"31\", \"virtual\": true, \"name\": \"\", \"state\": \"RUNNABLE\", \"stack\": []},
       {\"tid\": \"32\", \"virtual\": true, \"name\": \"a\", \"state\": \"BLOCKED\",
        \"blockedOn\": \"X@1\", \"stack\": [\"my.app$a.invoke(app.clj:5)\"],
        \"monitorsOwned\": [{\"depth\": 0, \"locks\": [\"X@2\", null]}]}]},
     {\"container\": \"ForkJoinPool-1\", \"threads\": [
       {\"tid\": \"17\", \"name\": \"worker-1\", \"state\": \"RUNNABLE\", \"stack\": []}]}]}}")

(defn- parsed [text]
  (dump/parse (StringReader. text)))

(deftest a-dump-is-read
  (let [[hog queued a worker] (parsed of-jdk-25)]
    (is (= [30 "hog" true :runnable "worker-1"]
           ((juxt :tid :name :virtual? :state :carrier) hog)))
    (is (= ["#31" :runnable nil []] ((juxt :name :state :carrier :stack) queued)))
    (is (= [:blocked "X@1" #{"X@2"}] ((juxt :state :blocked-on :owned) a)))
    (is (= [17 false] ((juxt :tid :virtual?) worker)))))

(defn- at [ms] (* 1000000 (long ms)))

(deftest dumps-one-after-the-other-show-what-stays
  (let [threads (parsed of-jdk-25), healthy (mapv #(dissoc % :carrier) threads)
        rules (fn [dumps] (map :rule (examine/lints dumps)))]
    (is (= [:carrier-held :starved] (rules (for [ms [0 500 1000]] [(at ms) threads]))))
    (is (= [] (rules [[(at 0) threads] [(at 500) healthy] [(at 1000) threads]])))))

(defn- sleeping-jvm
  "Starts a JVM that reads its standard input, and ends when that is closed."
  ^Process []
  (let [java (str (System/getProperty "java.home") "/bin/java")
        code "(println :ready) (flush) (read-line)"
        ^List command [java "-XX:TieredStopAtLevel=1" "-cp" (System/getProperty "java.class.path")
                       "clojure.main" "-e" code]]
    (.start (doto (ProcessBuilder. command)
              (.redirectErrorStream true)))))

(deftest a-jvm-is-examined
  (let [jvm (sleeping-jvm)]
    (try
      (with-open [lines (io/reader (.getInputStream jvm))]
        (is (some #{":ready"} (line-seq lines)))
        (let [{:keys [threads groups jdk]} (doctor/examine (.pid jvm) {:no-recording true})]
          (is (= [0 0 []] [(:virtual threads) (:mounted threads) groups]))
          (is (pos? (long (:platform threads))))
          (is (str/starts-with? (str (Runtime/version)) jdk)))
        (is (= [1 "Cannot write /no/such/file: /no/such/file (No such file or directory)"]
               (printed (str (.pid jvm)) "--no-recording" "--out" "/no/such/file")
               (printed "record" (str (.pid jvm)) "--out" "/no/such/file"))))
      (finally (.destroy jvm)))))

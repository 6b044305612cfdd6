(ns thrum.cluster.partition-test
  "A member that is cut off by the network: processes in a network namespace of their own, whose
  routes are taken away."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.trail :as trail]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.lang ProcessBuilder ProcessBuilder$Redirect ProcessHandle)))

(set! *warn-on-reflection* true)

(def ^:private space (str "thrum-" (.pid (ProcessHandle/current))))

(defn- ip! [& arguments]
  (try
    (zero? (.waitFor (.start (doto (ProcessBuilder. ^java.util.List (into ["ip"] arguments))
                               (.redirectErrorStream true)
                               (.redirectOutput ProcessBuilder$Redirect/DISCARD)))))
    (catch java.io.IOException _ false)))

(def ^:private inside ["ip" "netns" "exec" space])

(defn- in-space! [& arguments]
  (is (apply ip! (concat (rest inside) ["ip"] arguments))))

;; Rules come before the table of local addresses, which by default is the first.
(defn- open-space! []
  (in-space! "link" "set" "lo" "up")
  (in-space! "rule" "add" "pref" "100" "lookup" "local")
  (in-space! "rule" "del" "pref" "0"))

(defn- cut!
  "Nothing reaches the address, and nothing comes from it."
  [address]
  (in-space! "rule" "add" "pref" "10" "from" address "unreachable")
  (in-space! "rule" "add" "pref" "11" "to" address "unreachable"))

(defn- cut-apart!
  "The two addresses do not reach each other; others reach both."
  [one other]
  (in-space! "rule" "add" "pref" "10" "from" one "to" other "unreachable")
  (in-space! "rule" "add" "pref" "11" "from" other "to" one "unreachable"))

(defn- heal! []
  (in-space! "rule" "del" "pref" "10")
  (in-space! "rule" "del" "pref" "11"))

(def ^:private callers-address "127.0.0.10")
(def ^:private addresses ["127.0.0.11" "127.0.0.12" "127.0.0.13"])
(def ^:private seeds (mapv #(str % ":7800") addresses))

(defn- start-member! [address]
  (processes/start! ["-m" "thrum.cluster.main" "member" "--allow" "thrum.cluster.jvm-work"
                     "--cluster" "partition" "--host" address "--seeds" (str/join "," seeds)
                     "--heartbeat-ms" "3000"]
                    :prefix inside))

(defn- start-caller! [items results]
  (processes/start!
    ["-e"
     (pr-str
       `(do (require 'thrum.cluster 'thrum.cluster.jvm-work)
            (let [~'c (thrum.cluster/join! {:cluster "partition", :host ~callers-address
                                            :seeds ~seeds, :heartbeat-ms 3000})
                  ~'var-of (fn [~'name] (ns-resolve 'thrum.cluster.jvm-work ~'name))
                  ~'await-three (fn []
                                  (while (not= 3 (count (:members (thrum.cluster/status ~'c))))
                                    (Thread/sleep 50)))]
              (~'await-three)
              (spit ~results (pr-str (thrum.cluster/pmapv ~'c 32 (~'var-of '~'nap) ~items)))
              (println "all results")
              (~'await-three)
              (println "members used:"
                       (count (set (thrum.cluster/pmapv ~'c 9 (~'var-of '~'where) (range 90)))))
              (System/exit 0))))]
    :prefix inside))

(defn- survives-partition! [started cut!]
  (let [folder (trail/folder), results (io/file (trail/folder) "results.edn")
        start! #(let [process (%)] (swap! started conj process) process)
        members (mapv (fn [address] (start! #(start-member! address))) addresses)]
    (run! #(processes/await-line! % "joined") members)
    (let [caller (start! #(start-caller! (trail/items folder 400 50) (str results)))]
      (is (processes/await! #(<= 100 (trail/noted folder :start))) (slurp (:output caller)))
      (cut!)
      (processes/await-line! caller "all results")
      (trail/check! folder 400 (edn/read-string (slurp results)) 1)
      (is (every? processes/alive? members))
      (heal!)
      (processes/await-line! caller "members used: 3"))))

(defn- in-space [cut!]
  (if (ip! "netns" "add" space)
    (let [started (atom [])]
      (try
        (processes/compile!)
        (open-space!)
        (survives-partition! started cut!)
        (finally
          (run! processes/kill! @started)
          (ip! "netns" "del" space))))
    (runner/skip! "no network namespace can be made here: that needs Linux, ip and root")))

(deftest a-member-is-cut-off-by-the-network-and-comes-back
  (in-space #(cut! (peek addresses))))

;; The members have no new view then: the last is there for the others.
(deftest a-member-is-cut-off-from-the-caller-alone-and-comes-back
  (in-space #(cut-apart! callers-address (peek addresses))))

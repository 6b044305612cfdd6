(ns thrum.lab.processors
  "Has processes run on some of the machine's processors only. Linux says which there are, and
  taskset of util-linux moves a process."
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.machine :as machine]
   [thrum.lab.proc :as proc]))

(set! *warn-on-reflection* true)

(def ^:private move-ms "How long taskset may take." 5000)

(defn numbers
  "Returns the numbers of a list as Linux writes it: 0-2,5 -> (0 1 2 5)."
  [text]
  (mapcat (fn [part]
            (let [[from to] (map parse-long (str/split part #"-"))]
              (range from (inc (or to from)))))
          (str/split text #",")))

(defn allowed
  "Returns the numbers of the processors that this JVM may run on; nil where that is unknown."
  []
  (some->> (proc/text "/proc/self/status")
           (re-find #"(?m)^Cpus_allowed_list:\s+(\S+)$")
           second
           numbers))

(defn- listed [processors] (str/join "," processors))

(defn on
  "Returns command, run on those processors."
  [processors command]
  (into ["taskset" "-c" (listed processors)] command))

(defn move!
  "Moves a running child and all of its threads to those processors. Throws ex-info where that
  fails."
  [{:keys [^Process process]} processors]
  (let [command ["taskset" "-a" "-p" "-c" (listed processors) (str (.pid process))]
        {:keys [exit output]} (child/run-to-end! command {} move-ms)]
    (when-not (zero? exit)
      (throw (ex-info (str "taskset failed: " (str/trim output)) {:type :thrum/lab-child})))))

(defn halves
  "Returns the processors in two halves, [first second]; nil where there is only one, or no way to
  keep processes on them."
  []
  (let [processors (allowed)
        n (count processors)]
    (when (and (< 1 n) (machine/on-path? "taskset"))
      (mapv vec (split-at (quot n 2) processors)))))

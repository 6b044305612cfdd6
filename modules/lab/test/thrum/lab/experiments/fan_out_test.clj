(ns thrum.lab.experiments.fan-out-test
  "The experiment as a whole, on real sockets, with tiny files."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiments.fan-out.experiment :as fan-out]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.lab.servers :as servers]))

(def ^:private tiny
  {:bytes {:downloads 10000, :many 5000, :files 5000, :unlimited 5000}
   :rate {:downloads 500000, :many 500000, :files 100000, :unlimited :unlimited}
   :n {:downloads 40, :many 100, :files 600, :unlimited 20}
   :repeat {:fast 1, :unlimited 1}
   :deadline-ms 20000})

(defn- fewer-processes
  "Leaves out the one contender of part :files that brings nothing new but another JVM."
  [part]
  (cond-> part
    (= :files (:part part)) (update :contenders (partial filterv (comp not #{:pool} :contender)))))

;; clojure.core/pmap follows the processors of this JVM, and its limit line those of the plan.
(defn- plan [experiment]
  (-> ((:plan experiment) {:limit 16} {:cpus (.availableProcessors (Runtime/getRuntime))
                                       :hard-file-limit? true})
      (update :parts (partial mapv fewer-processes))))

(deftest a-tiny-run-on-real-sockets
  (let [experiment (fan-out/sized tiny)
        events (atom [])
        experiments (run/run! {:fan-out experiment} [(plan experiment)] #(swap! events conj %))
        rows (result/rows {:experiments experiments})]
    (is (= 0 (result/exit-code {:experiments experiments})))
    (is (= {:done (dec (count rows)), :broke 1} (frequencies (map :verdict rows))))
    (doseq [{:keys [name verdict limit-line-ms samples]} rows
            {:keys [ms bytes ok peak]} samples
            :when (= :done verdict)]
      (is (and (pos? bytes) (pos? peak)) name)
      (is (<= (or limit-line-ms 0) ms) (str name " cannot be faster than its limit line"))
      (is (= (/ bytes ok) (quot bytes ok)) name))
    (is (= [256]
           (keep (comp :max-files first :samples)
                 (filter #(= :thrum-pmap-fd-limit (:contender %)) rows))))
    (is (= (count rows) (count (filter #(= :sample-ends (:event %)) @events))))))

(deftest a-wrong-byte-count-fails-the-contender-and-the-run
  (servers/with-server [url (servers/answering 200 {} 9999)]
    (let [experiment (fan-out/sized tiny), plan (plan experiment)
          part (first (:parts plan)), row (first (:contenders part))
          sample ((:sample! experiment) {:url url} part row (constantly nil))
          row (result/add-sample row sample)]
      (is (= [0 40 {:wrong-byte-count 40}] ((juxt :ok :failed :kinds) sample)))
      (is (= :failed (:verdict row)))
      (is (= 1 (result/exit-code {:experiments [{:parts [{:contenders [row]}]}]}))))))

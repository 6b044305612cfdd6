(ns thrum.cluster.nodes
  "Nodes on a stand-in's network, for the tests of one JVM."
  (:require
   [clojure.test :refer [is]]
   [thrum.cluster :as cluster]
   [thrum.cluster.stand-in :as stand-in]
   [thrum.cluster.work :as work]
   [thrum.test-kit.gate :as gate]))

(set! *warn-on-reflection* true)

(defn member! [network name & {:as options}]
  (stand-in/join! network
                  (merge {:name name, :allow #{'thrum.cluster.work}, :wrap (work/on-node name)
                          :drain-timeout-ms 1000}
                         options)))

(defn caller! [network & {:as options}]
  (stand-in/join! network (merge {:name "caller", :members-timeout-ms 1000} options)))

(defn close-all! [nodes] (run! cluster/close! (reverse nodes)))

(defmacro with-cluster
  "Runs the body with a caller and so many members, m0, m1, ..., on a network."
  [[network caller n & {:as options}] & body]
  `(let [~network (stand-in/network)
         members# (mapv #(member! ~network (str "m" %)) (range ~n))
         ~caller (caller! ~network ~@(mapcat identity options))]
     (try ~@body (finally (close-all! (conj members# ~caller))))))

(defn thrown [f]
  (try (f) :nothing-was-thrown (catch Throwable t t)))

(defn type-of [f]
  (let [t (thrown f)] (or (:type (ex-data t)) (class t) t)))

(defn full-name [network short]
  (some #(when (.startsWith ^String % (str short "-")) %) (keys @(:nodes network))))

(defn kill! [network short] (stand-in/kill! network (full-name network short)))

(defn started? [item] (some #(= [:start item] (take 2 %)) @work/trail))

(defn await! [pred]
  (is (gate/eventually 20000 pred)))

(defn running []
  (let [{:keys [start interrupted end]} (group-by first @work/trail)]
    (- (count start) (count interrupted) (count end))))

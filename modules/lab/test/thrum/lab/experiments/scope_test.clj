(ns thrum.lab.experiments.scope-test
  "The experiment as a whole, on real sockets, each contender once."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.scope.experiment :as scope]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.lab.servers :as servers]))

(defn- plan [] ((:plan scope/experiment) {} {}))

(defn- once
  [plan]
  (update plan
          :parts
          (partial mapv (fn [part] (update part :contenders (partial mapv #(assoc % :repeat 1)))))))

(defn- run [plan]
  (run/run! {:scope scope/experiment} [plan] (constantly nil)))

(defn- left
  "Returns how many calls each contender left running, by part and contender."
  [experiments]
  (into {} (for [part (mapcat :parts experiments), row (:contenders part)]
             [[(:part part) (:contender row)] (:left (first (:samples row)))])))

(deftest the-plan-is-of-some-seconds
  (is (< (experiment/estimate-ms (plan)) 15000)))

(deftest a-run-on-real-sockets
  (let [experiments (run (once (plan)))
        left (left experiments)]
    (is (= 0 (result/exit-code {:experiments experiments})))
    (doseq [{:keys [name verdict limit-line-ms median-ms]} (result/rows {:experiments experiments})]
      (is (= :done verdict) name)
      (is (<= limit-line-ms median-ms) (str name " cannot be faster than its limit line")))
    (is (pos? (left [:hangs :futures])) "nothing stops a future's thread")
    (doseq [part [:hangs :fails :deaf]
            contender [:executor :thrum-scope :thrum-all]]
      (is (= 0 (left [part contender])) (str part contender)))))

(defn- longer-deaf
  "Returns the plan of the deaf call alone, which lasts as long as the busiest machine takes to
  count, for those who do not wait for it."
  [plan]
  (let [not-waiting #(filterv (comp #{:futures :thrum-abandon} :contender) %)
        deaf (fn [call] (cond-> call (:deaf? call) (assoc :ms 60000)))]
    (update plan
            :parts
            #(for [part % :when (= :deaf (:part part))]
               (-> part
                   (update :contenders not-waiting)
                   (update :calls (partial mapv deaf)))))))

(deftest who-leaves-a-deaf-call-behind-says-so
  (is (= {[:deaf :futures] 1, [:deaf :thrum-abandon] 1}
         (left (run (longer-deaf (once (plan))))))))

(defn- sample-of [part contender url]
  ((:sample! scope/experiment) {:url url} part {:contender contender} (constantly nil)))

(deftest an-unexpected-answer-fails-the-contender
  (servers/with-server
    [url (file-server/start!)]
    (let [fails (first (filter #(= :fails (:part %)) (:parts (plan))))]
      (is (= "The answer should be :late, and was :failed"
             (:message (:error (sample-of (assoc fails :answer :late) :thrum-scope url)))))
      (is (= :failed
             (result/verdict {} [(sample-of (assoc fails :answer :values) :futures url)]))))))

(deftest a-download-that-fails-is-no-failure-as-planned
  (servers/with-server [url (servers/answering 500 {} 0)]
                       (let [fails (first (filter #(= :fails (:part %)) (:parts (plan))))]
                         (is (= "A download failed: HTTP status 500"
                                (:message (:error (sample-of fails :thrum-all url))))))))

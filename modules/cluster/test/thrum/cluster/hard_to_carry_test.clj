(ns thrum.cluster.hard-to-carry-test
  "Failures and results that are hard to carry: each call is answered all the same, inside of its
  deadline and of :wrap."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.cluster :as cluster]
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.impl.codec :as codec]
   [thrum.cluster.nodes :as nodes :refer [await! close-all! member! with-cluster]]
   [thrum.cluster.stand-in :as stand-in]
   [thrum.cluster.work :as work]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.util.concurrent ExecutionException TimeUnit)
   (thrum.cluster.impl.node Node)))

(set! *warn-on-reflection* true)

(use-fixtures :each (fn [f] (reset! work/trail []) (reset! work/hook (fn [_ _])) (f)))

(defn- in-flight [node]
  (apply + (map :in-flight (:members (cluster/status node)))))

(defn- failure
  "Returns what the call of the var throws."
  [node v item]
  (gate/in-time 20000 (fn [] (nodes/thrown #(cluster/pmapv node 1 v [item])))))

;; Failures

(deftest an-exception-whose-message-cannot-be-read-is-thrown-all-the-same
  (with-cluster [network c 1]
    (let [m (member! network "itself")]
      (try
        (doseq [node [c m]]
          (is (str/ends-with? (ex-message (failure node #'work/unreadable 1))
                              "The exception's message could not be read"))
          (is (= 0 (in-flight node))))
        (finally (cluster/close! m))))))

(defn- data-of
  "Returns what arrives of an exception with that ex-data: its message and ex-data."
  [node data]
  (reset! work/hook (fn [_ _] data))
  ((juxt ex-message ex-data) (failure node #'work/failing-with 1)))

(defn- type-that-cannot-be-printed []
  (proxy [Object] [] (toString [] (throw (IllegalStateException. "of the test")))))

(deftest what-cannot-be-carried-of-an-exception-s-data-is-text
  (with-cluster [network c 1]
    (let [[message {:keys [user endless nested deep object long] :as data}]
          (data-of c {:user 7
                      :endless (range)
                      :nested (repeat (repeat 1000 nil))
                      :deep (atom [[[[[[[1]]]]]]])
                      :object (type-that-cannot-be-printed)
                      :long (atom (apply str (repeat 100000 "x")))
                      (Object.) 1})]
      (is (= ["the message" 7] [message user]))
      (is (= "(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ...)" endless))
      (is (str/starts-with? nested "((nil nil"))
      (is (str/includes? deep "#"))
      (is (re-matches #"#<.*Object.*>" object))
      (is (<= (count long) 1010))
      (is (= [1] (vals (dissoc data :user :endless :nested :deep :object :long)))))))

(deftest metadata-that-cannot-be-carried-is-left-out-of-an-exception-s-data
  (with-cluster [network c 1]
    (doseq [[metadata arrives] [[{:request (Object.)} nil] [{:line 1} {:line 1}]]]
      (let [[message data] (data-of c (with-meta {:user 7} metadata))]
        (is (= ["the message" {:user 7} arrives] [message data (meta data)]))))))

(defrecord Parcel [id])

(deftest a-record-that-the-caller-has-not-loaded-hides-no-failure
  (with-cluster [network c 1]
    (with-redefs [codec/namespaces (constantly nil)]
      (doseq [[data arrives] [[{:a [(->Parcel 1)]} {:a [{:id 1}]}]
                              [{:a (with-meta (->Parcel 1) {:line 1})} {:a {:id 1}}]
                              [(->Parcel 1) {:id 1}]]]
        (is (= ["the message" arrives] (data-of c data)))))))

(deftest a-request-that-a-node-cannot-read-of-itself-fails
  (let [network (stand-in/network), ^Node m (member! network "m0")]
    (try
      (let [answer (caller/send! (.-caller m) (.-name m) (byte-array 0))]
        (is (thrown? ExecutionException (.get answer 20 TimeUnit/SECONDS))))
      (finally (close-all! [m])))))

;; Lazy results

(deftest a-lazy-result-is-realised-within-the-deadline-and-a-cancel
  (with-cluster [network c 1]
    (reset! work/hook (fn [_ _] (Thread/sleep 60000)))
    (is (= :late (gate/in-time 20000 (fn [] (t/with-timeout [100 :late]
                                              (cluster/pmapv c 1 #'work/lazy [1]))))))
    (await! #(some #{[:interrupted 1 "m0"]} @work/trail))
    (let [job (t/future (cluster/pmapv c 1 #'work/lazy [2]))]
      (await! #(nodes/started? 2))
      (is (t/cancel! job))
      (await! #(some #{[:interrupted 2 "m0"]} @work/trail)))))

(deftest a-lazy-result-is-realised-inside-of-wrap
  (with-cluster [network c 1]
    (reset! work/hook (fn [_ node] node))
    (is (= [["m0"]] (cluster/pmapv c 1 #'work/lazy [1])))))

(deftest a-lazy-result-that-throws-is-realised-once
  (with-cluster [network c 1]
    (reset! work/hook (fn [_ _] (throw (java.io.FileNotFoundException. "the file"))))
    (doseq [limit [1 {:limit 1, :batch 2}]]
      (reset! work/trail [])
      (let [t (nodes/thrown #(cluster/pmapv c limit #'work/lazy [1]))]
        (is (= [java.io.FileNotFoundException "the file"] ((juxt class ex-message) t)))
        (is (= [[:start 1 "m0"]] @work/trail))))))

(deftest an-error-in-a-lazy-result-comes-after-the-results-before-it
  (with-cluster [network c 1]
    (reset! work/hook (fn [item _] (assert (not= 2 item) "two") item))
    (let [results (cluster/pmap c {:limit 1, :batch 4} #'work/lazy (range 4))]
      (is (= [[0] [1]] (take 2 results)))
      (is (= [AssertionError "Assert failed: two\n(not= 2 item)"]
             ((juxt class ex-message) (nodes/thrown #(nth results 2))))))))

(deftest a-wrap-that-is-none-is-a-failure
  (doseq [wrap [(fn [thunk] (fn [] (thunk) nil))
                (constantly nil)
                (fn [thunk] (fn [] (thunk) (thunk)))]]
    (let [network (stand-in/network), c (nodes/caller! network)
          m (member! network "m0" :wrap wrap)]
      (try
        (is (= {:type :thrum/invalid, :option :wrap}
               (select-keys (ex-data (failure c #'work/times-ten 1)) [:type :option])))
        (finally (close-all! [m c]))))))

(ns thrum.cluster.hard-to-carry-test
  "Failures and results that are hard to carry: each call is answered all the same, inside of its
  deadline and of :wrap."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.cluster :as cluster]
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.nodes :as nodes :refer [close-all! member! with-cluster]]
   [thrum.cluster.stand-in :as stand-in]
   [thrum.cluster.work :as work]
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
    (let [[message {:keys [user endless deep object long] :as data}]
          (data-of c {:user 7
                      :endless (range)
                      :deep (atom [[[[[[[1]]]]]]])
                      :object (type-that-cannot-be-printed)
                      :long (atom (apply str (repeat 100000 "x")))
                      (Object.) 1})]
      (is (= ["the message" 7] [message user]))
      (is (= "(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ...)" endless))
      (is (str/includes? deep "#"))
      (is (re-matches #"#<.*Object.*>" object))
      (is (<= (count long) 1010))
      (is (= [1] (vals (dissoc data :user :endless :deep :object :long)))))))

(deftest metadata-that-cannot-be-carried-is-left-out-of-an-exception-s-data
  (with-cluster [network c 1]
    (doseq [[metadata arrives] [[{:request (Object.)} nil] [{:line 1} {:line 1}]]]
      (let [[message data] (data-of c (with-meta {:user 7} metadata))]
        (is (= ["the message" {:user 7} arrives] [message data (meta data)]))))))

(deftest a-request-that-a-node-cannot-read-of-itself-fails
  (let [network (stand-in/network), ^Node m (member! network "m0")]
    (try
      (let [answer (caller/send! (.-caller m) (.-name m) (byte-array 0))]
        (is (thrown? ExecutionException (.get answer 20 TimeUnit/SECONDS))))
      (finally (close-all! [m])))))

(ns thrum.lab.compare-test
  "Two results side by side."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.compare :as compare])
  (:import
   (clojure.lang ExceptionInfo)))

(def ^:private machine {:cpu "C", :cpus 2, :memory-gb 8.0, :os "Linux", :jdk {:version "25"}})

(defn- result
  [median bytes]
  {:machine machine
   :experiments [{:parts [{:part :downloads
                           :n 100
                           :bytes bytes
                           :contenders [{:contender :core-map
                                         :name "clojure.core/map"
                                         :median-ms median}]}]}]})

(deftest medians-stand-side-by-side
  (is (= (str "JDK 25\n"
              "  part       contender              A       B  B / A\n"
              "  downloads  clojure.core/map  100 ms  250 ms  2.50x")
         (compare/report (result 100.0 6) (result 250.0 6)))))

(deftest rows-under-other-conditions-are-not-compared
  (is (re-find #"not comparable: bytes differ" (compare/report (result 100.0 6) (result 250.0 7)))))

(defn- under-load
  [per-second connections]
  {:machine machine
   :experiments [{:parts [{:part :jdk-sleep
                           :connections connections
                           :contenders [{:contender :thrum
                                         :name "thrum.server"
                                         :median-per-second per-second
                                         :samples [{:generator :wrk}]}]}]}]})

(defn- own [function calls]
  (-> (assoc-in (result 100.0 6) [:experiments 0 :function] function)
      (assoc-in [:experiments 0 :parts 0 :contenders 0 :samples] [{:ok (dec calls), :failed 1}])
      (assoc-in [:experiments 0 :parts 0 :contenders 0 :own?] true)))

(deftest calls-of-another-function-or-of-fewer-inputs-are-not-compared
  (is (re-find #"1.00x" (compare/report (own 'my/f 3) (own 'my/f 3))))
  (is (re-find #"not comparable: function differ" (compare/report (own 'my/f 3) (own 'my/g 3))))
  (is (re-find #"not comparable: calls differ" (compare/report (own 'my/f 3) (own 'my/f 4)))))

(deftest requests-per-second-stand-side-by-side-too
  (is (re-find #"thrum.server  100/s  250/s  2.50x"
               (compare/report (under-load 100.0 120) (under-load 250.0 120))))
  (is (re-find #"not comparable: connections differ"
               (compare/report (under-load 100.0 120) (under-load 250.0 121))))
  (is (re-find #"not comparable: generator differ"
               (compare/report (under-load 100.0 120)
                               (assoc-in (under-load 250.0 120)
                                 [:experiments 0 :parts 0 :contenders 0 :samples 0 :generator]
                                 :built-in)))))

(deftest unlike-machines-are-refused
  (let [refusal (try
                  (compare/report (result 1.0 6) (assoc-in (result 1.0 6) [:machine :cpus] 12))
                  (catch ExceptionInfo e e))]
    (is (= "These results are of unlike machines: they differ in cpus." (ex-message refusal)))
    (is (= {:type :thrum/lab-usage, :differ [[:cpus]]} (ex-data refusal)))))

(deftest another-jdk-is-said
  (is (re-find #"JDK 25 against 21"
               (compare/report (result 1.0 6)
                               (assoc-in (result 1.0 6) [:machine :jdk :version] "21")))))

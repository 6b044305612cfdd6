(ns thrum.lab.experiments.spring-tomcat-test
  "What the experiment plans, and when it is skipped."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.spring-tomcat.experiment :as spring-tomcat]
   [thrum.lab.plan :as plan]))

(def ^:private facts {:cpus 2, :ab? true, :spring-boot {:folder "thrum", :compiler? true}})

(defn- planned [facts & argv]
  (plan/plan (cli/parse (cons "--all" argv)) facts [spring-tomcat/experiment]))

(defn- part [plan name]
  (first (filter #(= name (:part %)) (mapcat :parts (:experiments plan)))))

(defn- limit-lines [part]
  (into {} (map (juxt :contender :limit-line-ms)) (:contenders part)))

(deftest the-quick-form-is-planned-to-end-in-about-a-minute
  (is (< 30000 (experiment/estimate-ms (first (:experiments (planned facts)))) 65000)))

(deftest the-tour-has-warm-bursts-alone-three-where-one-takes-a-second
  (let [plan (plan/plan (cli/parse []) facts [spring-tomcat/experiment])]
    (is (= [[:spring-100 [:platform-20-warm :platform-200-warm :virtual-warm]]]
           (map (juxt :part (comp #(mapv :contender %) :contenders))
                (:parts (first (:experiments plan))))))
    (is (= [1 3 3] (map :repeat (:contenders (part plan :spring-100)))))))

(deftest a-pool-needs-rounds-and-virtual-threads-one
  (is (= {:platform-20-cold 5000.0
          :platform-200-cold 1000.0
          :virtual-cold 1000.0
          :property-cold 1000.0
          :platform-20-warm 5000.0
          :platform-200-warm 1000.0
          :virtual-warm 1000.0
          :property-warm 1000.0}
         (limit-lines (part (planned facts) :spring-100))))
  (is (= {:platform-20-warm 6000.0, :virtual-warm 2000.0}
         (limit-lines (part (planned facts) :spring-ab)))
      "ab sends one alone")
  (is (= [[10 100.0] [20 100.0] [50 300.0] [100 500.0] [200 1000.0] [400 2000.0]]
         (:limit-points (first (:contenders (part (planned facts) :spring-curve)))))))

(deftest the-full-form-has-the-original-scale
  (is (nil? (part (planned facts) :spring-1000)))
  (is (= [:spring-1000]
         (map :part (mapcat :parts (:experiments (planned facts "--only" "spring-1000")))))
      "or by name")
  (let [plan (planned facts "--full")]
    (is (= {:platform-200-cold 5000.0
            :virtual-cold 1000.0
            :property-cold 1000.0
            :platform-200-warm 5000.0
            :virtual-warm 1000.0
            :property-warm 1000.0}
           (limit-lines (part plan :spring-1000))))
    (is (= #{3}
           (set (map :repeat
                     (mapcat :contenders
                       (map #(part plan %) [:spring-100 :spring-ab :spring-1000]))))))
    (is (= #{3} (set (map :repeat (:contenders (part plan :spring-curve))))))
    (is (not-any? :scaled (mapcat :parts (:experiments plan))))))

(defn- skipped [facts]
  (map :skipped (mapcat :parts (:experiments (planned facts)))))

(deftest what-cannot-run-is-skipped-with-the-reason
  (is (= ["the application is examples/spring-boot of a checkout of Thrum, and this is none"]
         (skipped (assoc facts :spring-boot {:compiler? true}))))
  (is
    (=
      [(str "this Java is a runtime without a compiler for examples/spring-boot: "
         "name a JDK in CLJW_JAVA_HOME")]
      (skipped (assoc facts :spring-boot {:folder "x", :compiler? false}))))
  (is (= [nil "ab is not on PATH; it comes with the Apache HTTP server's utilities" nil]
         (skipped (assoc facts :ab? false)))))

(deftest a-download-is-not-counted-and-said
  (is (string? (:not-counted (first (:experiments (planned facts))))))
  (is (nil? (:not-counted (first (:experiments (planned
                                                 (update facts :spring-boot dissoc :folder))))))))

(ns thrum.lab.experiment.spring-tomcat-test
  "What the experiment plans, and when it is skipped."
  (:require
   [clojure.edn :as edn]
   [clojure.test :refer [deftest is]]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.spring-tomcat :as spring-tomcat]
   [thrum.lab.plan :as plan]))

(def ^:private facts {:cpus 2, :ab? true, :spring-boot {:folder "examples/spring-boot", :jar "app.jar", :maven? true}})

(defn- planned [facts & argv]
  (plan/plan (cli/parse (cons "--all" argv)) facts [(spring-tomcat/experiment)]))

(defn- part [plan name]
  (first (filter #(= name (:part %)) (mapcat :parts (:experiments plan)))))

(defn- limit-lines [part]
  (into {} (map (juxt :contender :limit-line-ms)) (:contenders part)))

(deftest the-quick-form-is-planned-to-end-within-a-minute
  (let [plan (planned facts)]
    (is (< 30000 (experiment/estimate-ms (first (:experiments plan))) 60000))
    (is (= plan (edn/read-string (pr-str plan))))))

(deftest the-tour-has-one-warm-burst-of-each-and-no-cold-start
  (let [plan (plan/plan (cli/parse []) facts [(spring-tomcat/experiment)])]
    (is (= [[:spring-100 [:platform-20-warm :platform-200-warm :virtual-warm]]]
           (map (juxt :part (comp #(mapv :contender %) :contenders)) (:parts (first (:experiments plan))))))
    (is (= #{1} (set (map :repeat (:contenders (part plan :spring-100))))))))

(deftest a-pool-needs-rounds-and-virtual-threads-one
  (is (= {:platform-20-cold 5000.0, :platform-200-cold 1000.0, :virtual-cold 1000.0, :property-cold 1000.0
          :platform-20-warm 5000.0, :platform-200-warm 1000.0, :virtual-warm 1000.0, :property-warm 1000.0}
         (limit-lines (part (planned facts) :spring-100))))
  (is (= {:platform-20-warm 6000.0, :virtual-warm 2000.0} (limit-lines (part (planned facts) :spring-ab))) "ab sends one alone")
  (is (= [[10 100.0] [20 100.0] [50 300.0] [100 500.0] [200 1000.0] [400 2000.0]]
         (:limit-points (first (:contenders (part (planned facts) :spring-curve)))))))

(deftest the-full-form-has-the-original-scale
  (is (nil? (part (planned facts) :spring-1000)))
  (is (= [:spring-1000] (map :part (mapcat :parts (:experiments (planned facts "--only" "spring-1000"))))) "or by name")
  (let [plan (planned facts "--full")]
    (is (= {:platform-200-cold 5000.0, :virtual-cold 1000.0, :property-cold 1000.0
            :platform-200-warm 5000.0, :virtual-warm 1000.0, :property-warm 1000.0}
           (limit-lines (part plan :spring-1000))))
    (is (= #{5} (set (map :repeat (mapcat :contenders (map #(part plan %) [:spring-100 :spring-ab :spring-1000]))))))
    (is (= 1000 (:sleep-ms (part plan :spring-curve))))
    (is (not-any? :scaled (mapcat :parts (:experiments plan))))))

(defn- skipped [facts]
  (map :skipped (mapcat :parts (:experiments (planned facts)))))

(deftest what-cannot-run-is-skipped-with-the-reason
  (is (= ["the application is examples/spring-boot of a checkout of Thrum, and this is none"] (skipped (assoc facts :spring-boot {:maven? true}))))
  (is (= ["there is no mvn on PATH to build examples/spring-boot with: install Maven"]
         (skipped (assoc facts :spring-boot {:folder "x", :maven? false}))))
  (is (= [nil nil nil] (skipped (assoc-in facts [:spring-boot :maven?] false))) "a built one needs no Maven")
  (is (= [nil "ab is not on PATH; it comes with the Apache HTTP server's utilities" nil] (skipped (assoc facts :ab? false)))))

(deftest a-build-is-not-counted-and-said
  (is (nil? (:not-counted (first (:experiments (planned facts))))))
  (is (string? (:not-counted (first (:experiments (planned (update facts :spring-boot dissoc :jar))))))))

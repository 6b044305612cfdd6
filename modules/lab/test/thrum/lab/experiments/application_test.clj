(ns thrum.lab.experiments.application-test
  "The application of the checkout: compiled and started without Maven, and of the release that its
  pom.xml names."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.experiments.spring-tomcat.application :as application]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(def ^:private facts (application/facts))

(deftest this-checkout-has-the-application
  (is (some? (:folder facts)))
  (is (.isFile (io/file ^String (:folder facts) "examples" "spring-boot" "pom.xml"))))

(deftest the-lab-and-maven-have-the-same-spring-boot
  (let [[_ version] (re-find #"(?s)<parent>.*?<version>(.*?)</version>"
                             (slurp (io/file (:folder facts) "examples" "spring-boot" "pom.xml")))
        deps (get-in (edn/read-string (slurp (io/file (:folder facts) "deps.edn")))
                     [:aliases :spring-boot :replace-deps])]
    (is (= #{version}
           (into #{}
                 (keep (fn [[lib coordinate]]
                         (when (= "org.springframework.boot" (namespace lib))
                           (:mvn/version coordinate))))
                 deps)))))

(deftest ^{:time-limit-ms 420000} it-is-compiled-and-started-without-maven
  (when-not (:compiler? facts) (runner/skip! "this Java has no compiler"))
  (let [{:keys [problem] :as built} (application/build! (:folder facts))]
    (is (nil? problem))
    (let [app (application/start! built {:threads 3, :profile "virtual-threads"})]
      (try
        (is (= "Hello from a virtual thread\n" (slurp (application/hello app 1))))
        (finally (child/stop! app))))))

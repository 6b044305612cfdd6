(ns thrum.repo.core-async-doc-test
  "The table of doc/guides/channels.md, which release of core.async runs what on which threads, has
  all rows. What a row says is held by the tests of async, in a JVM that has the release anyway, or
  here by one that is started for it."
  (:require
   [clojure.set :as set]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.async.guide :as guide]
   [thrum.async.probe :as probe]
   [thrum.async.release :as of-core-async]
   [thrum.core :as t]
   [thrum.test-kit.main :as main]
   [thrum.test-kit.release :as release]))

(set! *warn-on-reflection* true)

(def ^:private alpha "1.9.829-alpha2")

(def ^:private of-async
  "The rows that thrum.async.guide-test and thrum.async.executor-test hold."
  #{["1.6.681"] ["1.8.741"] [alpha] ["1.9.865"] ["1.9.865" (guide/factory "everything")]
    ["1.9.865" (guide/factory "all-but-dispatch")]})

(def ^:private of-other-jvms
  #{["1.10.864-alpha1"] [alpha "-Dclojure.core.async.vthreads=target"]
    [alpha "-Dclojure.core.async.vthreads=avoid"] [alpha (guide/factory "all-but-dispatch")]})

(deftest the-table-has-all-rows
  (is (= (set/union of-async of-other-jvms) (set (keys @guide/told)))))

(deftest the-tests-of-async-run-with-each-release-that-they-hold
  (doseq [[version] of-async]
    (is (or (= of-core-async/version version)
            (some #{(str "async, with core.async " version)} (main/titles)))
        version)))

(defn- in-a-jvm
  "Returns {row {use place}} as a JVM with that release and those options finds."
  [[version & jvm-opts :as row]]
  (let [path (release/class-path 'org.clojure/core.async
                                 version
                                 '[org.clojure/clojure org.clojure/tools.analyzer.jvm])]
    {row (probe/of jvm-opts path)}))

(deftest the-table-tells-what-is-so
  (doseq [[row {:keys [places]}] (into {} (t/pmapv 2 in-a-jvm of-other-jvms))]
    (testing (str/join " " row)
      (is (= (get @guide/told row) (select-keys places guide/uses)))
      (is (= (places "go") (places "go, woken")) "a go block that was woken runs where it began"))))

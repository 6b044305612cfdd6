(ns thrum.server.engine.tomcat-tck-test
  "Tomcat against the contract, each case an assertion of its own."
  (:require
   [clojure.test :refer [deftest use-fixtures]]
   [thrum.server :as server]
   [thrum.server.tck :as tck]
   [thrum.server.tck.assertions :refer [check]]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private quiet
  "Failures are what the suite asks for: their stack traces are not read."
  (java.util.logging.Logger/getLogger "thrum.server"))

(.setLevel ^java.util.logging.Logger quiet java.util.logging.Level/OFF)

(def ^:private noticing
  "The cases that need a disconnect to be noticed, which nothing here does."
  (into #{} (comp (filter #(contains? (:needs %) :disconnect)) (map :id)) (tck/cases)))

(defn- check-outcome [{:keys [id], :as outcome}]
  (check (if (noticing id) #{:refused} #{:passed :skipped}) outcome))

(deftest ^{:time-limit-ms 600000} tomcat-keeps-the-contract
  (run! check-outcome
        (tck/run server/run-server {:options {:engine :tomcat}, :limit-ms 60000})))

(def ^:private mostly-fresh
  "The cases that pass where Tomcat finds the next request with its poller: on another thread."
  #{:every-request-has-a-thread-of-its-own :nothing-is-inherited-on-a-kept-connection
    :nothing-is-inherited-with-a-deadline})

(deftest ^{:time-limit-ms 600000} on-reused-threads-nothing-but-thread-locals-stays
  (run! (partial check #{:passed :refused :skipped :gap})
        (tck/run server/run-server
          {:options {:engine :tomcat, :engine-options {:reuse-threads? true}}
           :limit-ms 60000
           :only (remove mostly-fresh (map :id (tck/cases)))
           :gaps {:nothing-is-inherited-in-a-pipeline "its requests have one thread"}})))

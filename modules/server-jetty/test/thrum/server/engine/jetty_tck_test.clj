(ns thrum.server.engine.jetty-tck-test
  "Jetty against the contract, each case an assertion of its own."
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

;; Nothing is absent here, so nothing is refused.
(deftest ^{:time-limit-ms 600000} jetty-keeps-the-contract
  (run! (partial check #{:passed :skipped})
        (tck/run server/run-server {:options {:engine :jetty}, :limit-ms 60000})))

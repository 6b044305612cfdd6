(ns thrum.server.engine.http-kit-tck-test
  "http-kit against the contract, each case an assertion of its own."
  (:require
   [clojure.test :refer [deftest use-fixtures]]
   [thrum.server :as server]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.tck :as tck]
   [thrum.server.tck.assertions :refer [check]]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private quiet
  "Failures are what the suite asks for: their stack traces are not read."
  (java.util.logging.Logger/getLogger "thrum.server"))

(.setLevel ^java.util.logging.Logger quiet java.util.logging.Level/OFF)

(deftest ^{:time-limit-ms 600000} http-kit-keeps-the-contract
  (when-not (library/on-classpath?) (runner/skip! "http-kit is not on the classpath"))
  (run! (partial check #{:passed :refused :skipped})
        (tck/run server/run-server {:options {:engine :http-kit}})))

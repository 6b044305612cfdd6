(ns thrum.server.engine.helidon-tck-test
  "Helidon against the contract, each case an assertion of its own."
  (:require
   [clojure.test :refer [deftest use-fixtures]]
   [thrum.server :as server]
   [thrum.server.tck :as tck]
   [thrum.server.tck.assertions :refer [check]]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private quiet
  "Failures are what the suite asks for: their stack traces are not read. Helidon's
  logger has a line for each start and stop."
  (mapv #(java.util.logging.Logger/getLogger %) ["thrum.server" "io.helidon"]))

(run! #(java.util.logging.Logger/.setLevel % java.util.logging.Level/OFF) quiet)

(deftest ^{:time-limit-ms 600000} helidon-keeps-the-contract
  ;; The first start loads Helidon: on a busy machine that takes longer than a case may.
  (server/stop! (server/run-server identity {:engine :helidon, :port 0, :stop-on-shutdown? false}))
  (run! (partial check #{:passed :refused :skipped})
        (tck/run server/run-server {:options {:engine :helidon}, :limit-ms 60000})))

(def ^:private thread-locals-stay
  "The cases that ask for a thread without a ThreadLocal of the request before."
  (zipmap [:every-request-has-a-thread-of-its-own :nothing-is-inherited-on-a-kept-connection
           :nothing-is-inherited-in-a-pipeline :nothing-is-inherited-with-a-deadline]
          (repeat "a connection has one thread")))

(deftest on-one-thread-for-a-connection-nothing-but-thread-locals-stays
  (run! (partial check #{:passed :refused :skipped :gap})
        (tck/run server/run-server
          {:options {:engine :helidon, :engine-options {:reuse-threads? true}}
           :only (for [{:keys [id section]} (tck/cases) :when (= "4.1" section)] id)
           :gaps thread-locals-stay})))

(ns thrum.server.lifecycle-test
  "What the soak has found once, told without chance."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server.exchange :as exchange]
   [thrum.server.lifecycle :as lifecycle]
   [thrum.server.traffic :as traffic]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (thrum.server.engine Running)
   (thrum.server.lifecycle Life)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- engine-that
  "Returns an engine that does nothing but to call close-listeners."
  [close-listeners]
  {:name :test
   :start (fn [_ _]
            (reify Running
              (port [_] 1)
              (sslPort [_] -1)
              (closeListeners [_] (close-listeners))
              (close [_] nil)
              (native [_] nil)))})

(deftest no-handler-is-given-a-request-once-the-listener-closes
  (let [life (promise), state (promise)
        engine (engine-that #(deliver state (traffic/state (.-traffic ^Life @life))))]
    (deliver life (lifecycle/start engine {:drain-delay-ms 0, :shutdown-timeout-ms 0} identity))
    (gate/in-time 5000 #(lifecycle/stop! @life))
    (is (= :closing (deref state 0 nil)))))

(deftest an-alarm-that-comes-late-finds-nothing-to-end
  (let [traffic (traffic/traffic {})
        x (#'exchange/exchange traffic nil)]
    (#'exchange/leave! x)
    (exchange/end! x :thrum/timeout)
    (is (= {:overdue 0, :timed-out 0} (select-keys (traffic/status traffic) [:overdue :timed-out])))))

(ns thrum.server.impl.exchange-test
  "Whose matter the answer is when two threads are about to end an exchange."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.respond :as respond]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine])
  (:import
   (java.io IOException)
   (java.util.concurrent CancellationException)))

(set! *warn-on-reflection* true)

(defn- exchange
  "Returns an exchange of a server; its wire notes the calls in trail, and calls (watched) while it
  begins to watch."
  [trail watched]
  (exchange/exchange (traffic/traffic {:interrupt-on-disconnect? true})
                     (reify engine/Wire
                       (watch! [_ _] (swap! trail conj :watch) (watched) true)
                       (unwatch! [_] (swap! trail conj :unwatch))
                       (abort! [_] (swap! trail conj :abort)))))

(deftest an-exchange-that-another-thread-ends-is-settled-there
  (let [x (exchange (atom []) identity)]
    (exchange/step! x :commit)
    (exchange/step! x :shutdown)
    (exchange/finish! x 200 0)
    (is (not (exchange/settled? x)))
    (ending/settled-elsewhere! x)
    (is (exchange/settled? x))))

(deftest an-exchange-that-has-finished-is-settled
  (doseq [events [[:commit] [:commit :upgrade]]]
    (let [x (exchange (atom []) identity)]
      (run! #(exchange/step! x %) events)
      (exchange/finish! x 200 0)
      (is (exchange/settled? x)))))

(deftest an-exchange-that-ends-as-it-is-watched-starts-no-handler
  (let [trail (atom []), x (promise)]
    (deliver x (exchange trail #(exchange/step! @x :shutdown)))
    (is (thrown? CancellationException (#'serve/watch-client! @x)))
    (is (= [:watch :unwatch] @trail))))

(deftest no-answer-is-sent-while-an-engine-begins-to-watch
  (let [trail (atom []), x (promise), sent (promise)
        wire (reify engine/Wire
               (watch! [_ _]
                 (ending/end! @x :thrum/timeout)
                 (swap! trail conj (deref sent 100 :watched)))
               (unwatch! [_] (swap! trail conj :unwatched))
               (send! [_ status _ _] (swap! trail conj status) (deliver sent :sent)))]
    (deliver x (doto (exchange/exchange (traffic/traffic {:interrupt-on-disconnect? true}) wire)
                 (exchange/received! {:request-method :get})))
    (is (thrown? CancellationException (#'serve/watch-client! @x)))
    (is (= :sent (deref sent 5000 :silent)))
    (is (= [:watched :unwatched] (take 2 @trail)))))

(deftest an-engine-does-not-begin-to-watch-behind-the-end
  (let [trail (atom []), x (exchange trail identity)]
    (exchange/step! x :shutdown)
    (is (thrown? CancellationException (#'serve/watch-client! x)))
    (is (= [] @trail))))

(deftest an-answer-that-comes-too-late-cuts-nothing
  (let [trail (atom []), x (exchange trail identity)]
    (with-redefs [respond/respond-with! (fn [_ _]
                                          (exchange/step! x :shutdown)
                                          (throw (exchange/over)))]
      (#'serve/answer-here! x {:status 413}))
    (is (= [] @trail))))

(deftest an-answer-that-fails-is-cut
  (let [trail (atom []), x (exchange trail identity)]
    (with-redefs [respond/respond-with! (fn [_ _] (throw (IOException. "Broken pipe")))]
      (#'serve/answer-here! x {:status 413}))
    (is (= [:unwatch :abort] @trail))))

;; Before JDK 24 a thread that waits for a lock of the engine's inside a monitor keeps its carrier.
(deftest no-monitor-is-held-while-an-engine-begins-or-ends-to-watch
  (let [held (atom []), x (promise)
        note! #(do (swap! held conj (Thread/holdsLock @x)) true)
        wire (reify engine/Wire
               (watch! [_ _] (note!))
               (unwatch! [_] (note!)))]
    (deliver x (exchange/exchange (traffic/traffic {:interrupt-on-disconnect? true}) wire))
    (exchange/watch! @x (fn []))
    (exchange/unwatch! @x)
    (is (= [false false] @held))))

(deftest the-end-by-any-other-thread-is-observed-before-that-thread-goes-on
  (let [trail (atom []), x (exchange trail identity)]
    (with-redefs [exchange/observe! (fn [_ event] (swap! trail conj event))
                  exchange/start-thread! (fn [_ name _] (swap! trail conj name))]
      (ending/end! x :disconnected))
    (is (= [:unwatch :abort :disconnect] @trail))))

(deftest a-deadline-cancels-the-handler-where-no-virtual-thread-runs
  (doseq [[reads? expected] [[false ["http-answer" "http-observer"]]
                             [true [:unwatch :abort "http-observer"]]]
          :let [trail (atom []), x (exchange trail identity)]]
    (t/with-scope [handling]
      (ending/begin! x handling)
      (when reads? (exchange/step! x :read))
      (with-redefs [exchange/start-thread! (fn [_ name _] (swap! trail conj name))]
        (ending/time-out! x))
      (is (t/cancelled? handling)))
    (is (= expected @trail))))

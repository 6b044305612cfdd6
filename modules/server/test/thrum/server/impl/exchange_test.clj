(ns thrum.server.impl.exchange-test
  "Whose matter the answer is when two threads are about to end an exchange."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.input :as input]
   [thrum.server.impl.respond :as respond]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.stream :as stream]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang DynamicClassLoader)
   (java.io IOException)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.locks ReentrantLock)
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.websocket WebSocket)))

(set! *warn-on-reflection* true)

(defn- exchange
  "Returns an exchange of a server; its wire notes the calls in trail, and calls (watched) while it
  begins to watch."
  [trail watched]
  (exchange/exchange (traffic/traffic {:interrupt-on-disconnect? true})
                     (reify engine/Wire
                       (watch! [_ _] (swap! trail conj :watch) (watched))
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
    (is (thrown? CancellationException
                 (#'serve/handle @x (fn [_] (swap! trail conj :handled)))))
    (is (= [:watch] @trail))))

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
    (is (thrown? CancellationException (#'serve/handle @x (fn [_] (swap! trail conj :handled)))))
    (is (= :sent (deref sent 5000 :silent)))
    (is (= [:watched :unwatched] (take 2 @trail)))))

(deftest an-engine-does-not-begin-to-watch-behind-the-end
  (let [trail (atom []), x (exchange trail identity)]
    (exchange/step! x :shutdown)
    (is (thrown? CancellationException (#'serve/handle x (fn [_] (swap! trail conj :handled)))))
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

(deftest a-handler-that-begins-behind-the-end-is-cancelled
  (let [x (exchange (atom []) identity)]
    (exchange/step! x :shutdown)
    (t/with-scope [handling]
      (ending/begin! x handling)
      (is (t/cancelled? handling)))))

(defn- answered-at-the-deadline
  "Returns what the wire of a request of this method was given when its deadline has come: the
  answer, behind which it calls (sent), and :abort; and the status that the exchange has then."
  [method sent]
  (let [trail (atom [])
        wire (reify engine/Wire
               (unwatch! [_])
               (send! [_ status headers body]
                 (swap! trail conj [status (into {} (map vec) (partition 2 headers)) (some? body)])
                 (sent))
               (abort! [_] (swap! trail conj :abort)))
        x (doto (exchange/exchange (traffic/traffic {}) wire)
            (exchange/received! {:request-method method}))]
    (ending/end! x :thrum/timeout)
    (is (gate/eventually 5000 #(exchange/settled? x)))
    [@trail (exchanges/sent-status x)]))

(deftest the-answer-at-the-deadline-is-whole-and-known
  (let [[[[status headers body?]] known] (answered-at-the-deadline :get (constantly nil))]
    (is (= [503 nil true 503] [status (headers "Content-Length") body? known])))
  (let [[[[status headers body?]] known] (answered-at-the-deadline :head (constantly nil))]
    (is (= [503 "19" false 503] [status (headers "Content-Length") body? known]))))

(deftest an-answer-at-the-deadline-that-cannot-be-sent-is-cut
  (let [[[_ & more] known] (answered-at-the-deadline :get #(throw (IOException. "Broken pipe")))]
    (is (= [[:abort] nil] [more known])))
  (with-redefs [exchange/start-thread! (fn [_ _ _] (throw (OutOfMemoryError. "no thread")))]
    (is (= [[:abort] nil] (answered-at-the-deadline :get identity)))))

(deftest no-interrupt-outlives-the-wait-for-another-threads-answer
  (let [begun (promise)
        wait! #(let [x (exchange (atom []) identity)]
                 (.interrupt (Thread/currentThread))
                 (deliver begun x)
                 (exchange/await-settled! x)
                 (Thread/interrupted))
        [_ waited] (gate/start "handler" wait!)]
    (is (= :waits (deref waited 50 :waits)))
    (exchange/settle! (deref begun 5000 nil))
    (is (= {:value false} (deref waited 5000 nil)))))

(deftest a-websocket-has-its-status-while-it-is-open
  (let [x (exchange (atom []) identity)]
    (exchange/step! x :commit)
    (exchange/upgraded! x)
    (is (= 101 (exchanges/sent-status x)))))

(deftest what-runs-elsewhere-has-the-class-loader-of-the-exchanges-thread
  (let [loader (DynamicClassLoader.), seen (promise)
        begin #(do (.setContextClassLoader (Thread/currentThread) loader)
                   (exchange (atom []) identity))
        [_ begun] (gate/start "handler" begin)]
    (exchange/start-thread! (:value (deref begun 5000 nil))
                            "test"
                            #(deliver seen (.getContextClassLoader (Thread/currentThread))))
    (is (identical? loader (deref seen 5000 nil)))))

(deftest a-farewell-that-a-client-does-not-take-is-no-failure
  (let [socket (reify engine/Socket
                 (open? [_] true)
                 (close! [_ _ _] (throw (IOException. "Broken pipe"))))
        ^Exchange x (exchange (atom []) identity)]
    (.setStream x (WebSocket. socket (ReentrantLock.)))
    (with-redefs [exchange/start-thread! (fn [_ _ f] (f))]
      (is (nil? (stream/end! x))))))

(deftest a-websocket-that-is-cut-is-cancelled-and-settled
  (let [^Exchange x (exchange (atom []) identity)]
    (.setStream x (WebSocket. (reify engine/Socket (disconnect! [_])) (ReentrantLock.)))
    (t/with-scope [calling]
      (.setScope x calling)
      (stream/cut! x)
      (is (= [true true] [(t/cancelled? calling) (exchange/settled? x)])))))

(deftest an-exchange-that-has-ended-is-not-shed-too
  (let [^Exchange x (exchange (atom []) identity)]
    (exchange/step! x :shutdown)
    (is (thrown? CancellationException (#'serve/overload x)))
    (is (= 0 (:shed (traffic/status (.-traffic x)))))))

(deftest a-stream-that-opens-as-the-others-end-ends-too
  (let [closed (promise)
        socket (reify engine/Socket
                 (open? [_] true)
                 (close! [_ code _] (deliver closed code)))
        ^Exchange x (exchange (atom []) identity)]
    (traffic/move! (.-traffic x) :running :ending)
    (with-redefs [exchange/start-thread! (fn [_ _ f] (f))]
      (#'stream/opened! x (WebSocket. socket (ReentrantLock.))))
    (is (= 1001 (deref closed 0 nil)))))

(deftest a-body-is-not-read-on-behind-the-end
  (let [x (exchange (atom []) identity), reader (#'serve/reader x)]
    (input/read-begins reader)
    (exchange/step! x :shutdown)
    (is (thrown? IOException (input/read-begins reader)))))

(deftest a-response-behind-a-broken-body-is-the-last-of-its-connection
  (let [closes? (fn [flaw]
                  (let [sent (promise)
                        wire (reify engine/Wire
                               (unwatch! [_])
                               (send! [_ _ headers _] (deliver sent (apply hash-map headers))))
                        ^Exchange x (exchange/exchange (traffic/traffic {}) wire)]
                    (exchange/received! x {:request-method :post})
                    (.setFlaw x flaw)
                    (respond/respond! x {:status 200, :body "swallowed"})
                    (= "close" (get (deref sent 0 nil) "Connection"))))]
    (is (= [false true] (map closes? [nil :broken])))))

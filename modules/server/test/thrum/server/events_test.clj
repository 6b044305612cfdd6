(ns thrum.server.events-test
  "The format of server-sent events, and their heartbeat."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.impl.events :as events]
   [thrum.server.impl.sink :as sink]
   [thrum.server.tck.wire :as wire]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- target
  "Returns where a stream writes to out."
  [out]
  (reify sink/Target
    (begin! [_ _] out)
    (gone! [_])))

(defn- stream!
  "Has the stream of f write to out; lost: what is called when a heartbeat fails."
  [f options out lost]
  (events/stream! (:body (events/response options f))
                  (target out)
                  {:opened identity, :elsewhere #(Thread/startVirtualThread %), :lost lost}))

(defn- not-lost []
  (is false "No heartbeat has failed"))

(defn- sent
  "Returns what is written when f is called with events."
  [f & {:as options}]
  (let [out (ByteArrayOutputStream.)]
    (stream! f (merge {:heartbeat-ms nil} options) out not-lost)
    (str out)))

(deftest a-string-is-the-data
  (is (= "data: hello\n\n" (sent #(events/send! % "hello")))))

(deftest each-line-of-the-data-is-one-of-the-event
  (is (= "data: a\ndata: b\ndata: c\ndata: \n\n" (sent #(events/send! % "a\nb\r\nc\r")))))

(deftest a-map-has-the-fields
  (is (= "id: 7\nevent: tick\nretry: 500\ndata: x\n\n"
         (sent #(events/send! % {:id 7, :event "tick", :retry 500, :data "x"})))))

(deftest a-field-cannot-forge-another
  (doseq [text ["a\ndata: b" "a\rdata: b" "a\u0000b"], field [:id :event :retry]]
    (is (= :thrum/invalid (try (sent #(events/send! % {field text}))
                               (catch ExceptionInfo e (:type (ex-data e)))))
        (pr-str field text))))

(deftest nothing-is-sent-after-the-end
  (let [kept (atom nil)]
    (sent #(reset! kept %))
    (is (thrown? IOException (events/send! @kept "late")))))

(deftest a-stream-that-is-ended-sends-no-more-and-leaves-no-interrupt
  (is (= ""
         (sent (fn [events]
                 (events/end! events (fn []))
                 (is (thrown? IOException (events/send! events "late")))
                 (.interrupt (Thread/currentThread))))))
  (is (not (Thread/interrupted))))

(deftest an-interrupted-thread-sends-nothing
  (is (= "data: late\n\n"
         (sent (fn [events]
                 (.interrupt (Thread/currentThread))
                 (is (thrown? InterruptedException (events/send! events "early")))
                 (events/send! events "late"))))))

(deftest a-silent-stream-is-kept-alive
  (let [out (ByteArrayOutputStream.)
        beaten? #(< 1 (count (re-seq #": \n\n" (str out))))]
    (stream! (fn [_] (is (gate/eventually 5000 beaten?))) {:heartbeat-ms 1} out not-lost)))

(deftest no-heartbeat-outlives-its-stream
  (let [armed (atom #{}), arm! spi/arm!, disarm! spi/disarm!]
    (with-redefs [spi/arm! (fn [^long deadline f] (doto (arm! deadline f) (->> (swap! armed conj))))
                  spi/disarm! (fn [alarm] (swap! armed disj alarm) (disarm! alarm))]
      (let [kept (atom nil)]
        (sent (fn [events] (reset! kept events) (is (= 1 (count @armed)))) :heartbeat-ms 60000)
        (is (empty? @armed))
        ;; A heartbeat that was being sent arms the next one behind the end.
        (events/expect! @kept (spi/arm! (spi/deadline-in 60000) (fn [])))
        (is (empty? @armed))))))

(deftest a-heartbeat-behind-the-end-is-no-lost-client
  (let [beat (promise), trail (atom [])
        {:keys [body]} (events/response {:heartbeat-ms 1} (fn [_] (deref beat 5000 nil)))]
    (events/stream! body (target (ByteArrayOutputStream.))
                    {:opened identity
                     :elsewhere #(deliver beat %)
                     :lost #(swap! trail conj :lost)})
    ((deref beat 0 nil))
    (is (= [] @trail))))

(deftest headers-may-be-others-than-those-of-the-format
  (is (= "no-cache" (get-in (server/sse {:headers {"Cache-Control" "no-cache"}} identity)
                            [:headers "Cache-Control"]))))

(defn- gone
  "Returns a stream that takes no byte but those of the head."
  ^OutputStream []
  (proxy [OutputStream] []
    (write ([_] (throw (IOException. "Broken pipe"))) ([_ _ _]))
    (flush [])))

(deftest a-client-that-has-gone-is-an-exception-and-reported
  (doseq [[out called?] [[(gone) true]
                         [(proxy [OutputStream] [] (flush [] (throw (IOException. "Gone")))) false]]
          :let [trail (atom [])
                target (reify sink/Target
                         (begin! [_ _] out)
                         (gone! [_] (swap! trail conj :gone)))
                {:keys [body]} (events/response {:heartbeat-ms nil}
                                 (fn [events]
                                   (swap! trail conj :called)
                                   (events/send! events "x")))]]
    (is (thrown? IOException (events/stream! body target {:opened identity})))
    (is (= (if called? [:called :gone] [:gone]) @trail))))

(deftest a-client-that-has-gone-ends-a-silent-stream
  (let [lost (promise)]
    (stream! (fn [_] (is (= :lost (deref lost 5000 :never))))
             {:heartbeat-ms 1}
             (gone)
             #(deliver lost :lost))))

(defn- blocking
  "Returns a stream whose writes count entered down, and block until the gate opens."
  ^OutputStream [^CountDownLatch entered gate]
  (proxy [OutputStream] []
    (write [_]
      (.countDown entered)
      @gate)
    (flush [])))

(defn- send-one! [out]
  (stream! #(events/send! % "x") {:heartbeat-ms nil} out not-lost))

(deftest writes-that-block-keep-no-carrier
  (let [carriers (.availableProcessors (Runtime/getRuntime))
        entered (CountDownLatch. carriers), gate (promise), ran (promise), outcome (promise)
        start #(Thread/startVirtualThread (fn [] (send-one! (blocking entered gate))))
        streams (vec (repeatedly carriers start))]
    ;; Not a virtual thread, which could not run itself.
    (.start (Thread/ofPlatform)
            (fn []
              (.await entered)
              (Thread/startVirtualThread #(deliver ran true))
              (deliver outcome (deref ran 5000 :kept))
              (deliver gate true)))
    (is (true? @outcome))
    (run! #(Thread/.join %) streams)))

(deftest a-deadline-ends-a-sender-that-waits-for-another
  (let [entered (CountDownLatch. 1), gate (promise)]
    (stream! (fn [events]
               (let [first-sender (t/future (events/send! events "x"))]
                 (.await entered)
                 (is (= :late (deref (t/future (t/with-timeout [1 :late] (events/send! events "y")))
                                     10000
                                     :waits-on)))
                 (deliver gate true)
                 @first-sender))
             {:heartbeat-ms nil}
             (blocking entered gate)
             not-lost)))

(deftest the-function-of-a-stream-has-no-deadline
  (let [left (promise)
        handler (fn [_] (server/sse (fn [_] (deliver left (t/remaining-ms)))))]
    (with-open [^java.lang.AutoCloseable s
                (server/run-server handler {:port 0
                                            :stop-on-shutdown? false
                                            :request-timeout-ms 60000})]
      (wire/ask-once! (server/port s) (wire/get "/")))
    (is (nil? (deref left 5000 :never)))))

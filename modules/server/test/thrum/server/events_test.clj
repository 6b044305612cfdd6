(ns thrum.server.events-test
  "The format of server-sent events, and their heartbeat."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.deadline :as deadline]
   [thrum.server.events :as events]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io ByteArrayOutputStream IOException OutputStream)
   (thrum.server.sink Target)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- target
  "Returns where a stream writes to out."
  [out]
  (reify Target
    (begin [_ _] out)
    (gone [_])))

(defn- sent
  "Returns what is written when f is called with events."
  [f & {:as options}]
  (let [out (ByteArrayOutputStream.)]
    (events/stream! (:body (events/response (merge {:heartbeat-ms nil} options) f)) (target out) identity)
    (str out)))

(deftest a-string-is-the-data
  (is (= "data: hello\n\n" (sent #(events/send! % "hello")))))

(deftest each-line-of-the-data-is-one-of-the-event
  (is (= "data: a\ndata: b\ndata: c\ndata: \n\n" (sent #(events/send! % "a\nb\r\nc\r")))))

(deftest a-map-has-the-fields
  (is (= "id: 7\nevent: tick\nretry: 500\ndata: x\n\n" (sent #(events/send! % {:id 7, :event "tick", :retry 500, :data "x"})))))

(deftest a-field-cannot-forge-another
  (is (= :thrum/invalid (try (sent #(events/send! % {:event "a\ndata: b"}))
                             (catch ExceptionInfo e (:type (ex-data e)))))))

(deftest nothing-is-sent-after-the-end
  (let [kept (atom nil)]
    (sent #(reset! kept %))
    (is (thrown? IOException (events/send! @kept "late")))))

(deftest a-silent-stream-is-kept-alive
  (let [out (ByteArrayOutputStream.)
        beaten? #(< 1 (count (re-seq #": \n\n" (str out))))]
    (events/stream! (:body (events/response {:heartbeat-ms 1} (fn [_] (is (gate/eventually 5000 beaten?))))) (target out) identity)))

(deftest no-heartbeat-outlives-its-stream
  (let [before (deadline/armed)]
    (sent (fn [_]) :heartbeat-ms 60000)
    (is (= before (deadline/armed)))))

(deftest a-client-that-has-gone-is-an-exception
  (let [gone (proxy [OutputStream] []
               (write ([_] (throw (IOException. "Broken pipe"))) ([_ _ _]))
               (flush []))]
    (is (thrown? IOException (events/stream! (:body (events/response {:heartbeat-ms nil} #(events/send! % "x"))) (target gone) identity)))))

(ns thrum.server.impl.failure-test
  "What is thrown is answered, also where its line in the log fails."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.failure :as failure]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.locale :as locale])
  (:import
   (java.io IOException)
   (java.util.logging Handler Level LogRecord Logger)
   (thrum.server.impl.exchange Exchange)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- logging
  "Calls f while Thrum's failures go to (log record), and nowhere else. What :jdk warns of at its
  start does not."
  [log f]
  (let [logger (Logger/getLogger "thrum.server")
        level (.getLevel logger)
        handler (proxy [Handler] []
                  (publish [record] (log record))
                  (flush [])
                  (close []))]
    (try
      (doto logger (.setUseParentHandlers false) (.setLevel Level/SEVERE) (.addHandler handler))
      (f)
      (finally
        (doto logger (.removeHandler handler) (.setLevel level) (.setUseParentHandlers true))))))

(deftest an-answer-without-details-is-the-same-in-every-locale
  (is (= "internal server error" (:body (locale/in-turkish #(response/plain 500))))))

(defn- status-of
  "Returns the status that a client gets when the handler throws t."
  [t]
  (with-open [^java.lang.AutoCloseable s (server/run-server (fn [_] (throw t))
                                                            {:port 0, :stop-on-shutdown? false})]
    (:status (wire/ask-once! (server/port s) (wire/get "/")))))

(deftest what-cannot-be-printed-is-logged-by-its-class
  (let [logged (promise)
        t (proxy [RuntimeException] [] (getMessage [] (throw (Error. "No message"))))
        log (fn [^LogRecord record]
              (if-some [thrown (.getThrown record)]
                (.getMessage thrown)
                (deliver logged (.getMessage record))))]
    (is (= 500 (logging log #(status-of t))))
    (is (= (str "A request failed: get /: " (.getName (class t))) (deref logged 0 nil)))))

(deftest a-target-forges-nothing-in-the-log
  (let [logged (promise)
        x (doto (exchange/exchange (traffic/traffic {}) nil)
            (exchange/received! {:request-method :get, :uri "/a\u009bb\n"}))]
    (logging (fn [^LogRecord record] (deliver logged (.getMessage record)))
             #(failure/log! x (ex-info "boom" {})))
    (is (= "A request failed: get /a\\xC2\\x9Bb\\x0A" (deref logged 0 nil)))))

(deftest the-log-of-a-failure-has-the-requests-id
  (let [logged (promise), found (promise)
        options {:port 0, :request-id? true, :stop-on-shutdown? false}
        handler (fn [r] (deliver found (:thrum/request-id r)) (throw (ex-info "boom" {})))]
    (logging (fn [^LogRecord record] (deliver logged (.getMessage record)))
      #(with-open [^java.lang.AutoCloseable s (server/run-server handler options)]
         (wire/ask-once! (server/port s) (wire/get "/a"))))
    (is (string? (deref found 0 nil)))
    (is (= (str "A request failed: get /a " (deref found 0 nil)) (deref logged 0 nil)))))

(deftest a-log-that-fails-changes-no-answer
  (is (= 500 (logging (fn [_] (throw (Error. "No log"))) #(status-of (ex-info "boom" {}))))))

(deftest a-client-that-goes-before-the-answer-to-a-failure-is-not-logged
  (let [entered (promise), gone (promise), logged (atom [])
        handler (fn [_] (deliver entered true) (deref gone 5000 nil) (throw (ex-info "boom" {})))]
    (logging #(swap! logged conj (.getMessage ^LogRecord %))
             #(with-open [^java.lang.AutoCloseable s
                          (server/run-server handler
                                             {:port 0
                                              :stop-on-shutdown? false
                                              :error-handler (fn [_ _] {:status 500, :body "no"})})]
                (let [c (wire/send! (wire/connect (server/port s)) (wire/get "/"))]
                  (deref entered 5000 nil)
                  (wire/reset!! c)
                  (deliver gone true)
                  (is (scene/eventually 5000 (fn [] (= 1 (:disconnected (server/status s)))))))))
    (is (= [] @logged))))

(deftest a-client-that-breaks-its-body-off-behind-the-response-s-head-is-not-logged
  (let [logged (atom [])
        handler (fn [{:keys [body]}] {:status 200, :body (cons "begun" (lazy-seq [(slurp body)]))})]
    (logging #(swap! logged conj (.getMessage ^LogRecord %))
             #(with-open [^java.lang.AutoCloseable s
                          (server/run-server handler {:port 0, :stop-on-shutdown? false})]
                (let [c (wire/send! (wire/connect (server/port s))
                          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")]
                  (wire/read-bytes c 12)
                  (wire/close! c)
                  (is (scene/eventually 5000 (fn [] (= 1 (:served (server/status s))))))
                  (is (= 0 (:failed (server/status s)))))))
    (is (= [] @logged))))

(deftest what-the-application-throws-behind-a-read-that-it-gave-up-is-logged
  (let [logged (atom [])
        give-up #(t/with-timeout 100 (slurp %))
        handler (fn [{:keys [body]}]
                  {:status 200, :body (cons "begun" (lazy-seq [(give-up body)]))})]
    (logging #(swap! logged conj (.getMessage ^LogRecord %))
             #(with-open [^java.lang.AutoCloseable s
                          (server/run-server handler {:port 0, :stop-on-shutdown? false})]
                (let [c (wire/send! (wire/connect (server/port s))
                          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")]
                  (is (scene/eventually 5000 (fn [] (= 1 (:served (server/status s))))))
                  (wire/close! c))))
    (is (= ["A request failed: post /"] @logged))))

(deftest what-a-cancel-makes-of-a-request-that-was-answered-is-not-logged
  (let [logged (atom 0)
        fail! (fn [meanwhile!]
                (let [^Exchange x (exchange/exchange (traffic/traffic {}) nil)]
                  (run! #(exchange/step! x %) [:commit :finish])
                  (t/with-scope [handling]
                    (.setScope x handling)
                    (meanwhile! handling)
                    (failure/fail! x (ex-info "boom" {})))))]
    (logging (fn [_] (swap! logged inc)) #(do (fail! t/cancel!) (fail! identity)))
    (is (= 1 @logged))))

(deftest a-refusal-of-a-broken-body-that-cannot-be-sent-is-cut
  (let [cut (promise)
        wire (reify engine/Wire
               (unwatch! [_])
               (send! [_ _ _ _] (throw (IOException. "Broken pipe")))
               (abort! [_] (deliver cut true)))
        ^Exchange x (doto ^Exchange (exchange/exchange (traffic/traffic {}) wire)
                      (exchange/received! {:request-method :get})
                      (.setFlaw :broken))]
    (t/with-scope [handling]
      (.setScope x handling)
      (failure/fail! x (IOException. "The body was cut off")))
    (is (realized? cut))))

(deftest what-an-error-handler-throws-is-logged
  (let [logged (promise)
        options {:port 0
                 :stop-on-shutdown? false
                 :error-handler (fn [_ _] (throw (ex-info "worse" {})))}]
    (logging (fn [^LogRecord record] (deliver logged (ex-message (.getThrown record))))
             #(with-open [^java.lang.AutoCloseable s
                          (server/run-server (fn [_] (throw (ex-info "boom" {}))) options)]
                (is (= 500 (:status (wire/ask-once! (server/port s) (wire/get "/")))))))
    (is (= "worse" (deref logged 0 nil)))))

(ns thrum.server.spi.exchanges-test
  "What an observer of all exchanges sees, and who has a turn before one."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi :as spi]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.net InetAddress InetSocketAddress)
   (thrum.server.impl.exchange Exchange)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private here
  (InetSocketAddress. (InetAddress/getLoopbackAddress) 80))

(defn- wire
  "Returns the wire of a request with these headers."
  [& headers]
  (reify engine/Wire
    (method [_] "GET")
    (target [_] "/a?b")
    (protocol [_] "HTTP/1.1")
    (scheme [_] "http")
    (authority [_] nil)
    (headers [_] (object-array headers))
    (remote [_] "127.0.0.1")
    (local [_] here)
    (certificate [_] nil)
    (body [_] nil)
    (send! [_ _ _ _])
    (abort! [_])
    (unwatch! [_])))

(defn- serve! [options handler wire]
  (serve/serve! (traffic/traffic (merge {:engine :none, :max-header-bytes 1000} options))
                handler
                wire))

(defn- observer
  "Returns an observer that adds [:began or :ended, exchange, facts] to trail."
  [trail]
  (reify exchanges/Observer
    (began [_ x] (swap! trail conj [:began x (exchanges/facts x)]))
    (ended [_ x] (swap! trail conj [:ended x (exchanges/facts x)]))))

(defmacro ^:private trail-of
  "Returns what an observer sees while the body runs."
  [& body]
  `(let [trail# (atom [])
         stop!# (exchanges/observe! (observer trail#))]
     (try ~@body @trail# (finally (stop!#)))))

(defn- answer [_] {:status 201, :headers {}, :body "seven b"})

(deftest each-exchange-begins-and-ends-once
  (let [[[began x before] [ended y after] & more]
        (trail-of (serve! {:request-timeout-ms 60000} answer (wire "Host" "a")))]
    (is (= [:began :ended nil] [began ended more]))
    (is (identical? x y))
    (is (= [:none (Thread/currentThread) :open nil nil]
           (map before [:engine :thread :stage :request :status])))
    (is (< 59 (/ (- (:deadline before) (:began before)) 1e9) 61))
    (is (<= 0 (:nanos before) (:nanos after)))
    (is (= [:done "/a" :get 201 7 nil]
           [(:stage after) (:uri (:request after)) (:request-method (:request after))
            (:status after) (:bytes after) (:throwable after)]))
    (is (= 201 (exchanges/sent-status x)))))

(deftest a-request-that-is-refused-begins-and-ends-too
  (let [[_ [_ _ after]] (trail-of (serve! {} answer (wire "Host" "a" "Host" "b")))]
    (is (= [400 "/a"] [(:status after) (:uri (:request after))]))))

(deftest what-a-handler-throws-is-known-at-the-end
  (let [boom (ex-info "boom" {})
        [_ [_ _ after]] (trail-of (serve! {:error-handler (constantly {:status 500})}
                                          (fn [_] (throw boom))
                                          (wire "Host" "a")))]
    (is (= [500 true] [(:status after) (identical? boom (:throwable after))]))))

(deftest an-exchange-is-known-while-it-is-handled
  (let [seen (promise), x (promise)
        stop! (exchanges/observe! (reify exchanges/Observer
                                    (began [_ exchange] (deliver x exchange))
                                    (ended [_ _])))]
    (try
      (serve! {} (fn [r] (t/with-scope [_] (deliver seen (exchanges/facts @x))) (answer r))
              (wire "Host" "a"))
      (is (= [:open "/a"] ((juxt :stage (comp :uri :request)) (deref seen 10000 nil))))
      (finally (stop!)))))

(deftest a-stream-has-no-deadline
  (let [^Exchange x (exchange/exchange (traffic/traffic {:request-timeout-ms 60000}) (wire))
        deadline #(:deadline (exchanges/facts x))]
    (is (int? (deadline)))
    (.setStream x :events)
    (is (nil? (deadline)))))

(deftest what-is-under-way-is-known-until-it-has-ended
  (let [x (atom nil), running? #(boolean (some #{@x} (exchanges/under-way))), seen (atom nil)
        stop! (exchanges/observe! (reify exchanges/Observer
                                    (began [_ exchange] (reset! x exchange))
                                    (ended [_ _])))]
    (try
      (serve! {} (fn [r] (reset! seen (running?)) (answer r)) (wire "Host" "a"))
      (is (= [true false] [@seen (running?)]))
      (finally (stop!)))))

(deftest a-request-gives-way-once-before-its-handler-runs
  (let [trail (atom [])]
    (with-redefs [spi/give-way! #(swap! trail conj :gave-way)]
      (serve! {} (fn [r] (swap! trail conj :handled) (answer r)) (wire "Host" "a")))
    (is (= [:gave-way :handled] @trail))))

(deftest an-observer-that-throws-changes-nothing
  (let [thrown (atom 0)
        thread (Thread/currentThread)
        before (.getUncaughtExceptionHandler thread)
        boom (reify exchanges/Observer
               (began [_ _] (throw (Error. "began")))
               (ended [_ _] (throw (Error. "ended"))))
        stop! (exchanges/observe! boom)]
    (try
      (.setUncaughtExceptionHandler thread (reify Thread$UncaughtExceptionHandler
                                             (uncaughtException [_ _ _] (swap! thrown inc))))
      (is (= [:began :ended] (map first (trail-of (serve! {} answer (wire "Host" "a"))))))
      (is (= 2 @thrown))
      (finally
        (.setUncaughtExceptionHandler thread before)
        (stop!)))))

(deftest an-observer-taken-away-sees-the-end-of-what-it-has-seen-begin
  (let [trail (atom []), x (observer trail), stop! (exchanges/observe! x)]
    ;; One that is there already is called once all the same.
    (exchanges/observe! x)
    (serve! {} (fn [r] (stop!) (answer r)) (wire "Host" "a"))
    (serve! {} answer (wire "Host" "a"))
    (is (= [:began :ended] (map first @trail)))
    (is (nil? (exchanges/observers)))))

(deftest an-observer-that-comes-late-sees-no-end-without-a-begin
  (let [trail (atom []), stop! (promise)]
    (serve! {} (fn [r] (deliver stop! (exchanges/observe! (observer trail))) (answer r))
            (wire "Host" "a"))
    (@stop!)
    (is (= [] @trail))))

(ns thrum.server.lifecycle-test
  "What the soak has found once, made to happen each time."
  (:require
   [clojure.set :as set]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.lifecycle :as lifecycle]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.stream :as stream]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.server.tck.wire :as wire]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.io IOException)
   (java.net BindException InetSocketAddress UnknownHostException)
   (java.time Duration)
   (java.util.concurrent LinkedBlockingQueue TimeUnit)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.server.impl.lifecycle Life)
   (thrum.server.impl.traffic Traffic)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- engine-that
  "Returns an engine that gives what serves requests to take-serve, and calls close-listeners."
  [take-serve close-listeners]
  {:name :test
   :start (fn [_ serve]
            (take-serve serve)
            (reify engine/Running
              (port [_] 1)
              (ssl-port [_] -1)
              (close-listeners! [_] (close-listeners))
              (stop! [_] nil)
              (native [_] nil)))})

(def ^:private at-once
  {:drain-delay-ms 0, :drain-streams-ms 0, :shutdown-timeout-ms 0, :max-header-bytes 16384})

(deftest a-port-that-is-in-use-is-answered-in-the-same-words-by-each-engine
  (doseq [thrown [(BindException. "Address already in use")
                  (IOException. "Failed to bind" (BindException. "Address already in use"))]
          :let [engine {:name :test, :start (fn [_ _] (throw thrown))}
                options {:host "127.0.0.1", :port 1, :max-header-bytes 16384}
                e (try (lifecycle/start engine options identity) (catch Exception e e))]]
    (is (= :thrum/start-failed (:type (ex-data e))))
    (is (identical? thrown (ex-cause e)))
    (is (= "The engine :test could not start on 127.0.0.1:1: Address already in use"
           (ex-message e)))))

(deftest a-cause-without-a-message-is-named-by-its-class
  (let [engine {:name :test, :start (fn [_ _] (throw (InterruptedException.)))}
        options {:host "127.0.0.1", :port 1, :max-header-bytes 16384}
        e (try (lifecycle/start engine options identity) (catch Exception e e))]
    (is (= "The engine :test could not start on 127.0.0.1:1: java.lang.InterruptedException"
           (ex-message e)))))

(deftest a-host-that-is-unknown-is-said-to-be-so
  (let [engine {:name :test, :start (fn [_ _] (throw (UnknownHostException. "nowhere.invalid")))}
        options {:host "nowhere.invalid", :port 1, :max-header-bytes 16384}
        e (try (lifecycle/start engine options identity) (catch Exception e e))]
    (is (= "The engine :test could not start on nowhere.invalid:1: the host is unknown"
           (ex-message e)))))

(deftest what-an-engine-finds-invalid-is-passed-on
  (let [invalid (spi/invalid "no" {})
        engine {:name :test, :start (fn [_ _] (throw invalid))}]
    (is (identical? invalid
                    (try (lifecycle/start engine at-once identity) (catch Exception e e))))))

(deftest an-engine-starts-without-the-interrupt-of-before-which-stays
  (let [interrupted? (promise), {:keys [start] :as engine} (engine-that identity (constantly nil))
        engine (assoc engine :start (fn [options serve]
                                      (deliver interrupted?
                                               (.isInterrupted (Thread/currentThread)))
                                      (start options serve)))]
    (.interrupt (Thread/currentThread))
    (let [life (lifecycle/start engine at-once identity), after? (Thread/interrupted)]
      (is (= [false true] [@interrupted? after?]))
      (lifecycle/stop! life))))

(deftest a-start-that-fails-leaves-nothing-behind
  (let [options (assoc at-once :min-bytes-per-second 1, :rate-grace-ms 1000)
        started (atom 0)
        looking (promise)
        start watchdog/start
        engine {:name :test, :start (fn [_ _]
                                      (swap! started inc)
                                      (throw (OutOfMemoryError. "for the test")))}]
    (with-redefs [watchdog/start (fn [& _] (throw (OutOfMemoryError. "for the test")))]
      (is (thrown? OutOfMemoryError (lifecycle/start engine options identity)))
      (is (zero? @started)))
    (with-redefs [watchdog/start #(doto (start %1 %2 %3) (->> (deliver looking)))]
      (is (thrown? OutOfMemoryError (lifecycle/start engine options identity))))
    (is (some-> ^Thread (deref looking 0 nil) (.join (Duration/ofSeconds 5))))))

(defn- keeping-the-jvm
  "Returns the threads for which the JVM stays when its main function has returned."
  []
  (set (remove Thread/.isDaemon (keys (Thread/getAllStackTraces)))))

(deftest the-jvm-stays-until-the-server-has-stopped
  (let [before (keeping-the-jvm)
        more #(set/difference (keeping-the-jvm) before)
        life (promise)
        engine (engine-that identity (fn []))]
    (Thread/startVirtualThread #(deliver life (lifecycle/start engine at-once identity)))
    (is (instance? Life (deref life 5000 nil)))
    (let [threads (more)
          waits? #(and (not (Thread/.isInterrupted %))
                       (= Thread$State/WAITING (Thread/.getState %)))]
      (is (seq threads))
      (run! Thread/.interrupt threads)
      (is (gate/eventually 5000 #(every? waits? threads))))
    (lifecycle/stop! @life)
    (is (gate/eventually 10000 #(empty? (more))))
    (is (thrown? Error (lifecycle/start {:name :test, :start (fn [_ _] (throw (Error. "test")))}
                         at-once identity)))
    (is (gate/eventually 10000 #(empty? (more))))))

(deftest a-stop-leaves-nothing-behind
  (let [options (assoc at-once :min-bytes-per-second 1, :rate-grace-ms 1000
                       :stop-on-shutdown? true)
        looking (promise)
        start watchdog/start
        ^Life life (with-redefs [watchdog/start #(doto (start %1 %2 %3) (->> (deliver looking)))]
                     (lifecycle/start (engine-that identity (fn [])) options identity))
        ^Thread hook (.get ^AtomicReference (.-hook life))]
    (gate/in-time 5000 #(lifecycle/stop! life))
    (is (.join ^Thread (deref looking 0 nil) (Duration/ofSeconds 5)))
    (is (false? (.removeShutdownHook (Runtime/getRuntime) hook)))))

(deftest a-server-that-no-thread-could-stop-goes-on-and-can-be-stopped-later
  (let [life (lifecycle/start (engine-that identity (fn [])) at-once identity)]
    (with-redefs [lifecycle/start-thread! (fn [_] (throw (OutOfMemoryError. "no thread")))]
      (is (thrown? OutOfMemoryError (lifecycle/stop! life))))
    (is (= :running (:state (lifecycle/status life))))
    (gate/in-time 5000 #(lifecycle/stop! life))
    (is (= :stopped (:state (lifecycle/status life))))))

(deftest a-second-stop-does-not-wait-for-one-that-finds-no-thread
  (let [life (lifecycle/start (engine-that identity (fn [])) at-once identity)
        second-stop (promise)
        fail! (fn [_] (throw (OutOfMemoryError. "no thread")))
        stop-meanwhile! (fn [_]
                          (with-redefs [lifecycle/start-thread! fail!]
                            (let [[_ outcome] (gate/start "second" #(lifecycle/stop! life))]
                              (deliver second-stop (deref outcome 5000 :waits))))
                          (fail! nil))]
    (with-redefs [lifecycle/start-thread! stop-meanwhile!]
      (is (thrown? OutOfMemoryError (lifecycle/stop! life))))
    (is (instance? OutOfMemoryError (:thrown @second-stop)))
    (gate/in-time 5000 #(lifecycle/stop! life))))

(deftest of-two-stops-at-once-one-stops
  (let [closes (atom 0), threads (atom []), second? (atom false)
        start-thread! lifecycle/start-thread!
        life (lifecycle/start (engine-that identity #(swap! closes inc)) at-once identity)
        overtaken (fn [f]
                    (when (compare-and-set! second? false true) (lifecycle/stop! life))
                    (swap! threads conj (start-thread! f)))]
    (with-redefs [lifecycle/start-thread! overtaken]
      (gate/in-time 5000 #(lifecycle/stop! life)))
    (is (= 2 (count @threads)))
    (is (every? #(.join ^Thread % (Duration/ofSeconds 5)) @threads))
    (is (= 1 @closes))))

(defn- answer-of-a-drain
  "Returns the status of a request that is in flight, beside a stream, when the server stops: it is
  204 where the drain goes on behind called, a promise that one of the redefinitions delivers."
  [redefinitions called]
  (let [entered (promise), streaming (promise), gate (promise), await-quiet! traffic/await-quiet!
        s (server/run-server (fn [{:keys [uri]}]
                               (if (= "/events" uri)
                                 (server/sse (fn [_]
                                               (deliver streaming true)
                                               (deref called 5000 nil)))
                                 (do (deliver entered true) {:status (deref gate 5000 500)})))
            {:port 0, :stop-on-shutdown? false})
        [_ events] (gate/start "events" #(wire/ask-once! (server/port s) (wire/get "/events")))
        [_ answer] (gate/start "client" #(wire/ask-once! (server/port s) (wire/get "/")))
        opening (fn [& args]
                  (when (realized? called) (deliver gate 204))
                  (apply await-quiet! args))]
    (is (every? #(deref % 5000 false) [entered streaming]))
    (with-redefs-fn (assoc redefinitions #'traffic/await-quiet! opening)
      (fn [] (gate/in-time 10000 #(server/stop! s))))
    (is (some? (deref events 5000 nil)))
    (:status (:value (deref answer 5000 nil)))))

(deftest what-is-in-flight-is-waited-for-also-where-no-thread-can-be-started
  (let [fail! (fn [called]
                (deliver called true)
                (throw (OutOfMemoryError. "no thread")))]
    (doseq [no-thread [(fn [called] {#'stream/end! (fn [_] (fail! called))})
                       (fn [called] {#'spi/arm! (fn [^long _ _] (fail! called))})]
            :let [called (promise)]]
      (is (= 204 (answer-of-a-drain (no-thread called) called))))))

(deftest what-is-left-of-the-streams-is-cut-also-where-no-thread-can-be-started
  (let [traffic (traffic/traffic {}), cut (atom 0)]
    (traffic/enter! traffic (doto (exchange/exchange traffic nil) (.setStream :events)))
    (with-redefs [spi/arm! (fn [^long _ _] (throw (OutOfMemoryError. "no thread")))
                  stream/end! (fn [_] (throw (OutOfMemoryError. "no thread")))
                  stream/cut! (fn [_] (swap! cut inc))
                  traffic/await-quiet! (constantly false)]
      (#'lifecycle/drain! (Life. nil at-once traffic nil nil nil nil)))
    (is (= 1 @cut))))

(deftest no-handler-is-given-a-request-once-the-listener-closes
  (let [life (promise)
        state (promise)
        engine (engine-that identity #(deliver state (traffic/state (.-traffic ^Life @life))))]
    (deliver
      life
      (lifecycle/start
        engine
        at-once
        identity))
    (gate/in-time 5000 #(lifecycle/stop! @life))
    (is (= :closing (deref state 0 nil)))))

(defn- a-get
  "Returns the wire of a GET, which gives the status of its answer to sent, a promise or a
  function."
  [sent]
  (let [local (InetSocketAddress. "127.0.0.1" 1)]
    (reify
      engine/Wire
      (method [_] "GET")
      (target [_] "/")
      (protocol [_] "HTTP/1.1")
      (scheme [_] "http")
      (authority [_] nil)
      (headers [_] (object-array ["Host" "localhost"]))
      (remote [_] "127.0.0.1")
      (local [_] local)
      (certificate [_] nil)
      (body [_] nil)
      (unwatch! [_] nil)
      (send! [_ status _ _] (deliver sent status)))))

;; A thread that the engine has started for a request may come to run when the server has stopped.
(deftest no-handler-is-given-a-request-that-comes-late
  (let [serve (promise)
        called (atom 0)
        status (promise)
        life
        (lifecycle/start
          (engine-that #(deliver serve %) (constantly nil))
          at-once
          (fn [_] (swap! called inc)))]
    (gate/in-time 5000 #(lifecycle/stop! life))
    (@serve (a-get status))
    (is (= [0 503] [@called (deref status 0 nil)]))))

(deftest a-request-does-not-end-before-its-answer-by-another-thread
  (let [answer (promise), gate (promise)
        wire (a-get #(do (deliver answer %) (deref gate 5000 nil)))
        traffic (traffic/traffic {:request-timeout-ms 10, :max-header-bytes 16384})
        [_ served] (gate/start "request"
                               #(serve/serve! traffic (fn [_] (Thread/sleep 60000)) wire))]
    (is (= 503 (deref answer 5000 nil)))
    (is (= :waits (deref served 50 :waits)))
    (deliver gate :go)
    (is (contains? (deref served 5000 {}) :value))))

(deftest a-request-whose-time-is-up-before-its-handler-is-a-timeout
  (let [sent (promise)
        traffic (traffic/traffic {:request-timeout-ms 1, :max-header-bytes 16384
                                  :as-asked #(do (Thread/sleep 5) %)})]
    (serve/serve! traffic (fn [_] (is false "It is not called")) (a-get sent))
    (is (= [503 {:timed-out 1, :failed 0}]
           [(deref sent 0 nil) (select-keys (traffic/status traffic) [:timed-out :failed])]))))

(defn- engine-that-refuses-as-it-stops
  "Returns an engine that serves a last request while it stops."
  []
  (let [serve (promise)]
    {:name :test
     :start (fn [_ f]
              (deliver serve f)
              (reify engine/Running
                (port [_] 1)
                (ssl-port [_] -1)
                (close-listeners! [_])
                (stop! [_]
                  (let [sent (promise)]
                    (gate/start "late" #(@serve (a-get sent)))
                    (deref sent 5000 nil)))
                (native [_] nil)))}))

(deftest the-last-refusal-is-observed-before-the-end-of-the-server
  (let [life (promise)
        trail (atom [])
        stopping? (fn []
                    (or (seq @trail)
                        (.get ^AtomicReference (.-drainer ^Traffic (.-traffic ^Life @life)))))
        observer {:end (fn [{:keys [status]}]
                         (gate/eventually 5000 stopping?)
                         (swap! trail conj status))
                  :stop (fn [_] (swap! trail conj :stop))}]
    (deliver life (lifecycle/start (engine-that-refuses-as-it-stops)
                                   (assoc at-once :observer observer)
                                   identity))
    ;; Without the wait for those whose time is over.
    (with-redefs [lifecycle/leave-ms 0]
      (gate/in-time 10000 #(lifecycle/stop! @life)))
    (is (= [503 :stop] @trail))))

(deftest the-end-of-a-request-that-the-stop-interrupts-is-observed-before-the-end-of-the-server
  (let [serve (promise)
        stopping (promise)
        entered (promise)
        trail (atom [])
        engine (assoc (engine-that #(deliver serve %) (constantly nil))
                      :start
                      (fn [_ f]
                        (deliver serve f)
                        (reify engine/Running
                          (port [_] 1)
                          (ssl-port [_] -1)
                          (close-listeners! [_])
                          (stop! [_] (deliver stopping true))
                          (native [_] nil))))
        life (promise)
        awaited? #(or (seq @trail)
                      (.get ^AtomicReference (.-drainer ^Traffic (.-traffic ^Life @life))))
        handler (fn [_]
                  (deliver entered true)
                  (try
                    (deref (promise))
                    (catch InterruptedException _))
                  (deref stopping 5000 nil)
                  (gate/eventually 5000 awaited?)
                  {:status 204})
        observer {:end (fn [_] (swap! trail conj :end)), :stop (fn [_] (swap! trail conj :stop))}]
    (with-redefs [lifecycle/leave-ms 20000]
      (deliver life (lifecycle/start engine (assoc at-once :observer observer) handler))
      (let [[_ served] (gate/start "request" #(@serve (a-get (promise))))]
        (is (deref entered 5000 false))
        (gate/in-time 30000 #(lifecycle/stop! @life))
        (is (contains? (deref served 5000 {}) :value))))
    (is (= [:end :stop] @trail))))

(deftest the-end-of-what-has-had-its-time-is-not-awaited-for-long
  (let [serve (promise), ends (promise), gate (promise)
        life (lifecycle/start (engine-that #(deliver serve %) (constantly nil))
                              (assoc at-once
                                     :observer
                                     {:end (fn [_] (deliver ends true) (deref gate 20000 nil))})
                              (constantly {:status 204}))
        [_ served] (gate/start "request" #(@serve (a-get (promise))))]
    (is (deref ends 5000 false))
    (let [given-up (#'lifecycle/drain! life)]
      (is (= 1 (count given-up)))
      (is (true? (#'lifecycle/await-late! (.-traffic ^Life life) given-up))))
    (deliver gate :go)
    (is (contains? (deref served 5000 {}) :value))
    (gate/in-time 5000 #(lifecycle/stop! life))))

(deftest an-end-that-throws-keeps-none-of-the-others
  (let [traffic (traffic/traffic {}), ended (atom 0)]
    (dotimes [_ 3] (traffic/enter! traffic (exchange/exchange traffic nil)))
    (with-redefs [ending/end! (fn [_ _] (swap! ended inc) (throw (NullPointerException.)))
                  exchange/settled? (constantly true)]
      (#'lifecycle/end-requests! traffic))
    (is (= 3 @ended))))

(deftest an-alarm-that-comes-late-finds-nothing-to-end
  (let [traffic (traffic/traffic {})
        x (exchange/exchange traffic nil)]
    (#'serve/leave! x)
    (ending/end! x :thrum/timeout)
    (is (= {:overdue 0, :timed-out 0}
           (select-keys (traffic/status traffic) [:overdue :timed-out])))))

(deftest a-state-is-one-of-three-also-while-it-changes
  (let [traffic (traffic/traffic {}), moves (atom [:draining :closing])]
    (with-redefs [traffic/state (fn [_] (ffirst (swap-vals! moves next)))]
      (is (= :draining (:state (traffic/status traffic)))))))

(deftest what-was-cut-is-overdue-until-it-leaves-though-it-became-a-websocket
  (let [traffic (traffic/traffic {})
        x (exchange/exchange traffic (reify engine/Wire (unwatch! [_]) (abort! [_])))]
    (exchange/step! x :commit)
    (ending/end! x :disconnected)
    (exchange/upgraded! x)
    (is (= 1 (:overdue (traffic/status traffic))))
    (#'serve/leave! x)
    (is (= 0 (:overdue (traffic/status traffic))))))

;; An observer

(deftest the-end-of-a-request-out-of-time-says-how-many-bytes-its-answer-had
  (let [ends (LinkedBlockingQueue.)
        s (server/run-server (fn [_] (deref (promise)))
                             {:port 0
                              :stop-on-shutdown? false
                              :request-timeout-ms 50
                              :observer {:end #(.put ends [(:status %) (:bytes %)])}})]
    (try
      (doseq [[method bytes] {"GET" (count "service unavailable"), "HEAD" 0}]
        (wire/send! (wire/connect (server/port s)) (wire/head-of method "/"))
        (is (= [503 bytes] (.poll ends 10 TimeUnit/SECONDS))))
      (finally (server/stop! s)))))

(defn- stopped-inside
  "Returns whether stop! returns inside the observer's function for this event, while a handler that
  takes no interrupt runs; sent: the request."
  [event sent]
  (let [s (promise)
        gate (promise)
        returned (promise)
        handler (fn [{:keys [uri]}]
                  (when (= "/wait" uri)
                    (while (= :closed (try
                                        (deref gate 10000 :late)
                                        (catch InterruptedException _ :closed)))))
                  {:status 200, :headers {}, :body "ok"})]
    (deliver s (server/run-server handler
                                  {:port 0
                                   :stop-on-shutdown? false
                                   :request-timeout-ms 200
                                   :observer {event (fn [_]
                                                      (server/stop! @s)
                                                      (deliver returned true))}}))
    (try
      (let [c (wire/send! (wire/connect (server/port @s)) sent)]
        (when (= :stop event)
          (wire/response c)
          (.start (Thread/ofVirtual) #(server/stop! @s)))
        (deref returned 5000 false))
      (finally
        (deliver gate :open)
        (gate/in-time 20000 #(server/stop! @s))))))

(deftest stop-returns-inside-an-observer
  (doseq [[event sent] {:start (wire/get "/")
                        :end (wire/get "/")
                        :timeout (wire/get "/wait")
                        :stop (wire/get "/")}]
    (is (true? (stopped-inside event sent)) (str event))))

(deftest a-dropped-of-the-observer-that-throws-is-counted
  (let [s (server/run-server identity
                             {:port 0
                              :stop-on-shutdown? false
                              :observer {:dropped #(throw (ex-info "secret" {}))}})]
    (try
      (is (= [0 1] ((juxt :observer-dropped :observer-errors) (server/status s))))
      (finally (server/stop! s)))))

(deftest an-observer-runs-until-its-own-function-has-returned
  (let [seen (atom []), traffic (promise)
        look! (fn [& _] (swap! seen conj (traffic/observing? @traffic)))
        end (fn [_] (traffic/status @traffic) (look!))]
    (deliver traffic (traffic/traffic {:observer {:dropped (constantly 0), :end end}}))
    (traffic/observe! @traffic :end (constantly {}))
    (look!)
    (is (= [true false] @seen))))

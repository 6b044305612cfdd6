(ns thrum.server.impl.websocket-test
  "How a listener's callbacks are called when some of them throw."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server.impl.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io IOException)
   (java.nio ByteBuffer)
   (java.time Duration)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.locks ReentrantLock)
   (java.util.logging Handler Level LogRecord Logger)
   (thrum.server.impl.websocket WebSocket)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- gone
  "Returns a socket whose client has gone; closed: a promise of the code of a close."
  [closed]
  (reify engine/Socket
    (open? [_] true)
    (close! [_ code _]
      (deliver closed code)
      (throw (IOException. "Broken pipe")))
    (disconnect! [_])))

(defn- live!
  "Attends to a websocket that opens, gets a message and ends. Returns the code of its close."
  [listener]
  (let [closed (promise), socket (gone closed), inbox (websocket/inbox listener)
        events [#(engine/on-open inbox socket)
                #(engine/on-text inbox socket "hi")
                #(engine/on-close inbox socket 1006 "")]
        engine (Thread/startVirtualThread (fn [] (run! #(%) events)))]
    (websocket/attend! inbox (fn []) identity)
    (Thread/.join engine)
    (deref closed 0 :never)))

(defn- fails [& _]
  (throw (IOException. "Broken pipe")))

(deftest a-close-that-fails-keeps-no-on-close
  (let [trail (atom [])
        code (live! {:on-message fails
                     :on-error (fn [_ t] (swap! trail conj (ex-message t)))
                     :on-close (fn [_ code _] (swap! trail conj code))})]
    (is (= 1011 code))
    (is (= ["Broken pipe" 1006] @trail))))

(deftest an-on-error-that-throws-keeps-no-on-close
  (let [logger (Logger/getLogger "thrum.server"), level (.getLevel logger), closed (promise)]
    (.setLevel logger Level/OFF)
    (try
      (is (= 1011 (live! {:on-message fails
                          :on-error fails
                          :on-close (fn [_ code _] (deliver closed code))})))
      (finally (.setLevel logger level)))
    (is (= 1006 (deref closed 0 :never)))))

(defn- logged
  "Calls f, and returns the messages of the throwables that the servers' logger gets meanwhile."
  [f]
  (let [logger (Logger/getLogger "thrum.server"), level (.getLevel logger), messages (atom [])
        handler (proxy [Handler] []
                  (publish [^LogRecord record]
                    (swap! messages conj (ex-message (.getThrown record))))
                  (flush [])
                  (close []))]
    (.addHandler logger handler)
    (.setUseParentHandlers logger false)
    (.setLevel logger Level/ALL)
    (try
      (f)
      @messages
      (finally
        (.setLevel logger level)
        (.setUseParentHandlers logger true)
        (.removeHandler logger handler)))))

(defn- fails-with [message]
  (fn [& _] (throw (ex-info message {}))))

(deftest what-a-callback-throws-is-logged-unless-an-on-error-gets-it
  (is (= ["message" "close"]
         (logged #(live! {:on-message (fails-with "message"), :on-close (fails-with "close")}))))
  (is (= ["error"]
         (logged #(live! {:on-message (fails-with "message"), :on-error (fails-with "error")}))))
  (is (= [] (logged #(live! {:on-message (fails-with "message"), :on-error (fn [_ _])})))))

(deftest what-a-callback-throws-behind-a-cancel-is-not-logged
  (let [cancel-and-fail! #(fn [& _]
                            (t/cancel! %)
                            (Thread/interrupted)
                            ((fails-with "cancelled")))]
    (is (= [] (logged #(t/with-scope [s] (live! {:on-message (cancel-and-fail! s)})))))))

(deftest that-a-client-has-gone-is-not-logged
  (is (= [] (logged #(live! {:on-message fails, :on-close fails})))))

(deftest an-io-exception-is-logged-where-the-client-has-not-gone
  (let [socket (reify engine/Socket (open? [_] true) (close! [_ _ _]))
        ws (WebSocket. socket (ReentrantLock.))]
    (is (= ["Broken pipe"]
           (logged #(#'websocket/deliver! {:on-message fails} ws :on-message ["hi"]))))))

(deftest what-an-on-error-throws-does-not-hide-what-it-was-called-with
  (let [hidden (ExceptionInfo. "message" {}), last-word (ExceptionInfo. "error" {})]
    (logged #(live! {:on-message (fn [& _] (throw hidden))
                     :on-error (fn [& _] (throw last-word))}))
    (is (= [hidden] (vec (.getSuppressed last-word))))))

(deftest an-on-error-may-throw-what-it-was-called-with
  (let [listener {:on-message (fails-with "message"), :on-error (fn [_ t] (throw t))}
        code (promise)]
    (is (= ["message"] (logged #(deliver code (live! listener)))))
    (is (= 1011 @code))))

(deftest what-a-callback-throws-is-logged-before-the-close-that-may-wait
  (let [closes (promise)
        socket (reify engine/Socket
                 (open? [_] true)
                 (close! [_ _ _]
                   (deliver closes true)
                   (throw (Error. "on purpose")))
                 (disconnect! [_]))
        inbox (websocket/inbox {:on-message (fails-with "message")})]
    (is (= ["message"]
           (logged (fn []
                     (gate/start "engine" #(do
                                             (engine/on-open inbox socket)
                                             (engine/on-text inbox socket "hi")
                                             (engine/on-close inbox socket 1006 "")))
                     (is (thrown? Error (websocket/attend! inbox (fn []) identity)))))))
    (is (realized? closes))))

;; Objects that satisfy Ring's Listener; a stand-in for it, as Ring may not be on the classpath.

(defprotocol Listener
  (on-open [listener ws])
  (on-message [listener ws message])
  (on-pong [listener ws data])
  (on-error [listener ws throwable])
  (on-close [listener ws code reason]))

(defprotocol PingListener
  (on-ping [listener ws data]))

(extend-type clojure.lang.IPersistentMap
  Listener
  (on-open [_ _])
  (on-message [_ _ _])
  (on-error [_ _ _])
  (on-close [_ _ _ _]))

(defmacro ^:private with-ring [& body]
  `(with-redefs [websocket/ring {:Listener #'Listener, :on-open #'on-open
                                 :on-message #'on-message, :on-pong #'on-pong
                                 :on-error #'on-error, :on-close #'on-close
                                 :PingListener #'PingListener, :on-ping #'on-ping}]
     ~@body))

(deftest what-an-object-s-callback-throws-is-logged-where-it-leaves-others-out
  (let [listener (reify Listener
                   (on-open [_ _])
                   (on-message [_ _ _] (throw (ex-info "message" {}))))]
    (is (= ["message"] (with-ring (logged #(live! listener)))))))

(defrecord Recorder [trail]
  Listener
  (on-open [_ _] (swap! trail conj :open))
  (on-message [_ _ message] (swap! trail conj message))
  (on-close [_ _ code _] (swap! trail conj code)))

(deftest a-record-that-satisfies-the-protocol-is-called-by-it
  (let [trail (atom [])]
    (with-ring (live! (->Recorder trail)))
    (is (= [:open "hi" 1006] @trail))))

(deftest a-map-is-called-by-its-keys-also-where-maps-satisfy-the-protocol
  (let [trail (atom []), note! (fn [_ x & _] (swap! trail conj x))]
    (with-ring (live! {:on-message note!, :on-close note!}))
    (is (= ["hi" 1006] @trail))))

(defn- cut-reports!
  "Returns a socket whose cut ends it, behind a message, and that no close does; inbox: a promise of
  the listener that gets to know, once."
  [inbox]
  (let [cut (promise)]
    (reify engine/Socket
      (open? [_] true)
      (close! [_ _ _])
      (disconnect! [this]
        (when (deliver cut true)
          (Thread/startVirtualThread #(do
                                        (engine/on-text @inbox this "late")
                                        (engine/on-close @inbox this 1006 ""))))))))

(defn- cancelled
  "Returns a task that attended a websocket of the listener, and was cancelled when it was open."
  [{:keys [on-open], :or {on-open identity}, :as listener}]
  (let [opened (promise), inbox (promise), socket (cut-reports! inbox)
        attending (t/future
                    (deliver inbox (websocket/inbox
                                     (assoc listener :on-open (fn [ws]
                                                                (deliver opened true)
                                                                (on-open ws)))))
                    (engine/on-open @inbox socket)
                    (websocket/attend! @inbox (fn []) identity))]
    @opened
    (future-cancel attending)
    attending))

(deftest an-on-close-behind-a-cancel-can-wait
  (let [closed (promise)
        attending (cancelled {:on-close (fn [_ _ _]
                                          (deliver closed (t/with-permit (t/limiter 1)
                                                            (t/pmapv 2 inc [1 2]))))})]
    (is (= [2 3] (deref closed 5000 :never)))
    (is (thrown? CancellationException @attending))))

(deftest a-cancel-keeps-no-on-close
  (let [trail (atom [])
        attending (cancelled {:on-message (fn [_ message] (swap! trail conj message))
                              :on-close (fn [_ code _] (swap! trail conj code))})]
    (is (gate/eventually 5000 #(= [1006] @trail)))
    (is (thrown? CancellationException @attending))))

(defn- waits [& _]
  @(promise))

(deftest a-cancel-of-a-callback-is-no-failure-of-it
  (doseq [callbacks [{:on-open waits} {:on-open (fails-with "open"), :on-error waits}]
          :let [trail (atom [])
                note! (fn [_ x & _] (swap! trail conj x))
                attending (cancelled (merge {:on-error note!, :on-close note!} callbacks))]]
    (is (gate/eventually 5000 #(= [1006] @trail)))
    (is (thrown? CancellationException @attending))))

(deftest a-websocket-that-opens-behind-a-cancel-is-cut
  (let [begun (promise), cut (promise), inbox (websocket/inbox {})
        socket (reify engine/Socket
                 (disconnect! [this]
                   (when (deliver cut true)
                     (Thread/startVirtualThread #(engine/on-close inbox this 1006 "")))))
        open! (fn []
                (deliver begun true)
                (while (not (.isInterrupted (Thread/currentThread))) (Thread/yield)))
        attending (t/future (websocket/attend! inbox open! identity))]
    @begun
    (future-cancel attending)
    (engine/on-open inbox socket)
    (is (true? (deref cut 5000 :never)))
    (is (thrown? CancellationException @attending))))

;; Tomcat reports the end on a thread of its own, while another one still has messages to hand over.
(deftest what-is-read-behind-the-end-keeps-no-thread
  (let [inbox (promise), socket (gone (promise)), messages (atom [])
        read! (fn []
                (engine/on-open @inbox socket)
                (run! #(engine/on-text @inbox socket %) ["first" "second" "third"]))]
    (deliver inbox
             (websocket/inbox {:on-message (fn [_ message]
                                             (swap! messages conj message)
                                             (engine/on-close @inbox socket 1006 ""))}))
    (let [reader (Thread/startVirtualThread read!)]
      (websocket/attend! @inbox (fn []) identity)
      (is (Thread/.join reader (Duration/ofSeconds 5)))
      (is (= ["first"] @messages)))))

(deftest what-comes-of-a-websocket-that-does-not-open-keeps-no-thread
  (let [socket (gone (promise)), inbox (websocket/inbox {})
        engine (Thread/startVirtualThread
                 (fn []
                   (engine/on-error inbox socket (IOException. "Broken pipe"))
                   (engine/on-close inbox socket 1006 "")))]
    (is (thrown? IOException
          (websocket/attend! inbox #(throw (IOException. "No handshake")) identity)))
    (is (Thread/.join engine (Duration/ofSeconds 5)))))

(deftest what-waits-as-a-websocket-does-not-open-keeps-no-thread
  (let [inbox (websocket/inbox {}), socket (gone (promise))
        [^Thread reader read] (gate/start "reader" #(engine/on-text inbox socket "early"))]
    (is (gate/eventually 5000 #(= Thread$State/WAITING (.getState reader))))
    (is (thrown? IOException
          (websocket/attend! inbox #(throw (IOException. "No handshake")) identity)))
    (is (contains? (deref read 5000 nil) :value))))

(deftest an-interrupt-behind-a-failure-keeps-no-on-close
  (let [closed (promise), inbox (promise), socket (cut-reports! inbox)
        opened (fn [_]
                 (.interrupt (Thread/currentThread))
                 (throw (ex-info "no" {})))]
    (deliver inbox (websocket/inbox {:on-close (fn [_ code _] (deliver closed code))}))
    (engine/on-open @inbox socket)
    (is (thrown? ExceptionInfo (websocket/attend! @inbox (fn []) opened)))
    (is (not (Thread/interrupted)))
    (is (= 1006 (deref closed 0 :never)))))

;; Sending

(deftest a-buffer-that-is-sent-stays-as-it-was
  (let [socket (reify engine/Socket
                 (send-binary! [_ data] (.get ^ByteBuffer data (byte-array 2))))
        data (ByteBuffer/allocate 2)]
    (websocket/send! (WebSocket. socket (ReentrantLock.)) data)
    (is (= 2 (.remaining data)))))

(deftest a-sender-that-waits-for-another-can-be-interrupted
  (let [turn (ReentrantLock.)
        ws (WebSocket. (reify engine/Socket (send-text! [_ _])) turn)]
    (.lock turn)
    (let [[^Thread sender outcome] (gate/start "sender" #(websocket/send! ws "x"))]
      (is (gate/eventually 5000 #(.hasQueuedThread turn sender)))
      (.interrupt sender)
      (is (instance? InterruptedException (:thrown (deref outcome 5000 nil)))))))

(deftest text-has-any-character-and-no-half-of-one
  (let [trail (atom [])
        ws (WebSocket. (reify engine/Socket (send-text! [_ text] (swap! trail conj text)))
                       (ReentrantLock.))]
    (websocket/send! ws "a\ud83d\ude00b")
    (is (= ["a\ud83d\ude00b"] @trail))
    (doseq [half ["\ud83d" "\ude00" "\ud83da" "a\ude00"]]
      (is (thrown? ExceptionInfo (websocket/send! ws half))))))

(deftest what-a-control-frame-may-have-is-bounded
  (let [trail (atom [])
        socket (reify engine/Socket
                 (open? [_] true)
                 (send-ping! [_ data] (swap! trail conj (.remaining ^ByteBuffer data)))
                 (close! [_ code _] (swap! trail conj code)))
        ws (WebSocket. socket (ReentrantLock.))
        refused? #(= :thrum/invalid (t/error-type (try (%) (catch Exception e e))))
        codes [1000 1003 1007 1014 3000 4999]]
    (websocket/ping! ws (byte-array 125))
    (is (refused? #(websocket/ping! ws (byte-array 126))))
    (run! #(websocket/close! ws % (apply str (repeat 123 "r"))) codes)
    (is (refused? #(websocket/close! ws 1000 (apply str (repeat 124 "r")))))
    (doseq [code [999 1004 1006 1015 2999 5000]]
      (is (refused? #(websocket/close! ws code "")) (str code)))
    (is (= (cons 125 codes) @trail))))

(deftest what-is-closed-is-closed-no-more
  (let [socket (reify engine/Socket
                 (open? [_] false)
                 (close! [_ _ _] (throw (IOException. "It is closed"))))]
    (is (nil? (websocket/close! (WebSocket. socket (ReentrantLock.)) 1000 "")))))

(deftest what-comes-behind-the-end-is-not-waited-for
  (let [inbox (websocket/inbox {})]
    (is (thrown? IOException
          (websocket/attend! inbox #(throw (IOException. "No handshake")) identity)))
    (is (nil? (gate/in-time 5000 #(engine/on-text inbox (gone (promise)) "late"))))))

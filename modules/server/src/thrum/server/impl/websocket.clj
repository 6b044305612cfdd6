(ns thrum.server.impl.websocket
  "Ring's websockets over an engine's: every callback runs on the exchange's own thread, inside its
  scope, one after the other."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.lang System$Logger System$Logger$Level)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent ArrayBlockingQueue BlockingQueue CountDownLatch TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

;; The socket that callbacks get

;; turn: of those that send messages. Not every engine sends one after the other by itself.
(deftype WebSocket [socket ^ReentrantLock turn])

(defmethod print-method WebSocket [^WebSocket ws ^java.io.Writer w]
  (.write w (if (engine/open? (.-socket ws)) "#<websocket open>" "#<websocket closed>")))

(defn open?
  "True if messages can still be sent."
  [^WebSocket ws]
  (engine/open? (.-socket ws)))

(defn- buffer
  "Returns the data as a buffer of its own: engines move, or forget, the position and the limit of
  what they send."
  ^ByteBuffer [data]
  (cond (nil? data) (ByteBuffer/allocate 0)
        (bytes? data) (ByteBuffer/wrap data)
        (instance? ByteBuffer data) (.duplicate ^ByteBuffer data)
        :else (throw (spi/invalid (str "Bytes or a ByteBuffer are expected, not "
                                    (spi/text (class data)))
                       {:value data}))))

(defn- whole-characters?
  "True if the text has no half of a surrogate pair, which UTF-8 cannot say."
  [^String text]
  (let [n (.length text)]
    (loop [i 0]
      (or (= i n)
          (let [c (.codePointAt text i)]
            (and (not (<= 0xd800 c 0xdfff))
                 (recur (+ i (Character/charCount c)))))))))

(defn- text ^String [message]
  (let [text (str message)]
    (when-not (whole-characters? text)
      (throw (spi/invalid "A websocket's text has half of a surrogate pair, which is no character"
               {:value text})))
    text))

(defn- in-turn [^WebSocket ws f]
  (let [^ReentrantLock turn (.-turn ws)]
    (.lockInterruptibly turn)
    (try
      (f (.-socket ws))
      (finally (.unlock turn)))))

(defn send!
  "Sends a message: a CharSequence as text, bytes or a ByteBuffer as binary. Blocks until it is
  flushed; throws IOException when that fails."
  [^WebSocket ws message]
  (if (instance? CharSequence message)
    (let [text (text message)] (in-turn ws #(engine/send-text! % text)))
    (let [buffer (buffer message)] (in-turn ws #(engine/send-binary! % buffer))))
  nil)

(def ^:private ^:const most-bytes
  "How long the data of a control frame may be (RFC 6455, 5.5)."
  125)

(defn- control-data ^ByteBuffer [data]
  (let [buffer (buffer data)]
    (when (< most-bytes (.remaining buffer))
      (throw (spi/invalid (str "A ping or a pong has at most " most-bytes " bytes, not "
                               (.remaining buffer))
               {:value data})))
    buffer))

(defn ping!
  "Sends a ping, with data or without."
  [^WebSocket ws data]
  (engine/send-ping! (.-socket ws) (control-data data))
  nil)

(defn pong!
  "Sends a pong, with data or without."
  [^WebSocket ws data]
  (engine/send-pong! (.-socket ws) (control-data data))
  nil)

(defn- check-code [code]
  (when-not (and (int? code)
                 (or (<= 3000 (long code) 4999)
                     (and (<= 1000 (long code) 1014) (not (<= 1004 (long code) 1006)))))
    (throw (spi/invalid (str "A websocket's code is one of RFC 6455 or from 3000 to 4999, not "
                             (spi/text code))
             {:value code, :accepts "1000 to 1003, 1007 to 1014 or 3000 to 4999"}))))

(defn- checked-reason ^String [reason]
  (when-not (or (nil? reason) (string? reason))
    (throw (spi/invalid (str "The reason of a close is a string, not " (spi/text reason))
             {:value reason, :accepts "a string"})))
  (let [reason (text reason), n (alength (.getBytes reason StandardCharsets/UTF_8))]
    (when (< (- most-bytes 2) n)
      (throw (spi/invalid (str "The reason of a close has at most " (- most-bytes 2)
                               " bytes, not " n)
               {:value reason})))
    reason))

(defn close!
  "Closes with this code (RFC 6455, 7.4) and reason; nothing where it is closed already."
  [^WebSocket ws code reason]
  (check-code code)
  (let [reason (checked-reason reason)]
    (when (open? ws)
      (engine/close! (.-socket ws) (int code) reason)))
  nil)

(defn abort!
  "Cuts the connection; on-close is called, as at any other end."
  [^WebSocket ws]
  (engine/disconnect! (.-socket ws)))

;; Ring, where it is there

(defn- ring-var [n]
  (try
    (requiring-resolve (symbol "ring.websocket.protocols" n))
    (catch java.io.FileNotFoundException _ nil)))

(def ^:private ring
  "Ring's own functions by name, or nil: decided when this namespace is loaded."
  (when (ring-var "Listener")
    (into {}
          (map (juxt keyword ring-var))
          ["Listener" "PingListener" "Socket" "AsyncSocket" "on-open" "on-message" "on-pong"
           "on-ping" "on-error" "on-close"])))

(defn- send-async! [ws message succeed fail]
  (try
    (send! ws message)
    (succeed)
    (catch Throwable t (fail t))))

(when ring
  (extend WebSocket
    @(:Socket ring) {:-open? open?
                     :-send send!
                     :-ping ping!
                     :-pong pong!
                     :-close close!}
    @(:AsyncSocket ring) {:-send-async send-async!}))

(defn- listens? [protocol listener]
  (boolean (and ring (satisfies? @(protocol ring) listener))))

(defn- plain-map? [listener]
  (and (map? listener) (or (not (record? listener)) (not (listens? :Listener listener)))))

(defn- takes? [listener callback]
  (if (plain-map? listener)
    (some? (get listener callback))
    (or (not= :on-ping callback) (listens? :PingListener listener))))

(defn- call!
  "Calls the listener's callback, if it has it, with the socket and what else there is."
  [listener callback & args]
  (when (takes? listener callback)
    (if (plain-map? listener)
      (apply (get listener callback) args)
      (apply (get ring callback) listener args))))

;; The engine's side: each event is handed to the exchange's thread, which takes them one by one.

(defn- release-all!
  "Has those go on that wait for the callbacks of the events in the queue: none is called any more."
  [^BlockingQueue events]
  (when-some [[^CountDownLatch done] (.poll events)]
    (.countDown done)
    (recur events)))

;; An engine that reports the end on a thread of its own may still read messages: behind the end
;; there is no taker, and each thread that puts an event releases it, and those of the others.
(defn- put!
  [^BlockingQueue events ^AtomicBoolean over done event]
  (.put events [done event])
  (when (.get over) (release-all! events)))

(defn- post!
  "Hands over an event, and does not wait for its callback."
  [events over & event]
  (put! events over (CountDownLatch. 1) event))

(defn- hand-over!
  "Hands over an event, and waits until its callback has returned: what it sends goes before what
  the engine does next, as answering a close."
  [events over & event]
  (let [done (CountDownLatch. 1)]
    (put! events over done event)
    (.await done)))

;; over: whether no event is taken any more.
(deftype Inbox [listener ^BlockingQueue events ^AtomicBoolean over]
  engine/Listener
  (on-open [_ socket] (post! events over :on-open socket))
  (on-text [_ socket message] (hand-over! events over :on-message socket message))
  (on-binary [_ socket message] (hand-over! events over :on-message socket message))
  (on-ping [_ socket data] (hand-over! events over :on-ping socket data))
  (on-pong [_ socket data] (hand-over! events over :on-pong socket data))
  (on-error [_ socket throwable] (post! events over :on-error socket throwable))
  (on-close [_ socket code reason] (post! events over :on-close socket code reason)))

(defn inbox
  "Returns the engine's listener for this Ring listener. Throws :thrum/response for what is none."
  [listener]
  (when-not (or (map? listener) (listens? :Listener listener))
    (throw
      (ex-info
        (str
          "A websocket's listener is a map of callbacks, or satisfies Ring's Listener; it is not a "
          (class listener))
        {:type :thrum/response})))
  (Inbox. listener (ArrayBlockingQueue. 1) (AtomicBoolean.)))

;; The exchange's side

(def ^:private ^System$Logger logger (System/getLogger "thrum.server"))

(defn- log! [callback ^Throwable t]
  (when-not (t/cancelled?)
    (.log logger System$Logger$Level/ERROR (str "A websocket's " callback " failed") t)))

(defn- unreported
  "Hands what a callback threw to :on-error. Returns the callback and throwable that have to be
  logged: these where there is no :on-error, those of an :on-error that throws; nil otherwise."
  [listener ws callback ^Throwable t]
  (if (takes? listener :on-error)
    (try
      (call! listener :on-error ws t)
      nil
      (catch InterruptedException e (throw e))
      ;; An object that reifies Ring's Listener may leave it out.
      (catch AbstractMethodError _ [callback t])
      (catch Throwable e
        (when-not (identical? e t) (.addSuppressed e t))
        [:on-error e]))
    [callback t]))

(defn- closed!
  "Closes a websocket that has failed. Returns false where its client has gone."
  [ws]
  (try
    (and (open? ws)
         (nil? (close! ws 1011 "Internal error")))
    (catch IOException _ false)))

(defn- fail!
  "Reports what a callback threw, and closes the websocket; its :on-close follows. Logs no
  IOException where the client has gone: that is what sending throws then."
  [listener ws callback t]
  (let [unlogged (volatile! nil)]
    (try
      (when-some [[callback t :as failure] (unreported listener ws callback t)]
        (if (instance? IOException t)
          (vreset! unlogged failure)
          (log! callback t)))
      (finally
        (when (closed! ws)
          (some->> @unlogged (apply log!)))))))

(defn- deliver! [listener ^WebSocket ws callback args]
  (try
    (if (and (= :on-ping callback) (not (takes? listener :on-ping)))
      (pong! ws (first args))
      (apply call! listener callback ws args))
    (catch InterruptedException e (throw e))
    (catch Throwable t
      (cond
        (not= :on-close callback) (fail! listener ws callback t)
        ;; It has sent to the socket; or it is left out of an object.
        (or (instance? IOException t) (instance? AbstractMethodError t)) nil
        :else (log! callback t)))))

(defn- deliver-all!
  "Calls the listener until the socket is closed. opened is called with the WebSocket first."
  [^Inbox inbox opened]
  (loop [ws nil]
    (let [[^CountDownLatch done [callback socket & args]] (.take ^BlockingQueue (.-events inbox))
          ws (or ws (doto (WebSocket. socket (ReentrantLock.)) (opened)))]
      (try
        (deliver! (.-listener inbox) ws callback args)
        (finally (.countDown done)))
      (when-not (= :on-close callback) (recur ws)))))

(def ^:private patience-s
  "How long an engine may take to report the end of a socket that was cut."
  5)

(defn- discard-all!
  "Takes the engine's remaining events, so that the engine does not wait for a taker. Only :on-close
  is called of the listener; ws: the socket that :on-open got, nil where there was none."
  [^Inbox inbox ws]
  (loop []
    (let [[^CountDownLatch done [callback socket & args]]
          (.poll ^BlockingQueue (.-events inbox) patience-s TimeUnit/SECONDS)]
      (some-> done
              (.countDown))
      (when socket (engine/disconnect! socket))
      (cond
        (nil? callback) nil
        (not= :on-close callback) (recur)
        ;; The exchange's work is cancelled, and the callback may have to wait.
        ws (t/shield (* 1000 patience-s) (deliver! (.-listener inbox) ws :on-close args))))))

(defn- end! [^Inbox inbox]
  (.set ^AtomicBoolean (.-over inbox) true)
  (release-all! (.-events inbox)))

(defn- call-all!
  "Calls the listener's callbacks until the websocket is closed, or the calling work cancelled."
  [inbox opened]
  (let [current (volatile! nil)]
    (try
      (deliver-all! inbox (fn [ws] (vreset! current ws) (opened ws)))
      (catch Throwable t
        (Thread/interrupted)
        (some-> @current abort!)
        (try
          (discard-all! inbox @current)
          (finally (throw t)))))))

(defn attend!
  "Calls (open!), which has the engine open the websocket, and the listener's callbacks on this
  thread until it is closed. (opened ws) is called first. A cancel cuts the socket, and :on-close
  follows, which has five seconds then."
  [inbox open! opened]
  (try
    (open!)
    (call-all! inbox opened)
    (finally (end! inbox))))

(ns thrum.server.impl.exchange
  "The life of one request, the same on every engine: admitted, given a deadline, run, answered or
  aborted."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.server.impl.access-log :as access-log]
   [thrum.server.impl.body :as body]
   [thrum.server.impl.events :as events]
   [thrum.server.impl.handshake :as handshake]
   [thrum.server.impl.health :as health]
   [thrum.server.impl.input :as input]
   [thrum.server.impl.pace :as pace]
   [thrum.server.impl.request :as request]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.sink :as sink]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.impl.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io IOException InputStream)
   (java.lang System$Logger System$Logger$Level)
   (java.util.concurrent.locks LockSupport)
   (thrum.server.impl.events Events Stream)
   (thrum.server.impl.input Reader)
   (thrum.server.impl.response Head)
   (thrum.server.impl.sink Sink Target)
   (thrum.server.impl.traffic Traffic)))

(set! *warn-on-reflection* true)

(definterface IExchange
  (request [])
  (^Object setRequest [request])
  (^Object start [form])
  (^boolean commit [])                       ; may this thread answer? true once
  (^Object done [^int status ^long bytes])   ; the last byte has been sent
  (^Object upgraded [socket])
  (^Object streaming [events])
  (^Object unbind [])                        ; it became a stream: the deadline is over
  (^boolean unbound [])
  (die [reason])                             ; returns the stage that ended so, nil where there is nothing left to end
  (^boolean leave [])                        ; nothing can end it any more; returns whether somebody had
  (stage [])
  (flaw [])                                  ; the client's: :overlong or :broken, its body; :gone
  (^Object gone [])
  (form [])
  (socket [])
  (permit [])
  (^Object hold [permit])                    ; nil: holds none
  (^Object fail [throwable])
  (^Object answered [])
  (^boolean settled [])                      ; has the client been answered, as far as it will be?
  (facts []))

;; stage: :open until the first byte, :committed, :socket, :done; :dead once somebody else has
;; answered, or cut the connection. :left at the end of all.
(deftype Exchange [^Traffic traffic wire ^Thread thread ^ClassLoader loader ^long arrived
                   ^:unsynchronized-mutable request
                   ^:unsynchronized-mutable form
                   ^:unsynchronized-mutable socket
                   ^:unsynchronized-mutable stage
                   ^:unsynchronized-mutable reading
                   ^:unsynchronized-mutable why
                   ^:volatile-mutable flaw
                   ^:volatile-mutable unbound
                   ^:volatile-mutable settled
                   ^:unsynchronized-mutable permit
                   ^:unsynchronized-mutable ^long status
                   ^:unsynchronized-mutable ^long bytes
                   ^:unsynchronized-mutable throwable]
  IExchange
  (request [_] request)
  (setRequest [_ r] (set! request r))
  (start [this f]
    (locking this
      (set! form f)
      (when (= :dead stage) (t/cancel! f why))))
  (form [this] (locking this form))
  (socket [this] (locking this socket))
  (stage [this] (locking this stage))
  (commit [this]
    (locking this
      (when (= :open stage)
        (set! stage :committed))
      (= :committed stage)))
  (done [this s n]
    (locking this
      (set! status (long s))
      (set! bytes n)
      (when (= :committed stage) (set! stage :done))
      (set! settled true)))
  (upgraded [this s]
    (locking this
      (set! socket s)
      (set! status 101)
      ;; Not over :dead: who has ended it counts on it.
      (when (= :committed stage) (set! stage :socket))))
  (streaming [this events]
    (locking this (set! socket events)))
  (unbind [_] (set! unbound true))
  (unbound [_] unbound)
  (die [this reason]
    (locking this
      (let [was (if (and reading (= :open stage)) :reading stage)]
        (when-not (or (= :dead was) (= :left was) (= :socket was))
          (set! why reason)
          (set! stage :dead))
        (when-not (or (= :dead was) (= :left was)) was))))
  (leave [this]
    (locking this
      (let [was stage]
        (set! stage :left)
        (= :dead was))))
  (permit [_] permit)
  (hold [_ p] (set! permit p))
  (flaw [_] flaw)
  (gone [_] (set! flaw :gone))
  (fail [_ t] (set! throwable t))
  (answered [_]
    (set! settled true)
    (LockSupport/unpark thread))
  (settled [_] settled)
  (facts [this]
    (locking this
      (cond-> {:request request, :status (if (zero? status) nil status), :bytes bytes
               :nanos (- (System/nanoTime) arrived)}
        throwable (assoc :throwable throwable))))

  Reader
  (reading [this]
    (locking this
      (when (or (= :dead stage) (= :done stage) (= :left stage))
        (throw (java.io.IOException. "The request is over")))
      (set! reading true)))
  (read [this] (locking this (set! reading false)))
  (overlong [_] (set! flaw :overlong))
  (broken [_] (when-not flaw (set! flaw :broken))))

(defn- exchange
  [traffic wire]
  (Exchange. traffic
             wire
             (Thread/currentThread)
             (.getContextClassLoader (Thread/currentThread))
             (System/nanoTime)
             nil
             nil
             nil
             :open
             false
             nil
             nil
             false
             false
             nil
             0
             0
             nil))

(defn- option [^Exchange x k]
  (get (traffic/options (.-traffic x)) k))

(defn- tell! [^Exchange x event]
  (traffic/tell! (.-traffic x) event #(.facts x)))

(defn- start!
  "Calls f on a virtual thread of its own, which inherits nothing: what the handler has set on its
  thread is not the observer's."
  [^Exchange x name f]
  (.start (doto (spi/clean-thread name f)
            (.setContextClassLoader (.-loader x)))))

;; Ended by somebody else: the deadline, a drain, the client

(defn- answered!
  "The client has been answered by another thread than the exchange's."
  [^Exchange x]
  (.answered x)
  (traffic/wake! (.-traffic x)))

(defn- cut! [^Exchange x]
  (try
    (engine/abort! (.-wire x))
    (finally (answered! x))))

(defn- answer-instead!
  "Answers 503 from a thread of its own; the exchange's own may never come to it."
  [^Exchange x]
  (let [wire (.-wire x)
        head (response/closing (response/head (response/plain 503 "Retry-After" "1")))
        answer (fn []
                 (try
                   (engine/unwatch! wire)
                   (engine/send! wire 503 (.-headers head) (body/text-bytes "service unavailable" "utf-8"))
                   (.done x 503 0)
                   (catch Throwable _ (engine/abort! wire))
                   (finally (answered! x))))]
    (try
      (start! x "http-answer" answer)
      ;; No thread is to be had: the exchange's own waits for this.
      (catch Throwable _ (cut! x)))))

(def ^:private told
  "What is counted, and which observer is called, for the reason of an end."
  {:thrum/timeout [:timed-out :timeout]
   :slow [:timed-out :timeout]
   :disconnected [:disconnected :disconnect]})

(defn- end-for!
  "Ends what is at this stage: answers where nothing has been sent, cuts the connection otherwise,
  and interrupts the handler. The observer, which may block, comes last."
  [^Exchange x reason stage]
  (let [[counter event] (when-not (= :done stage) (told reason))]
    (traffic/add! (.-traffic x) :overdue 1)
    (when counter (traffic/add! (.-traffic x) counter 1))
    (case stage
      :open (if (#{:disconnected :slow} reason) (cut! x) (answer-instead! x))
      (:reading :committed) (cut! x)
      :done nil)
    (some-> (.form x) (t/cancel! reason))
    (when event (tell! x event))))

(defn end!
  "Ends the exchange for this reason, if it has not ended: 503 where nothing has been sent,
  otherwise the connection is cut. The handler is interrupted, once. Nothing for a websocket."
  [^Exchange x reason]
  (when-some [stage (.die x reason)]
    (when-not (= :socket stage)
      (end-for! x reason stage))))

(defn end-if-slow!
  "Ends the exchange whose client sends or takes too slowly. Not on the thread that looks, which is
  there for all: an observer may block."
  [^Exchange x]
  (when (pace/late? (.-wire x))
    (start! x "http-slow" #(end! x :slow))))

(defn settled?
  "Tells whether the client has been answered, as far as it will be."
  [^Exchange x]
  (.settled x))

;; Streams, when the server stops

(defn stream?
  "Tells whether the exchange is a stream of events or a websocket, and is open."
  [^Exchange x]
  (and (some? (.socket x)) (not (.settled x))))

(defn awaited?
  "Tells whether the end of the server waits for the exchange: for a handler until it ends, for a
  stream's function until its client has been answered."
  [^Exchange x]
  (or (nil? (.socket x)) (not (.settled x))))

(defn- bid-farewell! [^Exchange x stream]
  (if (instance? Events stream)
    (events/end! stream #(t/cancel! (.form x) :shutdown))
    (websocket/close! stream 1001 "Going away")))

(defn end-stream!
  "Ends a stream as its client expects it, on a thread of its own: a websocket is closed with 1001,
  events end with the response, and their function is cancelled. Nothing for what is no stream."
  [^Exchange x]
  (when-some [stream (.socket x)]
    (start! x "http-farewell" #(try (bid-farewell! x stream) (catch IOException _)))))

(defn cut-stream!
  "Cuts the connection of a stream that has not ended, and cancels its function."
  [^Exchange x]
  (let [stream (.socket x)]
    (cond
      (nil? stream) nil
      (instance? Events stream) (end! x :shutdown)
      :else (try
              (websocket/abort! stream)
              (t/cancel! (.form x) :shutdown)
              (finally (answered! x))))))

(defn- time-out!
  "Ends what is not a stream and has not been answered. Not on the alarm's thread, one of the
  platform's: an observer may block."
  [^Exchange x]
  (when-not (or (.unbound x) (= :done (.stage x)))
    (start! x "http-deadline" #(end! x :thrum/timeout))))

;; The response

(defn- commit! [^Exchange x]
  (when-not (.commit x)
    (throw (spi/cancelled "This request" :over)))
  (engine/unwatch! (.-wire x))
  ;; An interrupt that the handler left behind must not end the write; one of ours would have made
  ;; the commit fail.
  (Thread/interrupted))

(deftype Answer [^Exchange x ^Head head]
  Target
  (begin [this length]
    (commit! x)
    (sink/telling this
      (engine/begin! (.-wire x) (.-status head) (.-headers head) (or length -1))))
  (send [this bytes]
    (commit! x)
    (sink/telling this
      (engine/send! (.-wire x) (.-status head) (.-headers head) bytes)))
  (end [this]
    (sink/telling this
      (engine/end! (.-wire x))))
  (gone [_]
    (.gone x)))

(defn- length-without-body
  "Returns the Content-Length that a response without a body states, or nil."
  [^Head head body]
  (let [status (.-status head)]
    (when-not (= 204 status)
      (or (some-> (body/whole body (.-charset head))
                  alength
                  (as-> n (when-not (and (nil? body) (or (.-length head) (= 304 status))) n)))
          (body/known-length body)
          (.-length head)))))

(defn- send-head! [^Exchange x ^Head head body]
  (let [length (length-without-body head body)
        head (if length (response/with-header head "Content-Length" (str length)) head)]
    (body/discard! body)
    (.send (Answer. x head) nil)
    (.done x (.-status head) 0)))

(defn- send-whole! [^Exchange x ^Head head ^bytes body]
  (.send (Answer. x head) body)
  (.done x (.-status head) (alength body)))

(defn- write-body! [^Exchange x ^Head head response]
  (let [length (body/known-length (:body response))
        ^Sink sink (sink/sink (Answer. x head) (or length (.-length head)))]
    (body/write! response length (.-charset head) (sink/stream sink))
    (when (option x :async?) (spi/wait-until sink nil #(.closed sink)))
    (.finish sink)
    (.done x (.-status head) (.written sink))))

;; Permits

(defn- take-permit!
  "Has the exchange hold a permit. Throws ::overload when the limiter has none: a handler's own
  limiter is not meant."
  [^Exchange x limiter]
  (try
    (.hold x (t/acquire! limiter))
    (catch ExceptionInfo e
      (throw (if (= :thrum/rejected (spi/type-of e))
               (ex-info "The server is full" {:type ::overload} e)
               e)))))

;; Streams: they leave :max-concurrent for :max-streams

(defn- release-permit! [^Exchange x]
  (when-some [permit (.permit x)]
    (.hold x nil)
    (t/release! permit)))

(defn- take-streams-permit! [^Exchange x]
  (release-permit! x)
  (take-permit! x (.-streams ^Traffic (.-traffic x))))

(defn- lift-deadline! [^Exchange x]
  (.unbind x)
  (spi/lift-deadline! (.form x)))

(defn- opened!
  "What opens when the others have been ended is ended at once."
  [^Exchange x _]
  (when (= :ending (traffic/state (.-traffic x))) (end-stream! x)))

(defn- stream-events! [^Exchange x ^Head head ^Stream stream]
  (take-streams-permit! x)
  (lift-deadline! x)
  (let [answer (Answer. x head)
        sent (events/stream! stream answer {:opened #(opened! x (.streaming x %))
                                            :elsewhere #(start! x "http-heartbeat" %)
                                            :lost #(end! x :disconnected)})]
    (.end answer)
    (.done x (.-status head) sent)))

(defn- upgrade! [^Exchange x response]
  (let [{:ring.websocket/keys [listener protocol]} response
        inbox (websocket/inbox listener)
        head (response/head (assoc response :status 200))]
    (handshake/check-protocol! (.request x) protocol)
    (take-streams-permit! x)
    (commit! x)
    (engine/upgrade! (.-wire x) (.-headers head) protocol inbox)
    (lift-deadline! x)
    (websocket/attend! inbox #(opened! x (.upgraded x %)))
    (.done x 101 0)))

(defn- closing? [^Exchange x]
  (not= :running (traffic/state (.-traffic x))))

(defn- check-upgrade
  "Returns nil where the request may become a websocket, otherwise what is answered."
  [^Exchange x]
  (handshake/refusal (.request x) (option x :ws-origins)))

(defn- respond-with!
  [^Exchange x response]
  (let [^Head head (cond-> (response/head response)
                     (or (closing? x) (= :broken (.flaw x))) response/closing)
        body (:body response)]
    (cond (response/bodiless? (:request-method (.request x)) (.-status head))
          (send-head! x head body)
          (instance? Stream body) (stream-events! x head body)
          :else (if-some [bytes (body/whole body (.-charset head))]
                  (send-whole! x head bytes)
                  (write-body! x head response)))))

(defn- respond! [^Exchange x response]
  (cond
    (= :overlong (.flaw x)) (respond-with! x (response/plain 413 "Connection" "close"))
    (and (map? response) (:ring.websocket/listener response)) (if-some [refused (check-upgrade x)]
                                                                (respond-with! x refused)
                                                                (upgrade! x response))
    :else (respond-with! x response)))

;; The handler

(definterface ISlot
  (^Object fill [kind value])
  (^boolean filled [])
  (answer []))

;; What an asynchronous handler calls with its answer, or its failure: the first call counts.
(deftype Slot [^Thread thread ^:unsynchronized-mutable kind ^:unsynchronized-mutable value
               ^:volatile-mutable filled]
  ISlot
  (fill [this k v]
    (locking this
      (when-not filled (set! kind k) (set! value v) (set! filled true) (LockSupport/unpark thread))
      nil))
  (filled [_] filled)
  (answer [_]
    (if (= :raised kind)
      (throw (if (instance? Throwable value)
               value
               (ex-info "A handler raised what is no Throwable" {:value (spi/datum value)})))
      value)))

(defn- call-async [handler request]
  (let [slot (Slot. (Thread/currentThread) nil nil false)]
    ;; What it throws after it has answered is not the answer.
    (try
      (handler request #(.fill slot :responded %) #(.fill slot :raised %))
      (catch Throwable t (.fill slot :raised t)))
    (spi/wait-until slot nil #(.filled slot))
    (.answer slot)))

(defn- check-open!
  "Throws where somebody else has answered: what was answered never starts its handler."
  [^Exchange x]
  (when-not (= :open (.stage x))
    (throw (spi/cancelled "This request" :over))))

(defn- overload [^Exchange x]
  (check-open! x)
  (let [answer (option x :on-overload)]
    (traffic/add! (.-traffic x) :shed 1)
    (tell! x :shed)
    (if (int? answer)
      (response/plain answer "Retry-After" "1")
      (answer (.request x)))))

(defn- handle [^Exchange x handler]
  (when-some [limiter (.-limiter ^Traffic (.-traffic x))]
    (take-permit! x limiter))
  (check-open! x)
  (when (option x :interrupt-on-disconnect?)
    (engine/watch! (.-wire x) (fn [] (start! x "http-gone" #(end! x :disconnected)))))
  (if (option x :async?)
    (call-async handler (.request x))
    (handler (.request x))))

(defn- converse!
  "Runs the handler and sends its answer. A full server is not a failure: it is answered here."
  [^Exchange x handler]
  (try
    (respond! x (handle x handler))
    (catch ExceptionInfo e
      (if (= ::overload (spi/type-of e))
        (respond! x (overload x))
        (throw e)))))

;; Failures

(def ^:private ^System$Logger logger (System/getLogger "thrum.server"))

(defn- log!
  "Logs what was thrown; its class alone where it cannot be printed."
  [^Exchange x ^Throwable t]
  (let [{:keys [request-method uri]} (.request x)
        target (access-log/escaped uri)
        sentence (str "A request failed: " (some-> request-method name) " " target)]
    (try
      (.log logger System$Logger$Level/ERROR sentence t)
      (catch Throwable _
        (try
          (.log logger System$Logger$Level/ERROR (str sentence ": " (.getName (class t))))
          (catch Throwable _))))))

(defn- ask-error-handler [^Exchange x t]
  (if-some [f (option x :error-handler)]
    (f (.request x) t)
    (do (log! x t) (response/plain 500))))

(defn- answering?
  "Tells whether the answer is still this thread's matter, and nobody else's."
  [^Exchange x]
  (not= :dead (.stage x)))

(defn- cut-here!
  "Cuts the connection, unless another thread is answering."
  [^Exchange x]
  (when (answering? x) (cut! x)))

(defn- answer-failure! [^Exchange x t]
  (if (.flaw x)
    ;; The client's fault: of an overlong body respond! says so.
    (respond! x (response/plain 400 "Connection" "close"))
    (try
      (respond! x (ask-error-handler x t))
      (catch Throwable other
        (when (answering? x) (log! x other))
        (if (= :open (.stage x))
          (respond! x (response/plain 500))
          (cut-here! x))))))

(defn- count-failure! [^Exchange x]
  (when-not (.flaw x) (traffic/add! (.-traffic x) :failed 1)))

(defn- fail!
  "Answers for what the handler, its body or its forks threw: as far as nobody has answered yet."
  [^Exchange x t]
  (.fail x t)
  (case (.stage x)
    :dead nil
    :open (if (.form x)
            (do (count-failure! x)
                (answer-failure! x t))
            ;; Its deadline had come before it began.
            (end! x :thrum/timeout))
    :committed (if (= :gone (.flaw x))
                 (end! x :disconnected)
                 (do (cut! x)
                     (count-failure! x)
                     (log! x t)))
    (when-not (spi/cancel-reason (.form x)) (log! x t))))

;; From the first line to the last byte

(defn- deadline [^Exchange x]
  (when-some [ms (option x :request-timeout-ms)]
    (spi/deadline-in ms)))

(defn- fail-safely! [^Exchange x t]
  (try
    (fail! x t)
    (catch Throwable _ (cut-here! x))))

(defn- serve-in!
  "Tells the observer, runs the handler and answers for what it throws: all of it within the form's
  deadline."
  [^Exchange x handler form]
  (try
    (.start x form)
    (tell! x :start)
    (converse! x handler)
    (catch Throwable t (fail-safely! x t))))

(defn- run-handler!
  [^Exchange x handler]
  (try
    (spi/call-in-scope {:name "request", :deadline (deadline x), :on-deadline #(time-out! x)}
      #(serve-in! x handler %))
    ;; Its deadline had come before it began, or what it forked has failed.
    (catch Throwable t (fail-safely! x t))))

(defn- answer-here!
  "Answers outside the request's form, where no handler is asked."
  [^Exchange x response]
  (try
    (respond-with! x response)
    (catch Throwable _ (cut! x))))

(defn- refuse! [^Exchange x status & {:as headers}]
  (answer-here! x (response/plain status (merge {"Connection" "close"} headers))))

(defn- body-of [^Exchange x]
  (if-some [in (engine/body (.-wire x))]
    (input/guarded in x (option x :max-body-bytes))
    (InputStream/nullInputStream)))

(defn- too-long? [^Exchange x]
  (let [most (option x :max-body-bytes)
        length (:content-length (.request x))]
    (and most length (< (long most) (long length)))))

(defn- health-answer [^Exchange x]
  (when-some [paths (option x :health)]
    (health/answer paths (.request x) (not (closing? x)))))

(defn- accept!
  "Runs the handler, unless the request is a probe, or is refused before."
  [^Exchange x handler]
  (let [probed (health-answer x)]
    (cond
      probed (answer-here! x probed)
      (#{:closing :ending :stopped} (traffic/state (.-traffic x))) (refuse! x 503 "Retry-After" "1")
      (too-long? x) (refuse! x 413)
      :else (run-handler! x handler))))

(defn- as-asked
  "Returns the request as its client made it."
  [^Exchange x request]
  (if-some [f (option x :as-asked)] (f request) request))

(defn- receive!
  "Reads the request. Returns whether it is one that can be handled; what is not has been answered."
  [^Exchange x]
  (try
    (.setRequest x
                 (as-asked x
                           (request/->request (.-wire x) (body-of x) (option x :max-header-bytes))))
    true
    (catch ExceptionInfo e
      (.setRequest x (request/told (.-wire x)))
      (refuse! x (:status (ex-data e) 400))
      false)
    (catch Throwable t
      (.setRequest x (request/told (.-wire x)))
      (.fail x t)
      (log! x t)
      (refuse! x 500)
      false)))

(defn- await-answer!
  "Waits for who answers in this thread's place: the engine takes the connection back when this one
  returns."
  [^Exchange x]
  (when (= :dead (.stage x))
    (while (not (.settled x))
      (LockSupport/park x)
      ;; With the flag set park returns at once; nobody else is to hear of that interrupt.
      (Thread/interrupted))))

(defn- leave! [^Exchange x]
  (when (.leave x) (traffic/add! (.-traffic x) :overdue -1))
  (release-permit! x)
  (.answered x)
  (traffic/add! (.-traffic x) :served 1)
  (tell! x :end)
  (traffic/leave! (.-traffic x) x))

(defn serve!
  "Serves one request on the calling thread, a fresh virtual one. Returns when its last byte has
  been sent, or its connection cut, and all that its handler forked has ended."
  [traffic handler wire]
  (let [x (exchange traffic wire)]
    (traffic/enter! traffic x)
    (try
      (when (receive! x) (accept! x handler))
      (await-answer! x)
      (finally (leave! x)))))

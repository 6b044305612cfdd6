(ns thrum.server.impl.answer
  "Three ways to send a response: head only, whole, written out. Each throws where another thread
  has answered already. thrum.server.impl.respond chooses the way."
  {:no-doc true}
  (:require
   [thrum.server.impl.body :as body]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.sink :as sink]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.util.concurrent.locks LockSupport)
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.response Head)))

(set! *warn-on-reflection* true)

(defn commit!
  "From now on this thread answers. event: :commit or :stream. Throws CancellationException where
  another has answered."
  [^Exchange x event]
  (exchange/proceed! x event)
  (engine/unwatch! (.-wire x))
  ;; An interrupt that the handler left behind must not end the write. Of ours there is none: it
  ;; would have made the commit fail.
  (Thread/interrupted))

(defn- check-there!
  "Throws IOException where a write has failed before: what writes a body may have swallowed that,
  and an engine may not notice again."
  [x]
  (when (identical? :gone (exchange/flaw x)) (throw (IOException. "The client has gone"))))

;; event: as for commit!.
(deftype Answer [^Exchange x ^Head head event]
  sink/Target
  (begin! [this length]
    (check-there! x)
    (commit! x event)
    (sink/reporting this
      (engine/begin! (.-wire x) (.-status head) (.-headers head) (or length -1))))
  (send! [this bytes]
    (check-there! x)
    (commit! x event)
    (sink/reporting this
      (engine/send! (.-wire x) (.-status head) (.-headers head) bytes)))
  (end! [this]
    (check-there! x)
    (sink/reporting this
      (engine/end! (.-wire x))))
  ;; The exchange's thread may wait for another to close the body, which may not close one that it
  ;; could not write.
  (gone! [_]
    (.setFlaw x :gone)
    (LockSupport/unpark (.-thread x))))

(defn answer
  "Returns the target of a response with this head; event: as for commit!."
  [x head event]
  (Answer. x head event))

(defn- whole-length
  "Returns how many bytes a body has that is at hand, nil for any other."
  [body ^Head head]
  (some-> (body/whole body (.-charset head)) alength))

(defn- length-without-body
  "Returns the Content-Length that a response without a body states, or nil."
  [^Head head body]
  (cond
    (= 204 (.-status head)) nil
    ;; The client would wait for a body of the length that is stated.
    (= 205 (.-status head)) 0
    (nil? body) (or (.-length head) (when-not (= 304 (.-status head)) 0))
    :else (or (whole-length body head) (body/known-length body) (.-length head))))

(defn send-head!
  "Sends a response whose body the client does not get; closes the body. A HEAD fails where a GET
  would."
  [x ^Head head body]
  (when (identical? :head (:request-method (exchange/request x))) (body/check-there! body))
  (let [length (length-without-body head body)
        head (if length (response/with-header head "Content-Length" (str length)) head)]
    (body/discard! body)
    (sink/send! (answer x head :commit) nil)
    (exchange/finish! x (.-status head) 0)))

(defn send-whole!
  "Sends a response whose body is at hand."
  [x ^Head head ^bytes body]
  (sink/send! (answer x head :commit) body)
  (exchange/finish! x (.-status head) (alength body)))

(defn write-body!
  "Sends a response whose body has to be written out."
  [x ^Head head response]
  (let [length (body/known-length (:body response))
        sink (sink/sink (answer x head :commit) (or length (.-length head)))]
    (body/write! response length (.-charset head) (sink/stream sink))
    (when (.-async? (exchange/settings x))
      (spi/wait-until sink nil #(or (sink/closed? sink) (identical? :gone (exchange/flaw x)))))
    (sink/finish! sink)
    (exchange/finish! x (.-status head) (sink/written sink))))

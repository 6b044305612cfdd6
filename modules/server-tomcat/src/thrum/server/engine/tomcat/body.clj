(ns thrum.server.engine.tomcat.body
  "The streams of a request's and a response's body, over Tomcat's buffers."
  (:require
   [thrum.server.engine.tomcat.request :as request]
   [thrum.server.engine.tomcat.turns :as turns]
   [thrum.server.spi.byte-stream :as byte-stream])
  (:import
   (java.io BufferedOutputStream EOFException IOException InputStream OutputStream)
   (java.nio ByteBuffer)
   (org.apache.coyote ActionCode BadRequestException Request Response)
   (org.apache.tomcat.util.net ApplicationBufferHandler)))

(set! *warn-on-reflection* true)

(defn- chunk-reader
  "Returns what Tomcat gives a piece of the body to."
  ^ApplicationBufferHandler [piece]
  (reify ApplicationBufferHandler
    (setByteBuffer [_ buffer] (vreset! piece buffer))
    (getByteBuffer [_] @piece)
    (expand [_ _])))

(defn- taken
  "Moves what there is of the piece, at most n bytes, to bytes; returns how many."
  [^ByteBuffer piece bytes offset n]
  (let [n (min (long n) (.remaining piece))]
    (.get piece ^bytes bytes (int offset) (int n))
    n))

(defn- answerable?
  "True if the body is broken, or was cut off, but its client may still take a response."
  [e shared]
  (and (not shared) (or (instance? BadRequestException e) (instance? EOFException e))))

(defn input
  "Returns the stream of the request's body; shared: whether its connection is of HTTP/2. What a
  read throws ends the exchange, except where the client can be answered with 400."
  ^InputStream [wire ^Request request shared]
  (let [piece (volatile! (ByteBuffer/allocate 0))
        read (volatile! 0)
        handler (chunk-reader piece)
        there? #(do
                  (.action request ActionCode/AVAILABLE false)
                  (pos? (.getAvailable request)))
        next-piece #(let [n (.doRead request handler)]
                      (if (neg? n)
                        (when (or (turns/over? wire) (request/cut-off? request shared @read))
                          (throw (EOFException. "The body was cut off")))
                        (vswap! read + n))
                      n)
        ;; Nothing is read behind what is broken: Tomcat would.
        fill #(or (.getErrorException request)
                  (try
                    (next-piece)
                    (catch IOException e
                      (when-not (answerable? e shared) (throw e))
                      (.setErrorException request e)
                      e)))
        read!
        (fn [bytes offset n]
          (cond (.hasRemaining ^ByteBuffer @piece)
                (turns/inside [wire] (taken @piece bytes offset n))
                :else (let [got (if (and (not shared) (turns/inside [wire] (there?)))
                                  (turns/inside [wire] (fill))
                                  (turns/waiting [wire] (fill)))]
                        (cond (instance? IOException got) (throw got)
                              (neg? (long got)) -1
                              :else (recur bytes offset n)))))]
    (byte-stream/input read! #(.remaining ^ByteBuffer @piece))))

(def ^:private ^:const buffered
  "How many bytes are held before they are written."
  16384)

(defn- flush!
  "Sends what is held. Throws IOException where the client has gone, which Tomcat keeps to itself."
  [^Response response]
  (.action response ActionCode/CLIENT_FLUSH nil)
  (when-some [e (.getErrorException response)]
    (throw (IOException. "The client has gone" e))))

(defn- pieces
  "Returns a stream that writes each piece that it gets."
  ^OutputStream [wire ^Response response]
  (proxy [OutputStream] []
    (write [bytes offset n]
      (turns/waiting [wire] (.doWrite response (ByteBuffer/wrap bytes offset n))))
    (flush []
      (turns/waiting [wire] (flush! response)))))

(defn output
  "Returns the stream of a response's body, which is written in pieces."
  ^OutputStream [wire response]
  (BufferedOutputStream. (pieces wire response) buffered))

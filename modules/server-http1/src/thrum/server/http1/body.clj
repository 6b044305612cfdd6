(ns thrum.server.http1.body
  "A request's body, chunked or of a Content-Length, received while the handler reads it (RFC 9112,
  6 and 7)."
  (:require
   [thrum.server.http1.input :as input]
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.server.spi.http :as http])
  (:import
   (java.io IOException InputStream)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(defn- broken ^IOException [why]
  (IOException. (str "The request's body is broken: " why)))

;; Chunks

(defn- line
  "Returns the next line, which may have so many characters."
  ^String [in most]
  (let [text (StringBuilder.)]
    (loop []
      (let [b (input/next-byte! in)]
        (case b
          13 (if (= 10 (input/next-byte! in)) (str text) (throw (broken "a CR without its LF")))
          10 (throw (broken "an LF without its CR"))
          (if (= (.length text) (long most))
            (throw (broken "a line is too long"))
            (do (.append text (char b))
                (recur))))))))

(defn- end-of-chunk! [in]
  (when-not (and (= 13 (input/next-byte! in)) (= 10 (input/next-byte! in)))
    (throw (broken "a chunk does not end at its size"))))

(def ^:private ^:const most-in-a-size 1024)

(def ^:private size-line #"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

(defn- chunk-size ^long [in]
  (if-some [[_ digits] (re-matches size-line (line in most-in-a-size))]
    (Long/parseLong digits 16)
    (throw (broken "a chunk has no size"))))

(defn- field?
  "True if the line is a header's: a token, a colon, a value without control characters."
  [^String line]
  (let [colon (.indexOf line ":")]
    (and (pos? colon)
         (http/token? (subs line 0 colon))
         (http/clean? (subs line (inc colon))))))

(def ^:private ^:const line-end 2)

(defn- skip-trailers!
  "Reads trailers up to the empty line, and forgets them; all of them may have so many bytes. A line
  that is not a valid trailer is rejected: another server could take it for a request."
  [in most]
  (loop [left (long most)]
    (let [trailer (line in (max 0 left))]
      (when-not (= "" trailer)
        (when-not (field? trailer) (throw (broken "a trailer is no header")))
        (recur (- left (+ (.length trailer) line-end)))))))

;; The body

;; No protocol: take is called for every read of a body, with primitives, see decision 32.
(definterface IBody
  (^Object state [])
  (^long left [])                   ; how many bytes of it are known to be unread
  (^long take [^bytes to ^long offset ^long most])) ; as InputStream's read

(defn- next-chunk!
  "Returns the next chunk's size, 0 behind the last; left: of the chunk before, -1 where none was."
  ^long [in ^long left most-trailers]
  (when (zero? left) (end-of-chunk! in))
  (let [size (chunk-size in)]
    (when (zero? size) (skip-trailers! in most-trailers))
    size))

;; left: of the body, or of the chunk; -1 before the first one. state: :new, :begun, :ended, or
;; :flawed while a thread takes, and when a take has thrown: where the body ends is not known then.
;; So where two threads take at once, the second throws: a handler may have left one that still
;; reads when its answer has been sent, and the rest is skipped.
(deftype Body [in chunked ask done most-trailers ^:volatile-mutable ^long left
               ^AtomicReference state]
  IBody
  (state [_] (.get state))
  (left [_] (if (= :ended (.get state)) 0 left))
  (take [_ to offset most]
    (let [before (.get state)]
      (cond
        (= :ended before) -1

        (or (= :flawed before) (not (.compareAndSet state before :flawed)))
        (throw (broken "it cannot be read on"))

        :else
        (do
          (when (= :new before) (ask))
          (when (and chunked (<= left 0)) (set! left (next-chunk! in left most-trailers)))
          (let [n (if (zero? left) -1 (input/take! in to offset (min most left)))
                ended? (if chunked (neg? n) (= n left))]
            (set! left (- left n))
            (.set state (if ended? :ended :begun))
            (when ended? (done))
            n))))))

(defn body
  "Returns the body that is next in the input, of this length, or :chunked. ask: called before the
  first byte is waited for; done: called behind the last one; most-trailers: in bytes."
  ^Body [in length {:keys [ask done most-trailers]}]
  (let [chunked? (= :chunked length)]
    (Body. in chunked? ask done most-trailers (if chunked? -1 length) (AtomicReference. :new))))

(defn begun?
  "True if the client was asked for the body."
  [^Body body]
  (not= :new (.state body)))

(defn ended?
  "True if the body was read to its end."
  [^Body body]
  (= :ended (.state body)))

(defn stream
  "Returns the body as a stream. A read throws IOException where the body breaks off, or its client
  falls silent."
  ^InputStream [^Body body]
  (byte-stream/input (fn [to offset n] (.take body to offset n))))

(def ^:private ^:const most-unread
  "How much of a body that was not read is read to keep the connection."
  65536)

(defn too-long?
  "True if more of the body is unread than skip-rest! reads, as far as that is known: not where the
  body is in chunks."
  [^Body body]
  (< most-unread (.left body)))

(defn skip-rest!
  "Reads what is left of the body, until then, of System/nanoTime, at the latest. Returns whether
  that was little enough to keep the connection."
  [^Body body until]
  (let [nowhere (byte-array 8192)]
    (try
      (input/limit-body! (.-in body) until)
      (loop [left most-unread]
        (cond
          (ended? body) true
          (pos? left) (recur (- left (.take body nowhere 0 8192)))
          :else false))
      (catch IOException _ false)
      (finally (input/limit-body! (.-in body) nil)))))

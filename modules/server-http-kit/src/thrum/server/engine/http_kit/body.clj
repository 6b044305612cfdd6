(ns thrum.server.engine.http-kit.body
  "A request's body, read from the socket while the handler reads it (RFC 9112, 6 and 7)."
  (:require
   [thrum.server.engine.http-kit.connection :as connection])
  (:import
   (java.io IOException InputStream)
   (java.nio ByteBuffer)
   (thrum.server.engine.http_kit.connection Connection)))

(set! *warn-on-reflection* true)

(definterface ISource
  (^long next [])                                       ; the next byte
  (^long most [^bytes to ^long offset ^long n])         ; how many bytes were read, at least one
  (^Object fill [])                                     ; waits until something has been read
  (^java.nio.ByteBuffer rest []))                       ; what has been read and not been taken

;; ahead: ready to be read from. invite: called before the socket is read for the first time.
(deftype Source [^Connection connection ^:unsynchronized-mutable ^ByteBuffer ahead
                 ^:unsynchronized-mutable invite]
  ISource
  (next [this] (.fill this) (bit-and 0xff (.get ahead)))
  (most [this to offset n]
    (.fill this)
    (let [n (min n (.remaining ahead))]
      (.get ahead to (int offset) (int n))
      n))
  (fill [_]
    (when-not (.hasRemaining ahead)
      (when invite (invite) (set! invite nil))
      (when (< (.capacity ahead) 8192) (set! ahead (ByteBuffer/allocate 8192)))
      (connection/read! connection (.clear ahead))
      (.flip ahead)))
  (rest [_] ahead))

(defn- broken [what]
  (IOException. (str "The request's body is broken: " what)))

;; Chunks

(defn- line
  "Returns the next line, which may have so many characters."
  ^String [^ISource source most]
  (let [text (StringBuilder.)]
    (loop [b (.next source)]
      (cond
        (= 13 b) (if (= 10 (.next source)) (str text) (throw (broken "a CR without LF")))
        (= 10 b) (throw (broken "an LF without CR"))
        (= (.length text) (long most)) (throw (broken "a line is too long"))
        :else (do (.append text (char b))
                  (recur (.next source)))))))

(defn- chunk-size ^long [text]
  (let [[_ digits] (or (re-matches #"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?" text)
                       (throw (broken "no size of a chunk")))]
    (Long/parseLong digits 16)))

(def ^:private most-in-a-size 1024)

(defn- skip-trailers! [source most]
  (loop [left (long most)]
    (let [n (count (line source left))]
      (when (pos? n) (recur (- left n))))))

(definterface IBody
  (^long take [^bytes to ^long offset ^long most])      ; as InputStream's read
  (^long takeNext [^bytes to ^long offset ^long most])
  (^boolean ended [])
  (^boolean begun []))

;; left: of the body, or of the chunk; -1 before the first chunk. finish: called once, with what has
;; been read beyond the body. flawed: whether a take has thrown: where the body goes on after that,
;; and so where it ends, nobody knows.
(deftype Body [^ISource source chunked most-trailers finish ^:volatile-mutable ^long left
               ^:volatile-mutable begun ^:volatile-mutable ended ^:volatile-mutable flawed]
  IBody
  (ended [_] (boolean ended))
  (begun [_] (boolean begun))
  (take [this to offset most]
    (when flawed (throw (broken "it cannot be read on")))
    (set! flawed true)
    (let [n (.takeNext this to offset most)]
      (set! flawed false)
      n))
  (takeNext [_ to offset most]
    (set! begun true)
    (when (and chunked (not ended) (<= left 0))
      (when (and (zero? left) (not= "" (line source 0))) (throw (broken "a chunk does not end")))
      (set! left (chunk-size (line source most-in-a-size)))
      (when (zero? left) (skip-trailers! source most-trailers) (set! ended true) (finish)))
    (if ended
      -1
      (let [n (.most source to offset (min most left))]
        (set! left (- left n))
        (when (and (zero? left) (not chunked)) (set! ended true) (finish))
        n))))

(defn body
  "Returns the body that follows a head: length, or :chunked. ahead: what was read of it already,
  ready to be read from; invite: called before the client is waited for; finish: called at its end
  with what follows it."
  ^Body [connection ahead length {:keys [invite finish most-trailers]}]
  (let [source (Source. connection ahead invite)]
    (Body. source
           (= :chunked length)
           most-trailers
           #(finish (.rest source))
           (if (= :chunked length) -1 length)
           false
           false
           false)))

(defn stream
  "Returns the body as a stream. A read throws IOException where the body breaks off, or its client
  falls silent."
  ^InputStream [^IBody body]
  (proxy [InputStream] []
    (read
      ([] (let [one (byte-array 1)]
            (if (neg? (.take body one 0 1)) -1 (bit-and 0xff (aget one 0)))))
      ([to] (.take body to 0 (alength ^bytes to)))
      ([to offset n] (if (zero? (long n)) 0 (.take body to offset n))))
    (close [])))

(def ^:private most-unread
  "How much of a body that nobody has read is read to keep the connection."
  65536)

(defn skip-rest!
  "Reads what is left of the body. Returns whether that was little enough to keep the connection."
  [^IBody body]
  (let [buffer (byte-array 8192)]
    (try
      (loop [left (long most-unread)]
        (cond
          (.ended body) true
          (pos? left) (recur (- left (.take body buffer 0 8192)))
          :else false))
      (catch IOException _ false))))

(ns thrum.server.engine.helidon.body
  "A request's body, read while the handler reads it (RFC 9112, 6 and 7). Helidon's own reader holds
  a chunk as a whole, whatever its size, refuses extensions and trailers, and does not look at what
  ends a chunk."
  (:require
   [thrum.server.spi.http :as http])
  (:import
   (java.io IOException InputStream)
   (thrum.server.engine.helidon.input Input)))

(set! *warn-on-reflection* true)

(definterface IBody
  (^long take [^bytes to ^long offset ^long most])      ; as InputStream's read
  (^long takeNext [^bytes to ^long offset ^long most])
  (^boolean ended [])
  (^boolean begun []))

(defn- broken ^IOException [what]
  (IOException. (str "The request's body is broken: " what)))

(defn- line
  "Returns the next line, which may have so many characters."
  ^String [^Input in most]
  (let [text (StringBuilder.)]
    (loop []
      (let [b (.next in)]
        (case b
          13 (if (= 10 (.next in)) (str text) (throw (broken "a CR without its LF")))
          10 (throw (broken "an LF without its CR"))
          (if (= (.length text) (long most))
            (throw (broken "a line is too long"))
            (do (.append text (char b))
                (recur))))))))

(def ^:private ^:const most-in-a-size 1024)

(defn- chunk-size
  ^long [in]
  (let [[_ digits] (re-matches #"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?"
                               (line in most-in-a-size))]
    (if digits (Long/parseLong digits 16) (throw (broken "a chunk has no size")))))

(defn- field?
  "Tells whether the line is a header's: a token, a colon, and a value without control characters."
  [^String line]
  (let [colon (.indexOf line ":")]
    (and (pos? colon)
         (http/token? (subs line 0 colon))
         (http/clean? (subs line (inc colon))))))

(def ^:private ^:const line-end 2)

(defn- skip-trailers!
  "Reads trailers up to the empty line, and forgets them; all of them may have so many bytes. A line
  that is none might be a request to whoever else reads it."
  [in most]
  (loop [left (long most)]
    (let [trailer (line in (max 0 left))]
      (when-not (= "" trailer)
        (when-not (field? trailer) (throw (broken "a trailer is no header")))
        (recur (- left (+ (.length trailer) line-end)))))))

;; left: of the body, or of the chunk; -1 before the first one. ask: called before the first byte is
;; waited for. flawed: whether a take has thrown: where the body goes on after that, and so where it
;; ends, nobody knows.
(deftype Body [^Input in chunked most-trailers ask ^:volatile-mutable ^long left
               ^:volatile-mutable begun ^:volatile-mutable ended ^:volatile-mutable flawed]
  IBody
  (begun [_] (boolean begun))
  (ended [_] (boolean ended))
  (take [this to offset most]
    (when flawed (throw (broken "it cannot be read on")))
    (set! flawed true)
    (let [n (.takeNext this to offset most)]
      (set! flawed false)
      n))
  (takeNext [_ to offset most]
    (when-not begun (set! begun true) (ask))
    (when (and chunked (not ended) (<= left 0))
      (when (and (zero? left) (not= "" (line in 0))) (throw (broken "a chunk does not end")))
      (set! left (chunk-size in))
      (when (zero? left) (skip-trailers! in most-trailers) (set! ended true)))
    (if ended
      -1
      (let [n (.most in to offset (min most left))]
        (set! left (- left n))
        (when (and (zero? left) (not chunked)) (set! ended true))
        n))))

(defn body
  "Returns the body that is next in the input, of this length, or :chunked."
  ^Body [in length {:keys [ask most-trailers]}]
  (Body. in
         (= :chunked length)
         most-trailers
         ask
         (if (= :chunked length) -1 length)
         false
         false
         false))

(defn stream
  "Returns the body as a stream. A read throws IOException where the body breaks off, or its client
  falls silent."
  ^InputStream [^Body body]
  (proxy [InputStream] []
    (read
      ([] (let [one (byte-array 1)]
            (if (neg? (.take body one 0 1)) -1 (bit-and 0xff (aget one 0)))))
      ([to] (.take body to 0 (alength ^bytes to)))
      ([to offset n] (if (zero? (long n)) 0 (.take body to offset n))))
    (close [])))

(def ^:private ^:const most-unread
  "How much of a body that nobody has read is read to keep the connection."
  65536)

(defn skip-rest!
  "Reads what is left of the body. Returns whether that was little enough to keep the connection."
  [^Body body]
  (let [nowhere (byte-array 8192)]
    (try
      (loop [left most-unread]
        (cond
          (.ended body) true
          (pos? left) (recur (- left (.take body nowhere 0 8192)))
          :else false))
      (catch IOException _ false))))

(ns thrum.server.impl.body
  "How a response's body (a request's is thrum.server.impl.input) becomes bytes: through Ring's
  StreamableResponseBody where Ring is there, with the same meaning where it is not."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.io Closeable File FileInputStream FileNotFoundException InputStream OutputStream)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

(defn- loaded
  "Returns the var, or nil where its namespace is not on the classpath. What fails for another
  reason is thrown."
  [sym]
  (try
    (requiring-resolve sym)
    (catch java.io.FileNotFoundException _ nil)))

;; Decided when this namespace is loaded, so that compiling ahead of time does not freeze it.
(def ^:private ring-write
  (loaded 'ring.core.protocols/write-body-to-stream))

(defn text-bytes
  "Returns the bytes of a string in this charset."
  ^bytes [^String s ^String charset]
  ;; A charset that is named is looked up.
  (if (identical? "utf-8" charset)
    (.getBytes s StandardCharsets/UTF_8)
    (.getBytes s charset)))

(defn whole
  "Returns the bytes of a body that is at hand, nil for one that has to be written out: String,
  byte[] and nil are."
  ^bytes [body charset]
  (cond
    (string? body) (text-bytes body charset)
    (nil? body) (byte-array 0)
    (bytes? body) body
    :else nil))

(defn known-length
  "Returns how many bytes the body has, or nil where that is not known before it is written: a File
  of length 0 may be no plain file, but a FIFO, or one of /proc."
  [body]
  (when (instance? File body)
    (let [length (.length ^File body)]
      (when (pos? length) length))))

(defn- copy!
  "Writes what there is to read, at most length bytes, in pieces of so many."
  [^InputStream in ^long length ^long piece ^OutputStream out]
  (let [buffer (byte-array (max 1 (min length piece)))]
    (loop [left length]
      (let [n (long (if (pos? left) (.read in buffer 0 (min left (alength buffer))) -1))]
        (when-not (neg? n)
          (.write out buffer 0 n)
          (recur (- left n)))))))

(defn- transfer!
  "Writes all that there is to read. ByteArrayInputStream's transferTo writes inside synchronized,
  also where another stream calls it: where that pins, a client that is slow to read would keep a
  carrier."
  [^InputStream in out]
  (if (spi/monitors-pin?)
    (copy! in Long/MAX_VALUE 16384 out)
    (.transferTo in out)))

(defn- write-element! [^OutputStream out x charset]
  (.write out (text-bytes (str x) charset))
  (.flush out))

(defn- write-all!
  [body charset ^OutputStream out]
  (cond (seq? body) (run! #(write-element! out % charset) body)
        (instance? InputStream body) (with-open [in ^InputStream body] (transfer! in out))
        :else (throw (ex-info (str "A response's :body cannot be a " (.getName (class body)))
                              {:type :thrum/response})))
  (.close out))

(defn- write-file!
  "Writes the first length bytes of the file: it may have grown since its length was announced."
  [file ^long length ^OutputStream out]
  (with-open [in (FileInputStream. ^File file)]
    (copy! in length 65536 out))
  (.close out))

(defn write!
  "Writes the body to the stream, and closes the stream when the body is whole; not when it fails,
  so that no client takes a part for the whole. A seq is flushed element by element. response: as
  the handler gave it; length: the known one of its body, beyond which nothing is written. In an
  async handler Ring's own implementations may return first, and close later."
  [{:keys [body] :as response} length charset ^OutputStream out]
  (cond
    (instance? File body) (write-file! body (or length Long/MAX_VALUE) out)
    ring-write (ring-write body response out)
    :else (write-all! body charset out)))

(defn check-there!
  "Throws FileNotFoundException for a File that cannot be read. Opens none: a FIFO's might not come
  back."
  [body]
  (when (instance? File body)
    (let [^File file body]
      (when (or (.isDirectory file) (not (.canRead file)))
        (throw (FileNotFoundException. (str file)))))))

(defn discard!
  "Closes a body that will not be read, without realising it."
  [body]
  (when (instance? Closeable body)
    (.close ^Closeable body)))

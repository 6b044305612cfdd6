(ns thrum.server.tck.wire
  "A client that sends bytes, reads one response by its framing and returns how it ended.

  Text is one byte per char (ISO-8859-1). A response is a map of :status, :version, :headers
  (lower-case name -> vector of values), :framing (:none, :length, :chunked or :close), :chunks,
  :body and :ended: :whole where the framing says so, :eof for a clean end of the connection,
  :reset, :silent when nothing came for the client's patience, :garbage with :found for what is not
  HTTP. Complete means :eof for :framing :close, and :whole for every other framing."
  (:refer-clojure :exclude [chunk get])
  (:require
   [clojure.string :as str])
  (:import
   (java.io BufferedInputStream ByteArrayOutputStream IOException InputStream OutputStream)
   (java.net InetAddress InetSocketAddress Socket SocketTimeoutException)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

(def patience-ms
  "How long a client waits for the next byte."
  6000)

(def quiet-ms
  "How long a case looks for what must not come."
  200)

;; Connections

(defn client
  "Returns a client of a connected socket."
  [^Socket socket]
  (.setSoTimeout socket patience-ms)
  {:socket socket
   :in (BufferedInputStream. (.getInputStream socket))
   :out (.getOutputStream socket)
   ;; Whether the line end behind a chunk has not been read yet.
   :in-chunk (atom false)})

(defn connect
  "Returns a client connected to the port on the loopback address; throws IOException."
  [port]
  (let [socket (doto (Socket.) (.setTcpNoDelay true))]
    (.connect socket
              (InetSocketAddress. (InetAddress/getByName "127.0.0.1") (int port))
              (int patience-ms))
    (client socket)))

(defn close!
  "Closes the connection, with a FIN."
  [{:keys [^Socket socket]}]
  (.close socket))

(defn reset!!
  "Closes the connection, with a RST."
  [{:keys [^Socket socket]}]
  (.setSoLinger socket true 0)
  (.close socket))

(defn finish!
  "Sends a FIN; what the server says can still be read."
  [{:keys [^Socket socket]}]
  (.shutdownOutput socket))

(defn bytes-of
  "Returns the bytes of text, or x if it is bytes."
  ^bytes [x]
  (if (string? x) (String/.getBytes x StandardCharsets/ISO_8859_1) x))

(defn text-of
  "Returns the text of bytes."
  ^String [^bytes bs]
  (String. bs StandardCharsets/ISO_8859_1))

(defn send!
  "Sends texts or bytes at once; returns the client. Throws IOException."
  [{:keys [^OutputStream out] :as client} & parts]
  (let [all (ByteArrayOutputStream.)]
    (run! #(.writeBytes all (bytes-of %)) parts)
    (.write out (.toByteArray all))
    (.flush out)
    client))

(defn try-send!
  "Sends; returns whether the server's side still took it."
  [client & parts]
  (try (apply send! client parts) true (catch IOException _ false)))

(defn hit!
  "Connects from this port of the client's, 0 for any, sends the text and closes with a RST; returns
  the port. What the server's side does not take is ignored."
  [port from text]
  (let [socket (doto (Socket.) (.setReuseAddress true) (.setSoLinger true 0))]
    (try
      (.bind socket (InetSocketAddress. (InetAddress/getByName "127.0.0.1") (int from)))
      (.connect socket (InetSocketAddress. (InetAddress/getByName "127.0.0.1") (int port)) 300)
      (.write (.getOutputStream socket) (bytes-of text))
      (.getLocalPort socket)
      (catch IOException _ (max (int from) (.getLocalPort socket)))
      (finally (.close socket)))))

;; Requests

(defn- lines [& parts]
  (str (str/join "\r\n" (remove nil? (flatten parts))) "\r\n\r\n"))

(defn head-of
  "Returns the text of a request's line and headers, Host among them."
  [method target & headers]
  (lines (str method " " target " HTTP/1.1") "Host: localhost" headers))

(defn get
  "Returns the text of a GET."
  [target & headers]
  (apply head-of "GET" target headers))

(defn post
  "Returns the text of a POST with this body."
  [target body & headers]
  (str (apply head-of "POST" target (str "Content-Length: " (count body)) headers) body))

(defn chunked
  "Returns the text of a POST with these chunks."
  [target & chunks]
  (str (head-of "POST" target "Transfer-Encoding: chunked")
       (str/join (map #(str (Long/toHexString (count %)) "\r\n" % "\r\n") chunks))
       "0\r\n\r\n"))

;; Reading: what breaks off a response is thrown as data and caught by the one who reads it

(defn- break-off [ended found]
  (throw (ex-info (str "The response ended: " ended) {::ended ended, :found found})))

(defn- reading
  "Returns what (read!) does, a read of a stream; breaks off where that fails, and at the end."
  ^long [read!]
  (let [n (long (try (read!)
                     (catch SocketTimeoutException _ (break-off :silent nil))
                     (catch IOException e (break-off :reset (str e)))))]
    (if (neg? n) (break-off :eof nil) n)))

(defn- read-byte
  "Returns the next byte, or breaks off."
  [{:keys [^InputStream in]}]
  (reading #(.read in)))

(defn- read-line-of
  "Returns the next line, which must end with CR LF."
  [client]
  (let [line (StringBuilder.)]
    (loop [b (long (read-byte client))]
      (case b
        13 (if (= 10 (read-byte client)) (str line) (break-off :garbage (str line)))
        10 (break-off :garbage (str line))
        (do (when (< 100000 (.length line)) (break-off :garbage "an endless line"))
            (.append line (char b))
            (recur (long (read-byte client))))))))

(defn- status-line [client]
  (let [line (read-line-of client)
        [_ version status] (re-matches #"(HTTP/1\.[01]) (\d{3})(?: .*)?" line)]
    (when-not version (break-off :garbage line))
    {:version version, :status (parse-long status), :line line}))

(def ^:private header-line #"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")

(defn- headers-of [client]
  (loop [headers {}]
    (let [line (read-line-of client)
          [_ name value] (re-matches header-line line)]
      (cond
        (= "" line) headers
        name (recur (update headers (str/lower-case name) (fnil conj []) value))
        :else (break-off :garbage line)))))

(defn- framing-of
  "Returns :none, :chunked, :length or :close; breaks off where two readers could differ."
  [method {:keys [status] {codings "transfer-encoding", lengths "content-length"} :headers}]
  (cond
    (and codings lengths) (break-off :garbage "a Content-Length beside a Transfer-Encoding")
    (and codings (not= ["chunked"] codings)) (break-off :garbage codings)
    (and lengths (not (re-matches #"\d+" (str/join "," lengths)))) (break-off :garbage lengths)
    (or (= :head method) (< status 200) (#{204 304} status)) :none
    codings :chunked
    lengths :length
    :else :close))

(defn head
  "Returns the next response without its body; {:ended …} where none came. method: :head for what
  answers a HEAD."
  ([client] (head client nil))
  ([client method]
   (try
     (let [answer (status-line client)
           answer (assoc answer :headers (headers-of client))]
       (assoc answer :framing (framing-of method answer)))
     (catch clojure.lang.ExceptionInfo e
       (let [{::keys [ended] :keys [found]} (ex-data e)]
         (cond-> {:ended ended} found (assoc :found found)))))))

(defn- read-n [{:keys [^InputStream in]} n ^ByteArrayOutputStream into]
  (let [piece (byte-array (min (long n) 65536))]
    (loop [left (long n)]
      (when (pos? left)
        (let [got (reading #(.read in piece 0 (int (min left (alength piece)))))]
          (.write into piece 0 (int got))
          (recur (- left got)))))))

(defn- expect-crlf [client]
  (let [line (read-line-of client)]
    (when-not (= "" line) (break-off :garbage line))))

(defn- leave-chunk
  "Reads the line end behind the chunk before, where that is still to come."
  [{:keys [in-chunk] :as client}]
  (when @in-chunk
    (expect-crlf client)
    (reset! in-chunk false)))

(defn- chunk-size [client]
  (leave-chunk client)
  (let [line (read-line-of client)
        [_ digits] (re-matches #"([0-9a-fA-F]{1,8})(?:;.*)?" line)]
    (if digits (Long/parseLong digits 16) (break-off :garbage line))))

(defn- read-chunk
  "Appends a chunk to into; returns whether it was not the last. Does not wait for the line end
  behind it: some servers send that with the next chunk."
  [{:keys [in-chunk] :as client} ^ByteArrayOutputStream into]
  (let [n (long (chunk-size client))]
    (if (zero? n) (headers-of client) (read-n client n into))
    (reset! in-chunk (pos? n))))

(defn- guarded
  "Returns what (f) returns as :ended, or how the response broke off."
  [f]
  (try {:ended (f)}
       (catch clojure.lang.ExceptionInfo e
         (if-let [ended (::ended (ex-data e))]
           {:ended ended, :found (:found (ex-data e))}
           (throw e)))))

(defn chunk
  "Returns the text of the next chunk of a response whose head was read; :last for the terminal one,
  else how it ended."
  [client]
  (let [into (ByteArrayOutputStream.)
        {:keys [ended]} (guarded #(if (read-chunk client into) :more :last))]
    (if (= :more ended) (text-of (.toByteArray into)) ended)))

(defn- read-body [client {:keys [framing headers]} into]
  (case framing
    :none :whole
    :length (do (read-n client (parse-long (first (headers "content-length"))) into) :whole)
    :chunked (do (while (read-chunk client into)) :whole)
    :close (while true (read-n client 1 into))))

(defn body
  "Returns the response, whose head was read, with :body and :ended; as it is where its head did not
  come."
  [client answer]
  (if (:ended answer)
    answer
    (let [into (ByteArrayOutputStream.)
          end (guarded #(read-body client answer into))]
      (merge answer {:body (text-of (.toByteArray into))} end))))

(defn response
  "Returns the next response. method: :head for what answers a HEAD."
  ([client] (response client nil))
  ([client method]
   (body client (head client method))))

(defn read-bytes
  "Returns the next n bytes, or how the connection ended before them."
  [client n]
  (let [into (ByteArrayOutputStream.)
        {:keys [ended]} (guarded #(do (read-n client n into) :whole))]
    (if (= :whole ended) (.toByteArray into) ended)))

(defn number-of
  "Returns the number that bytes, or the chars of a text, are, the highest first."
  [bs]
  (reduce (fn [n b] (+ (* 256 (long n)) (bit-and 255 (int b)))) 0 bs))

(defn complete?
  "Whether a reader of this response would take it for a whole one."
  [{:keys [framing ended]}]
  (or (= :whole ended) (and (= :close framing) (= :eof ended))))

(defn header
  "Returns the response's only value of this header, nil if there is none, or the vector of
  several."
  [answer name]
  (let [[value & more :as values] (clojure.core/get-in answer [:headers name])]
    (if more values value)))

;; Ends

(defn- peek-byte [^BufferedInputStream in]
  (.mark in 1)
  (if (neg? (.read in)) :eof (do (.reset in) :data)))

(defn after
  "Returns what comes next on the connection: :eof, :reset, :silent (nothing within ms) or :data."
  [{:keys [^Socket socket in] :as client} ms]
  (.setSoTimeout socket ms)
  (try
    (let [{:keys [ended]} (guarded #(do (leave-chunk client) :left))]
      (if (= :left ended) (peek-byte in) ended))
    (catch SocketTimeoutException _ :silent)
    (catch IOException _ :reset)
    (finally (.setSoTimeout socket patience-ms))))

(defn closed?
  "Whether the server ends the connection within the client's patience, by a FIN or a RST, and sends
  nothing more."
  [client]
  (boolean (#{:eof :reset} (after client patience-ms))))

(defn- method-of [text]
  (when (and (string? text) (str/starts-with? text "HEAD ")) :head))

(defn ask!
  "Sends on this connection, and returns the response."
  [client & parts]
  (apply try-send! client parts)
  (response client (method-of (first parts))))

(defn ask-once!
  "Sends on a connection of its own, and returns the response. Throws IOException."
  [port & parts]
  (let [client (connect port)]
    (try
      (apply ask! client parts)
      (finally (close! client)))))

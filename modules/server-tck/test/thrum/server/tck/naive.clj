(ns thrum.server.tck.naive
  "A small blocking HTTP/1.1 server for the controls of the suite: a virtual thread for each
  connection, rules as data.

  With no rule broken it frames as it should; each rule in :breaks is one that it forgets. It has no
  bounds and no deadlines."
  (:require
   [clojure.string :as str])
  (:import
   (java.io BufferedInputStream ByteArrayInputStream ByteArrayOutputStream File FileInputStream IOException InputStream OutputStream)
   (java.net InetAddress InetSocketAddress ServerSocket Socket)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

;; Reading the head

(defn- read-line-of
  "Returns the next line without its end, nil at the end of the stream."
  [^InputStream in]
  (let [out (ByteArrayOutputStream.)]
    (loop []
      (let [b (.read in)]
        (cond
          (neg? b) nil
          (= 10 b) (str/replace (String. (.toByteArray out) StandardCharsets/ISO_8859_1) #"\r$" "")
          :else (do (.write out b) (recur)))))))

(defn- read-head [in]
  (loop [lines []]
    (let [line (read-line-of in)]
      (cond
        (nil? line) nil
        (and (= "" line) (seq lines)) lines
        (= "" line) (recur lines)
        :else (recur (conj lines line))))))

(defn- header-pair [line]
  (let [[name value] (str/split line #":" 2)]
    [(str/lower-case (str/trim (str name))) (str/trim (str value))]))

(defn- parse
  [[line & headers]]
  (let [[method target version] (str/split line #" +" 3)]
    {:line line
     :lines headers
     :method method
     :target (str target)
     :version (str version)
     :pairs (map header-pair headers)}))

(defn- values [{:keys [pairs]} name]
  (for [[k v] pairs :when (= k name)] v))

;; The rules: each is true where the head must be refused

(def ^:private token #"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

(defn- lengths [head] (values head "content-length"))
(defn- codings [head] (values head "transfer-encoding"))

(defn- long-of? [s]
  (and (re-matches #"[0-9]+" s) (parse-long s)))

(defn- bad-line? [{:keys [line]}]
  (not (re-matches #"[!#$%&'*+.^_`|~0-9A-Za-z-]+ (/|http://)[\x21-\x7e]* HTTP/1\.[01]" line)))

(def rules
  "What refuses a head, by name."
  {:request-line bad-line?
   :name-is-token (fn [{:keys [lines]}]
                    (some #(not (re-matches token (first (str/split % #":" 2))))
                          (remove #(re-find #"^[ \t]|\s:" %) lines)))
   :has-colon (fn [{:keys [lines]}] (some #(not (str/includes? % ":")) lines))
   :no-blank-before-colon (fn [{:keys [lines]}] (some #(re-find #"^[^:]*[ \t]:" %) lines))
   :no-fold (fn [{:keys [lines]}] (some #(re-find #"^[ \t]" %) lines))
   :no-nul (fn [{:keys [lines]}] (some #(str/includes? % "\u0000") lines))
   :no-cr (fn [{:keys [lines]}] (some #(str/includes? % "\r") lines))
   :no-control (fn [{:keys [lines]}] (some #(re-find #"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]" %) lines))
   :has-host (fn [{:keys [version], :as head}]
               (and (= "HTTP/1.1" version) (empty? (values head "host"))))
   :one-host (fn [head] (next (values head "host")))
   :host-is-a-host (fn [head]
                     (some #(not (re-matches #"(\[[0-9a-f:.]+\]|[\w.-]+)(:\d{0,4}|:[1-6]\d{4})?" %))
                           (values head "host")))
   :no-connect (fn [{:keys [method]}] (= "CONNECT" method))
   :host-is-authority (fn [{:keys [target], :as head}]
                        (when-let [[_ authority] (re-find #"^http://([^/]*)" target)]
                          (not= [authority] (values head "host"))))
   :length-or-coding (fn [head] (and (seq (lengths head)) (seq (codings head))))
   :one-length (fn [head] (next (lengths head)))
   :length-is-digits (fn [head] (some #(not (long-of? %)) (lengths head)))
   :coding-is-chunked (fn [head] (some #(not= "chunked" (str/lower-case %)) (codings head)))
   :one-coding (fn [head] (next (codings head)))
   :no-coding-on-1-0 (fn [{:keys [version], :as head}]
                       (and (= "HTTP/1.0" version) (seq (codings head))))})

(defn- refused? [{:keys [breaks]} head]
  (some (fn [[k bad?]] (and (not (breaks k)) (bad? head))) rules))

;; Bodies: (read1) returns a byte, -1 at the end, throws IOException where the body is cut

(defn- fail [] (throw (IOException. "broken body")))

(defn- next-byte [{:keys [breaks]} ^InputStream in]
  (let [b (.read in)]
    (when (and (neg? b) (not (breaks :cut-body-throws))) (fail))
    b))

(defn- sized [server in n]
  (let [left (AtomicLong. n)]
    #(if (pos? (.get left)) (do (.decrementAndGet left) (next-byte server in)) -1)))

(defn- chunk-size
  [{:keys [breaks]} in]
  (let [digits (first (str/split (or (read-line-of in) (if (breaks :cut-body-throws) "0" (fail)))
                                 #";"))]
    (cond (and (breaks :wide-chunks) (re-matches #"[0-9a-fA-F]+" digits))
          (Long/parseLong (subs digits (max 0 (- (count digits) 7))) 16)
          (re-matches #"[0-9a-fA-F]{1,8}" digits) (Long/parseLong digits 16)
          (breaks :chunk-size) 3
          :else (fail))))

(defn- end-of-chunk [{:keys [breaks]} in]
  (when-not (or (= "" (read-line-of in)) (breaks :chunk-end)) (fail)))

(defn- skip-trailers [{:keys [breaks]} in]
  (when-not (breaks :trailers)
    (loop [] (when-not (contains? #{"" nil} (read-line-of in)) (recur)))))

(defn- chunks [server in]
  (let [left (volatile! 0), done (volatile! false), opened (volatile! false)]
    (fn read1 []
      (cond
        @done -1
        (pos? (long @left)) (let [b (next-byte server in)]
                              (vswap! left dec)
                              b)
        :else (do (when @opened (end-of-chunk server in))
                  (vreset! opened true)
                  (vreset! left (chunk-size server in))
                  (when (zero? (long @left)) (vreset! done true) (skip-trailers server in))
                  (read1))))))

(defn- stream-of [read1]
  (proxy [InputStream] []
    (read
      ([] (read1))
      ([bs] (let [^InputStream this this] (.read this bs 0 (count bs))))
      ([^bytes bs off n]
       (let [b (if (zero? (long n)) 0 (int (read1)))]
         (cond (neg? b) -1
               (zero? (long n)) 0
               :else (do (aset bs (int off) (unchecked-byte b)) 1)))))))

(defn- on-first-call [f read1]
  (let [called (volatile! false)]
    (fn [] (when-not @called (vreset! called true) (f)) (read1))))

(defn- body-of
  [server head in ^OutputStream out]
  (let [length (some-> (first (lengths head))
                       (->> (re-find #"\d{1,18}"))
                       parse-long)
        continue! #(when (seq (values head "expect"))
                     (.write out (.getBytes "HTTP/1.1 100 Continue\r\n\r\n"))
                     (.flush out))
        read1 (cond length (sized server in length)
                    (some #(str/includes? (str/lower-case %) "chunked") (codings head))
                    (chunks server in)
                    :else (constantly -1))]
    (if (contains? (:breaks server) :continue) read1 (on-first-call continue! read1))))

;; The request map

(defn- joined [pairs]
  (reduce (fn [m [k v]] (update m k #(if % (str % (if (= "cookie" k) ";" ",") v) v))) {} pairs))

(defn- request-of
  [{:keys [method target version pairs]} body ^Socket socket]
  (let [[_ uri query] (re-matches #"(?:http://[^/]*)?([^?]*)(?:\?(.*))?" target)
        headers (joined pairs)
        content-type (headers "content-type")]
    {:request-method (keyword (str/lower-case method))
     :uri uri
     :query-string query
     :protocol version
     :scheme :http
     :headers headers
     :remote-addr (.getHostAddress (.getInetAddress socket))
     :server-port (.getLocalPort socket)
     :server-name (str/replace (str (headers "host")) #":\d+$" "")
     :body (stream-of body)
     :content-type content-type
     :content-length (some->> (headers "content-length")
                              (re-find #"\d{1,18}")
                              parse-long)
     :character-encoding (second (re-find #"charset=([^;]+)" (str content-type)))}))

;; The response

(defn- bytes-of ^bytes [x charset]
  (cond (bytes? x) x, (nil? x) (byte-array 0), :else (String/.getBytes (str x) (str charset))))

(defn- write-head!
  "Writes the low byte of every char, as java.io.DataOutputStream does."
  [^OutputStream out status pairs]
  (let [text (str "HTTP/1.1 "
                  status
                  " X\r\n"
                  (str/join (for [[k v] pairs] (str k ": " v "\r\n")))
                  "\r\n")]
    (.write out (byte-array (map #(unchecked-byte (int %)) text)))
    (.flush out)))

(defn- write-chunk! [^OutputStream out ^bytes bs]
  (when (pos? (alength bs))
    (.write out (.getBytes (str (Long/toHexString (alength bs)) "\r\n")))
    (.write out bs)
    (.write out (.getBytes "\r\n"))
    (.flush out)))

(defn- parts-of
  "Returns the elements of a body that is streamed, or nil."
  [body]
  (cond
    (instance? File body) [(.readAllBytes (FileInputStream. ^File body))]
    (instance? InputStream body) (let [^InputStream in body]
                                   (with-open [in in] [(.readAllBytes in)]))
    :else body))

(defn- streamed? [body]
  (or (instance? File body) (instance? InputStream body) (sequential? body)))

(defn- header-pairs
  [{:keys [breaks]} headers]
  (for [[k v] headers
        :when (or (breaks :framing-is-ours)
                  (not (#{"content-length" "transfer-encoding"} (str/lower-case k))))
        v (if (coll? v) v [v])]
    [k v]))

(defn- stream! [^OutputStream out status pairs parts]
  (write-head! out status (conj pairs ["Transfer-Encoding" "chunked"]))
  (run! #(write-chunk! out (bytes-of % "UTF-8")) parts)
  (.write out (.getBytes "0\r\n\r\n")))

(defn- respond!
  [{:keys [breaks], :as server} {:keys [method version]} ^OutputStream out
   {:keys [status headers body]}]
  (let [silent? (or (and (= "HEAD" method) (not (breaks :head-is-silent)))
                    (and (#{204 304} status) (not (breaks :no-content-is-silent))))
        charset (second (re-find #"charset=([^;]+)" (str (get headers "content-type"))))
        pairs (header-pairs server headers)
        whole (fn [bs]
                (write-head!
                  out
                  status
                  (if (breaks :framing-is-ours) pairs (conj pairs ["Content-Length" (count bs)])))
                (.write out ^bytes bs))]
    (cond silent? (write-head!
                    out
                    status
                    (if (string? body) (conj pairs ["Content-Length" (count body)]) pairs))
          (and (streamed? body) (or (= "HTTP/1.1" version) (breaks :chunks-on-1-0)))
          (stream! out status pairs (parts-of body))
          (streamed? body) (whole (bytes-of (str/join (map #(String. (bytes-of % "UTF-8") "UTF-8")
                                                           (parts-of body)))
                                            "UTF-8"))
          :else (whole (bytes-of body (or charset "UTF-8"))))
    (.flush out)))

;; Connections

(defn- bad-request! [^OutputStream out]
  (write-head! out 400 [["Connection" "close"] ["Content-Length" 0]]))

(defn- closing? [{:keys [breaks]} {:keys [version] :as head} {:keys [headers]}]
  (and (not (breaks :closes))
    (or (not= "HTTP/1.1" version)
      (some #(= "close" (str/lower-case %)) (values head "connection"))
      (= "close" (str/lower-case (str (get headers "Connection")))))))

(defn- drain! [read1]
  (loop [] (when-not (neg? (int (read1))) (recur))))

(defn- answer!
  "Answers one request; returns whether the connection goes on."
  [{:keys [handler breaks] :as server} ^Socket socket head in out]
  (let [body (body-of server head in out)
        response (try (handler (request-of head body socket))
                      (catch IOException _ {:status 400, :headers {"Connection" "close"}, :body ""})
                      (catch Throwable _ {:status 500, :headers {"Connection" "close"}, :body ""}))]
    (respond! server head out response)
    (when-not (closing? server head response)
      (when-not (breaks :skips-unread-body) (drain! body))
      true)))

(defn- answer-all!
  "Reads what is there, and runs it all at once."
  [server socket ^InputStream in out]
  (loop []
    (when-let [lines (read-head in)]
      (let [head (parse lines)
            body (ByteArrayInputStream. (.readAllBytes ^InputStream
                                                       (stream-of (body-of server head in out))))]
        (Thread/startVirtualThread
          (fn []
            (let [response ((:handler server) (request-of head #(.read body) socket))]
              (locking out (respond! server head out response)))))
        (recur)))))

(defn- serve-connection [{:keys [breaks] :as server} ^Socket socket]
  (with-open [socket socket]
    (.setTcpNoDelay socket true)
    (let [in (BufferedInputStream. (.getInputStream socket))
          out (.getOutputStream socket)]
      (if (breaks :one-at-a-time)
        (answer-all! server socket in out)
        (loop []
          (when-let [lines (read-head in)]
            (let [head (parse lines)]
              (cond
                (refused? server head) (bad-request! out)
                (answer! server socket head in out) (recur)))))))
    ;; Otherwise what the client still sends would turn the end into a reset that swallows the
    ;; answer.
    (.shutdownOutput socket)
    (.setSoTimeout socket 500)
    (.skip (.getInputStream socket) 100000)))

(defn- accept-all
  [{:keys [^ServerSocket listener breaks], :as server}]
  (try
    (loop []
      (let [socket (.accept listener)]
        (if (breaks :one-thread-each)
          (try
            (serve-connection server socket)
            (catch IOException _ nil))
          (Thread/startVirtualThread #(try
                                        (serve-connection server socket)
                                        (catch IOException _ nil))))
        (recur)))
    (catch IOException _ nil)))

(defn run-server
  "Starts a server that breaks these rules; returns it."
  [breaks handler {:keys [host port]}]
  (let [listener (doto (ServerSocket.)
                   (.bind (InetSocketAddress. (InetAddress/getByName host) (int port)) 200))
        server {:handler handler, :breaks (set breaks), :listener listener}]
    (Thread/startVirtualThread #(accept-all server))
    server))

(defn port
  "Returns the server's port."
  [{:keys [^ServerSocket listener]}]
  (.getLocalPort listener))

(defn stop!
  "Closes the listener."
  [{:keys [^ServerSocket listener]}]
  (.close listener))

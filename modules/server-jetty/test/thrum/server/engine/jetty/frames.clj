(ns thrum.server.engine.jetty.frames
  "A client of HTTP/2 that sends exactly what it is given, frame by frame (RFC 9113, 4), without TLS
  and without Huffman's code."
  (:import
   (java.io ByteArrayOutputStream DataInputStream DataOutputStream EOFException IOException)
   (java.net InetAddress Socket SocketTimeoutException)))

(set! *warn-on-reflection* true)

(def ^:private kinds
  [:data :headers :priority :reset :settings :push :ping :go-away :window :continuation])

(defn frame!
  "Sends a frame; payload: bytes."
  [{:keys [^DataOutputStream out]} kind flags stream ^bytes payload]
  (let [n (alength payload)
        whole (ByteArrayOutputStream. (+ 9 n))]
    (doto (DataOutputStream. whole)
      (.writeByte (bit-shift-right n 16)) (.writeShort n)
      (.writeByte (.indexOf ^java.util.List kinds kind)) (.writeByte flags)
      (.writeInt stream)
      (.write payload))
    (.write out (.toByteArray whole))
    (.flush out)))

(defn frame
  "Returns the next frame as {:kind :flags :stream :payload}; {:kind :end} where the connection has
  ended, {:kind :silent} after 30 s."
  [{:keys [^DataInputStream in]}]
  (try
    (let [n (bit-or (bit-shift-left (.readUnsignedByte in) 16) (.readUnsignedShort in))
          kind (nth kinds (.readUnsignedByte in) :unknown)
          flags (.readUnsignedByte in)
          stream (.readInt in)]
      {:kind kind, :flags flags, :stream stream, :payload (.readNBytes in n)})
    (catch SocketTimeoutException _ {:kind :silent})
    (catch EOFException _ {:kind :end})
    (catch IOException _ {:kind :end})))

(defn next-of
  "Returns the next frame of one of these kinds, on this stream where one is given, or the end of
  the connection."
  [client wanted & [stream]]
  (loop [{:keys [kind] :as f} (frame client)]
    (cond
      (#{:end :silent} kind) f
      (and (wanted kind) (or (nil? stream) (= stream (:stream f)))) f
      :else (recur (frame client)))))

(defn close! [{:keys [^Socket socket]}]
  (.close socket))

(defn connect
  "Returns a client that knows that the port speaks HTTP/2. settings: the payload of its SETTINGS."
  [port & [settings]]
  (let [socket (doto (Socket. (InetAddress/getByName "127.0.0.1") (int port))
                 (.setSoTimeout 30000)
                 (.setTcpNoDelay true))
        client {:socket socket
                :in (DataInputStream. (.getInputStream socket))
                :out (DataOutputStream. (.getOutputStream socket))}]
    (.write ^DataOutputStream (:out client) (.getBytes "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    (frame! client :settings 0 0 (or settings (byte-array 0)))
    client))

(def ^:private known
  "The names that stand in the static table (RFC 7541, A), which Tomcat takes from nowhere else."
  {":authority" 1, ":method" 2, ":path" 4, ":scheme" 6})

(defn- text [^ByteArrayOutputStream block ^String s]
  (.write block (.length s))
  (.writeBytes block (.getBytes s "ISO-8859-1")))

(defn- literal
  "A header whose value stands in no table, nor its name, unless it is known (RFC 7541, 6.2.2)."
  [^ByteArrayOutputStream block ^String name value]
  (.write block (int (known name 0)))
  (when-not (known name) (text block name))
  (text block value))

(defn head
  "Returns the block of a request's head."
  ^bytes [method path & more]
  (let [block (ByteArrayOutputStream.)]
    (doseq [[k v]
            (partition
              2
              (list* ":method" method ":path" path ":scheme" "http" ":authority" "localhost" more))]
      (literal block k v))
    (.toByteArray block)))

(defn get!
  "Sends a whole request on a stream."
  [client stream path]
  (frame! client :headers 5 stream (head "GET" path)))

(defn reset!!
  "Cancels a stream."
  [client stream]
  (frame! client :reset 0 stream (byte-array [0 0 0 8])))

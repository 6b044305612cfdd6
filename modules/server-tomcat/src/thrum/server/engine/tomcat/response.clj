(ns thrum.server.engine.tomcat.response
  "Heads and whole responses, past Tomcat's own ideas about some of them."
  (:import
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util.function Supplier)
   (org.apache.coyote ActionCode CloseNowException Request Response)
   (org.apache.tomcat.util.buf MessageBytes)))

(set! *warn-on-reflection* true)

(defn- connections-own?
  "True if a header is about the connection, of which HTTP/2 has its own ideas."
  [^String field]
  (or (.equalsIgnoreCase field "connection") (.equalsIgnoreCase field "upgrade")))

(defn- set-value!
  "Sets the value, what is beyond Latin-1 as a question mark: Tomcat would drop the header."
  [^MessageBytes field ^String value]
  (let [bytes (.getBytes value StandardCharsets/ISO_8859_1)]
    (.setBytes field bytes 0 (alength bytes))))

(defn set-head!
  "Sets status and headers, past Tomcat's own ideas about some of them. shared: whether the
  connection is of HTTP/2; last?: whether it is closed after the response, which says so."
  [^Response response shared last? status ^objects headers]
  (.setStatus response status)
  (let [fields (.getMimeHeaders response)]
    (loop [i 0]
      (when (< i (alength headers))
        (let [field ^String (aget headers i)]
          (when-not (and shared (connections-own? field))
            (set-value! (.addValue fields field) (aget headers (inc i)))))
        (recur (+ i 2))))
    (when last? (set-value! (.setValue fields "Connection") "close"))))

(def ^:private no-trailers
  "With trailers, which may be none, a body is sent in chunks also where the connection closes after
  it: the end of a connection would look like the end of the body."
  (reify Supplier (get [_] nil)))

(def reset
  "Trailers that cannot be had: a stream of HTTP/2 is reset then, where Tomcat would end it."
  (reify Supplier (get [_] (throw (CloseNowException. "aborted")))))

(defn frame!
  "States how the body is framed."
  [^Request request ^Response response length]
  (cond
    (not (neg? (long length))) (.setContentLength response (long length))
    (.equals (.protocol request) "HTTP/1.1") (.setTrailerFields response no-trailers)))

(defn delimited-by-end?
  "True if the client takes the end of the connection for the end of the body."
  [^Request request ^Response response]
  (and (.equals (.protocol request) "HTTP/1.0")
       (.isCommitted response)
       (neg? (.getContentLengthLong response))))

(defn finish!
  "Sends what is left, and the end."
  [^Response response]
  (.action response ActionCode/CLOSE nil))

(defn send-all!
  "Sends a whole response; shared, last?: as for set-head!."
  [^Response response shared last? status headers ^bytes body]
  (set-head! response shared last? status headers)
  (when body
    (.setContentLength response (alength body))
    (when (pos? (alength body)) (.doWrite response (ByteBuffer/wrap body))))
  (finish! response))

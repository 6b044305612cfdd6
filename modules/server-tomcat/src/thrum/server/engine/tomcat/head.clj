(ns thrum.server.engine.tomcat.head
  "Which requests are answered before they are handed over: those that Tomcat refuses, and some that
  it should have."
  (:require
   [clojure.string :as str])
  (:import
   (jakarta.servlet RequestDispatcher)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (org.apache.coyote ActionCode Request Response)
   (org.apache.tomcat.util.buf ByteChunk)
   (org.apache.tomcat.util.res StringManager)))

(set! *warn-on-reflection* true)
(set! *unchecked-math* true)

;; HTTP/0.9

(defn- nameless?
  "True if the request's line names no version: HTTP/0.9, which Tomcat serves, and whose
  answers have no head."
  [^Request request]
  (.equals (.protocol request) ""))

;; Too large

(def ^:private too-large
  "How Tomcat says, in the language of the machine, that a head is too large; it has no other sign
  of it."
  (delay (.getString (StringManager/getManager "org.apache.coyote.http11")
                     "iib.requestheadertoolarge.error")))

(defn- too-large? [^Request request]
  (let [cause (.getAttribute request RequestDispatcher/ERROR_EXCEPTION)]
    (and (instance? IllegalArgumentException cause)
         (= @too-large (.getMessage ^Throwable cause)))))

;; Two lengths

(defn- raw-head
  "Returns the lines of the head as they arrived, from the target on, up to the empty line."
  ^String [^Request request]
  (let [^ByteChunk target (.getByteChunk (.requestURI request))
        all (.getBytes target)
        start (.getStart target)
        text (String. all start (- (alength all) start) StandardCharsets/ISO_8859_1)]
    (first (str/split text #"\r?\n\r?\n" 2))))

(defn- two-lengths?
  "True if a body in chunks came with a Content-Length too, which Tomcat drops without a
  word."
  [^Request request]
  (and (.equals (.protocol request) "HTTP/1.1")
       (some? (.getHeader request "transfer-encoding"))
       (some? (re-find #"(?i)\ncontent-length[ \t]*:" (raw-head request)))))

;; Lines that two servers could read differently

(def ^:private ^:const tab 9)
(def ^:private ^:const lf 10)
(def ^:private ^:const cr 13)
(def ^:private ^:const space 32)
(def ^:private ^:const at 64)
(def ^:private ^:const query 63)

(defmacro ^:private byte-at
  "As a macro it costs a tenth: each byte of each head is looked at."
  [bytes i]
  `(long (aget ~bytes ~i)))

(defn- blank-at? [^bytes bytes ^long i]
  (let [c (byte-at bytes i)]
    (or (= space c) (= tab c))))

(defn- method-apart?
  "True if there is a method, one space stands between it and the target, whose path begins at
  start, and no user's name before that."
  [^bytes bytes ^long start]
  (loop [i (dec start)]
    (let [c (byte-at bytes i)]
      (cond
        ;; No blank before it, nor the end of an empty line: for Tomcat a method may be empty.
        (= space c) (and (pos? i) (< space (byte-at bytes (dec i))))
        (or (= tab c) (= at c)) false
        :else (recur (dec i))))))

(defn- version-apart?
  "True if one space stands between the target, whose path ends at end, and the version, and
  no user's name before that."
  [^bytes bytes ^long end]
  (let [query? (= query (byte-at bytes end))]
    (loop [i end]
      (let [c (byte-at bytes i)]
        (cond
          (= space c) (not (blank-at? bytes (inc i)))
          (or (= tab c) (and (= at c) (not query?))) false
          :else (recur (inc i)))))))

(defn- lines-end-in-cr-lf?
  "True if each line, up to the empty one, ends so: for Tomcat LF alone ends a line too. A header
  that goes on on the next line is one line by now: Tomcat has moved its parts together. start: in a
  line with a method before it."
  [^bytes bytes ^long start]
  (loop [i start]
    (cond
      (not (= lf (byte-at bytes i))) (recur (inc i))
      (not (= cr (byte-at bytes (dec i)))) false
      (= lf (byte-at bytes (- i 2))) true
      :else (recur (inc i)))))

(defn- ambiguous?
  "True if the head of a request of HTTP/1 has blanks or ends of lines where they do not
  belong, or a user's name in its target."
  [^Request request]
  (let [target (.getByteChunk (.requestURI request))
        bytes (.getBytes target)]
    (not (and (method-apart? bytes (.getStart target))
              (version-apart? bytes (.getEnd target))
              (lines-end-in-cr-lf? bytes (.getEnd target))))))

(defn may-upgrade?
  "True if a request of HTTP/1 may be served as one of HTTP/2. What is wrong with its head cannot be
  seen any more then."
  [^Request request]
  (and (not (.isError (.getResponse request)))
       (.equals (.protocol request) "HTTP/1.1")
       (not (ambiguous? request))))

(defn- http-1? [^Request request]
  (not (.equals (.protocol request) "HTTP/2.0")))

(defn refused
  "Returns the status to refuse the request with, or nil."
  [^Request request ^Response response]
  (cond
    (.isError response) (if (too-large? request) 431 (.getStatus response))
    (nameless? request) 400
    (and (http-1? request) (ambiguous? request)) 400
    (two-lengths? request) 400))

(defn- refusal-in-full
  "Returns a whole answer as it is on the wire."
  ^ByteBuffer [status]
  (ByteBuffer/wrap (.getBytes
                     (str "HTTP/1.1 " status " \r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                     StandardCharsets/ISO_8859_1)))

(defn refuse!
  "Answers with a status and nothing else, and has the connection closed."
  [^Request request ^Response response status]
  (if (nameless? request)
    (.doWrite response (refusal-in-full status))
    (do (.setStatus response status)
        ;; Otherwise the answer ends with the connection, and that only after the request's body.
        (.setContentLength response 0)
        (.setString (.setValue (.getMimeHeaders response) "Connection") "close")))
  (.action response ActionCode/CLOSE nil))

(ns thrum.server.engine.http-kit.refusal
  "What http-kit says to a client by itself, in our words: its own repeat the input, and the name of
  what was wrong with it."
  (:require
   [clojure.string :as str]
   [thrum.server.engine.http-kit.connection :as connection])
  (:import
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

(def ^:private phrases
  {400 "Bad Request"
   413 "Content Too Large"
   431 "Request Header Fields Too Large"
   501 "Not Implemented"})

(defn- text-of [^ByteBuffer buffer]
  (str (.decode StandardCharsets/ISO_8859_1 (.duplicate buffer))))

(defn- status-of ^long [head]
  (parse-long (subs head 9 12)))

(defn- unknown-coding? [message]
  (and (str/starts-with? message "Unsupported Transfer-Encoding:")
       (not (str/includes? (str/lower-case message) "chunked"))))

(defn status
  "Returns the status that we give for a page of http-kit's: one for all that is too long in a head,
  501 for a coding."
  [head message]
  (let [given (status-of head)]
    (cond
      (= 414 given) 431
      (and (= 400 given) (unknown-coding? message)) 501
      (phrases given) given
      :else 400)))

(defn- page
  ^bytes [status]
  (.getBytes (str "HTTP/1.1 "
                  status
                  " "
                  (phrases status)
                  "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
             StandardCharsets/ISO_8859_1))

(def ^:private ^{:tag 'bytes} go-on
  (.getBytes "HTTP/1.1 100 Continue\r\n\r\n" StandardCharsets/ISO_8859_1))

(defn answer!
  "Sends to a client what http-kit wanted to send, in our words; after a refusal the connection
  ends. On http-kit's loop."
  [connection buffers]
  (let [[head body] (map text-of buffers)]
    (if (= 100 (status-of head))
      (connection/write-now! connection go-on)
      (do (connection/write-now! connection (page (status head (str body))))
          (connection/end! connection)))))

(defn close-code
  "Returns the code of a closing frame that http-kit wants to send because the client broke the
  protocol; nil for other bytes."
  [^ByteBuffer frame]
  (when (and (= 4 (.remaining frame)) (= 0x88 (bit-and 0xff (.get frame (.position frame)))))
    (int (bit-and 0xffff (.getShort frame (+ 2 (.position frame)))))))

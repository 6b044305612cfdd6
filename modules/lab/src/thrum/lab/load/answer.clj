(ns thrum.lab.load.answer
  "Reads an HTTP/1.1 answer from a socket: only what is needed to find its end."
  (:import
   (java.io EOFException InputStream)))

(set! *warn-on-reflection* true)

(defn- read-line! ^String [^InputStream in]
  (let [line (StringBuilder.)]
    (loop []
      (let [b (.read in)]
        (case b
          -1 (throw (EOFException. "The server closed the connection"))
          10 (str line)
          13 (recur)
          (do (.append line (char b)) (recur)))))))

(defn- status-of [^String line]
  (if (re-find #"^HTTP/1\.[01] \d{3}" line)
    (parse-long (subs line 9 12))
    (throw (EOFException. "The server answered with no status line"))))

(defn- value
  "Returns the value of a header line where it is of that header, written in lower case with its
  colon; otherwise nil."
  [^String line ^String header]
  (when (.regionMatches line true 0 header 0 (.length header))
    (.trim (.substring line (.length header)))))

(defn- note
  "Returns the facts about the answer with what a header line says of its end."
  [facts line]
  (if-let [length (value line "content-length:")]
    (assoc facts :length (parse-long length))
    (if-let [coding (value line "transfer-encoding:")]
      (assoc facts :chunked? (= "chunked" coding))
      (if (= "close" (value line "connection:"))
        (assoc facts :keep? false)
        facts))))

(defn- read-head! [in]
  (loop [facts {:status (status-of (read-line! in)), :keep? true}]
    (let [line (read-line! in)]
      (if (= "" line)
        facts
        (recur (note facts line))))))

(defn- chunk-size [line]
  (if-let [digits (re-find #"^[0-9a-fA-F]{1,15}" line)]
    (Long/parseLong digits 16)
    (throw (EOFException. "The server sent a chunk without a size"))))

(defn- skip-chunks! [^InputStream in]
  (loop []
    (let [size (long (chunk-size (read-line! in)))]
      (when (pos? size)
        (.skipNBytes in size)
        (read-line! in)
        (recur))))
  (while (not= "" (read-line! in))))

(defn- skip-to-end! [^InputStream in]
  (.transferTo in (java.io.OutputStream/nullOutputStream)))

(defn read!
  "Reads one answer to a GET whole. Returns {:status :keep?}, the latter true if the connection may
  be used again. Throws an IOException where the answer ends before its end, or is none."
  [^InputStream in]
  (let [{:keys [status length chunked?] :as facts} (read-head! in)]
    (cond
      chunked? (do (skip-chunks! in) facts)
      length (do (.skipNBytes in (long length)) facts)
      (#{204 304} status) facts
      :else (do (skip-to-end! in) (assoc facts :keep? false)))))

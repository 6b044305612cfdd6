(ns thrum.server.engine.jdk.held
  "A response's body on HTTP/1.0 that has no length: it is held until it has one."
  {:no-doc true}
  (:require
   [thrum.server.spi.byte-stream :as byte-stream])
  (:import
   (java.io ByteArrayOutputStream OutputStream)))

(set! *warn-on-reflection* true)

(def ^:private ^:const most-held
  "How many bytes of a body are held at most, on HTTP/1.0."
  8388608)

(defn- check-held!
  [^ByteArrayOutputStream held ^long more]
  (when (< most-held (+ (.size held) more))
    (throw
      (ex-info
        (str "On HTTP/1.0 the engine :jdk holds a body without a Content-Length, and no more than "
             most-held
             " bytes of it")
        {:type :thrum/response}))))

(defn stream
  "Returns a stream into held, which takes no more than may be held."
  ^OutputStream [^ByteArrayOutputStream held]
  (byte-stream/output
    (fn [b offset n]
      (check-held! held n)
      (.write held ^bytes b (int offset) (int n)))))

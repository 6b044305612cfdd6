(ns thrum.server.engine.helidon.output
  "Behind Helidon: what it writes of a response, corrected where it would say what is not so."
  (:require
   [thrum.server.engine.helidon.connection :as connection])
  (:import
   (io.helidon.common.buffers BufferData DataWriter)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

(definterface IOutput
  (^Object correct [f])             ; f, of text to text, is applied to the next that is written, the response's head
  (^Object headAlone [])            ; of the next two that are written, only the first, the head, goes out
  (^Object put [^io.helidon.common.buffers.BufferData data]))

(defn- bytes-of ^bytes [^BufferData data]
  (let [bytes (byte-array (.available data))]
    (.read data bytes)
    bytes))

(defn- corrected ^BufferData [f data]
  (let [text (f (String. (bytes-of data) StandardCharsets/ISO_8859_1))]
    (BufferData/create (.getBytes ^String text StandardCharsets/ISO_8859_1))))

;; head-alone: how many pieces more there are until the one that is dropped.
(deftype Output [connection ^:unsynchronized-mutable correction ^:unsynchronized-mutable ^long head-alone]
  IOutput
  (correct [_ f] (set! correction f) nil)
  (headAlone [_] (set! head-alone 2) nil)
  (put [_ data]
    (let [f correction]
      (set! correction nil)
      (set! head-alone (dec head-alone))
      (when-not (zero? head-alone)
        (connection/write! connection (if f (corrected f data) data)))
      nil))

  DataWriter
  (^void write [this ^BufferData data] (.put this data))
  (^void write [this ^"[Lio.helidon.common.buffers.BufferData;" data] (.put this (BufferData/create data)))
  (^void writeNow [this ^BufferData data] (.put this data))
  (^void writeNow [this ^"[Lio.helidon.common.buffers.BufferData;" data] (.put this (BufferData/create data)))
  (flush [_])
  (close [_]))

(defn output
  "Returns the output of a connection."
  ^Output [connection]
  (Output. connection nil 0))

(defn status-line
  "Returns a correction: another status' line."
  [line]
  (fn [^String head] (str line (subs head (.indexOf head "\r\n")))))

(defn without-length
  "Takes the Content-Length away that Helidon makes up where there is no body."
  [^String head]
  (.replace head "\r\nContent-Length: 0\r\n" "\r\n"))

(ns thrum.server.engine.helidon.input
  "What a client has sent: heads, and the bytes of bodies."
  (:require
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.head :as head])
  (:import
   (java.io EOFException IOException)
   (java.util Arrays)
   (thrum.server.engine.helidon.head Head)))

(set! *warn-on-reflection* true)

(definterface IInput
  (^long next [])                                       ; the next byte; throws EOFException where there is none
  (^long most [^bytes to ^long offset ^long n])         ; how many bytes were read, at least one
  (^boolean fill [^long until])                         ; has at least a byte more; false: the client sends nothing more
  (^long skip [])                                       ; skips lines' ends; returns how many bytes are there
  (head [^long most ^long until])) ; see head!

;; bytes: what has been received, up to position used already.
(deftype Input [connection ^:unsynchronized-mutable ^bytes bytes
                ^:unsynchronized-mutable ^long position]
  IInput
  (fill [_ until]
    (let [more (connection/receive! connection until)
          left (- (alength bytes) position)]
      (when more
        (if (zero? left)
          (set! bytes more)
          (let [all (Arrays/copyOfRange bytes (int position) (int (+ position left (alength more))))]
            (System/arraycopy more 0 all left (alength more))
            (set! bytes all)))
        (set! position 0))
      (some? more)))
  (next [this]
    (when (and (= position (alength bytes))
               (not (.fill this (connection/in-ms (connection/option connection :idle-timeout-ms)))))
      (throw (EOFException. "The client has closed the connection")))
    (let [b (aget bytes position)]
      (set! position (inc position))
      (bit-and 0xff b)))
  (most [this to offset n]
    (when (and (= position (alength bytes))
               (not (.fill this (connection/in-ms (connection/option connection :idle-timeout-ms)))))
      (throw (EOFException. "The client has closed the connection")))
    (let [n (min n (- (alength bytes) position))]
      (System/arraycopy bytes position to offset n)
      (set! position (+ position n))
      n))
  (skip [_]
    (while (and (< (inc position) (alength bytes))
                (= 13 (aget bytes position))
                (= 10 (aget bytes (inc position))))
           (set! position (+ position 2)))
    (- (alength bytes) position))
  (head [this most until]
    (loop [seen 0]
      (let [end (head/end bytes position (+ position seen))
            there (- (alength bytes) position)]
        (cond (= head/garbled end) 400
              (< most (if (neg? end) there (- end position))) 431
              (neg? end) (when (.fill this until) (recur there))
              :else (let [head (head/head bytes position)]
                      (set! position end)
                      (or head 400)))))))

(defn input
  "Returns the input of a connection."
  ^Input [connection]
  (Input. connection (byte-array 0) 0))

(def ^:private ^:const most-empty-lines
  "How many bytes of empty lines may stand before a request (RFC 9112, 2.2)."
  16)

(defn- await-first!
  "Waits until a request begins; returns whether one does."
  [^Input in until]
  (loop [skipped 0]
    (cond
      (pos? (.skip in)) true
      (< most-empty-lines skipped) false
      (.fill in until) (recur (inc skipped))
      :else false)))

(defn- protocol-status [^Head head]
  (let [protocol (.-protocol head)]
    (cond
      (#{"HTTP/1.1" "HTTP/1.0"} protocol) nil
      (re-matches #"HTTP/\d\.\d" protocol) 505
      :else 400)))

(defn head!
  "Returns the next request's Head, or the status to refuse it with; nil when the client sends none,
  or not in time."
  [^Input in]
  (let [connection (.-connection in)
        option #(connection/option connection %)]
    (try
      (when (await-first! in (connection/in-ms (option :idle-timeout-ms)))
        (let [head
              (.head in (option :max-header-bytes) (connection/in-ms (option :header-timeout-ms)))]
          (or (when (instance? Head head) (protocol-status head)) head)))
      (catch IOException _ nil))))

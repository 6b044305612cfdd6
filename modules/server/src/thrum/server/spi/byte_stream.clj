(ns thrum.server.spi.byte-stream
  "The body of a request as an InputStream of one function."
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(defn- one-byte [read!]
  (let [one (byte-array 1)]
    (if (neg? (long (read! one 0 1))) -1 (bit-and 0xff (aget one 0)))))

(defn input
  "Returns a stream that reads by (read! bytes offset n), which blocks, puts at most n bytes into
  the array, and returns how many, -1 at the end. Options: :available - a function for the stream's
  available, which is 0 without it; :close - a function for its close, which does nothing without
  it."
  ^InputStream [read! & {:keys [available close]}]
  (proxy [InputStream] []
    (read
      ([] (one-byte read!))
      ([bytes] (read! bytes 0 (alength ^bytes bytes)))
      ([bytes offset n] (read! bytes offset n)))
    (available [] (int (if available (available) 0)))
    (close [] (when close (close)))))

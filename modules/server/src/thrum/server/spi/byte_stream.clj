(ns thrum.server.spi.byte-stream
  "The body of a request as an InputStream of one function, that of a response as an OutputStream of
  one."
  (:import
   (java.io InputStream OutputStream)))

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

(defn output
  "Returns a stream that writes by (write! bytes offset n), which writes n bytes of the array.
  Options: :flush, :close - functions for the stream's flush and close, which do nothing without
  them."
  ^OutputStream [write! & {:keys [flush close]}]
  (proxy [OutputStream] []
    (write
      ([x]
       (if (bytes? x)
         (write! x 0 (alength ^bytes x))
         (write! (byte-array [(unchecked-byte x)]) 0 1)))
      ([bytes offset n] (write! bytes offset n)))
    (flush [] (when flush (flush)))
    (close [] (when close (close)))))

(ns thrum.server.spi.byte-stream
  "The body of a request as an InputStream of one function, that of a response as an OutputStream of
  one."
  (:import
   (java.io InputStream OutputStream)
   (java.util Objects)))

(set! *warn-on-reflection* true)

(defn- one-byte [read!]
  (let [one (byte-array 1)]
    (if (neg? (long (read! one 0 1))) -1 (bit-and 0xff (aget one 0)))))

;; Before the engine: a failure of an engine's is one of its connection.
(defn- check-range! [^bytes bytes offset n]
  (Objects/checkFromIndexSize (int offset) (int n) (alength bytes)))

;; InputStream.readNBytes ends with a read of nothing. Some engines' streams wait for bytes then.
(defn- some-bytes [read! bytes offset n]
  (check-range! bytes offset n)
  (if (zero? (long n)) 0 (read! bytes offset n)))

(defn input
  "Returns a stream that reads by (read! bytes offset n), which blocks, puts at most n bytes into
  the array, at least one, and returns how many, -1 at the end. n is never 0, and there is room for
  it in the array. available: a function for the stream's available, which is 0 without it. Its
  close does nothing."
  (^InputStream [read!] (input read! (constantly 0)))
  (^InputStream [read! available]
   (proxy [InputStream] []
     (read
       ([] (one-byte read!))
       ([bytes] (some-bytes read! bytes 0 (alength ^bytes bytes)))
       ([bytes offset n] (some-bytes read! bytes offset n)))
     (available [] (int (available))))))

(defn output
  "Returns a stream that writes by (write! bytes offset n), which writes n bytes of the array, where
  they are there. flush, close: functions for the stream's flush and close, which do nothing without
  them."
  (^OutputStream [write!] (output write! (fn [])))
  (^OutputStream [write! flush] (output write! flush (fn [])))
  (^OutputStream [write! flush close]
   (proxy [OutputStream] []
     (write
       ([x]
        (if (bytes? x)
          (write! x 0 (alength ^bytes x))
          (write! (byte-array [(unchecked-byte x)]) 0 1)))
       ([bytes offset n] (check-range! bytes offset n) (write! bytes offset n)))
     (flush [] (flush))
     (close [] (close)))))

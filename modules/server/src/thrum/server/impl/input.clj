(ns thrum.server.impl.input
  "A request's body, the :body stream that its handler reads: no longer than allowed, and known to
  the exchange while a read blocks. Raw bytes are the engine's."
  {:no-doc true}
  (:require
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.server.spi.lock :as lock])
  (:import
   (java.io IOException InputStream)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(defprotocol Reader
  "What has to know of the reads of a body: its exchange."
  (read-begins [reader] "A read begins. Throws IOException when the exchange is over.")
  (read-ends [reader] "It has ended.")
  (overlong [reader] "The body is longer than allowed.")
  (broken [reader] "The body could not be read to its end."))

(defn- too-long ^IOException [most]
  (IOException. (str "The request's body is longer than " most " bytes")))

(defn- check-length! [reader ^AtomicLong length n most]
  (when (and most (< (long most) (.addAndGet length n)))
    (overlong reader)
    (throw (too-long most))))

(defn- reading
  "Returns what (f) does, which reads from the engine."
  [reader f]
  (read-begins reader)
  (try
    (f)
    (catch IOException e
      (broken reader)
      (throw e))
    (finally (read-ends reader))))

(defn guarded
  "Returns the stream of the body, for reader; most: how many bytes it may have, or nil. Beyond that
  a read throws IOException. One thread reads at a time, no engine's stream is made for two, and a
  close does nothing."
  ^InputStream [^InputStream in reader most]
  (let [length (AtomicLong.)
        turn (ReentrantLock.)
        take! (fn [^bytes buffer ^long offset ^long n]
                (lock/alone turn
                  (let [read (long (reading reader #(.read in buffer offset n)))]
                    (when (pos? read) (check-length! reader length read most))
                    read)))]
    (byte-stream/input take! #(.available in))))

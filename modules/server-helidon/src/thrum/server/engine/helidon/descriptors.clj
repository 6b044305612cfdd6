(ns thrum.server.engine.helidon.descriptors
  "Waits for file descriptors: Helidon's listener ends for good where it accepts and there is none."
  (:import
   (java.io IOException)
   (java.nio.channels SocketChannel)))

(set! *warn-on-reflection* true)

(def ^:private ^:const spare
  "How many there must be: other threads may take some before Helidon accepts."
  4)

(def ^:private ^:const pause-ms
  "How long until the next look."
  20)

(defn- spare?
  "True if so many can be had at once."
  [^long n]
  (or (zero? n)
      (try
        (with-open [_ (SocketChannel/open)]
          (spare? (dec n)))
        (catch IOException _ false))))

(defn await!
  "Returns when there are some; blocks while there are none. Throws InterruptedException."
  []
  (while (not (spare? spare))
    (Thread/sleep pause-ms)))

(ns thrum.server.engine.helidon.descriptors
  "Waits for file descriptors: Helidon's listener ends for good where it accepts and there is none."
  (:import
   (java.io Closeable File FileInputStream IOException)
   (java.lang ProcessBuilder$Redirect)
   (java.nio.channels SocketChannel)))

(set! *warn-on-reflection* true)

(def ^:private ^:const spare
  "How many there must be: another thread may take one before Helidon accepts."
  2)

(def ^:private ^:const pause-ms
  "How long until the next look."
  20)

(def ^:private ^File nowhere
  "/dev/null, or what the system has in its place; nil where there is none."
  (let [file (.file ProcessBuilder$Redirect/DISCARD)]
    (when (.canRead file) file)))

(defn- open
  "Opens something that has a descriptor. A socket takes twice as long as a file, and where 4 000
  clients come at once the last one waits for as many looks."
  ^Closeable []
  (if nowhere (FileInputStream. ^File nowhere) (SocketChannel/open)))

(defn- spare?
  "True if so many can be had at once."
  [^long n]
  (or (zero? n)
      (try
        (with-open [_ (open)]
          (spare? (dec n)))
        (catch IOException _ false))))

(defn await!
  "Returns when there are some; blocks while there are none. Throws InterruptedException."
  []
  (while (not (spare? spare))
    (Thread/sleep pause-ms)))

(ns thrum.server.access-log
  "The built-in observer: one line a request in the common log format, written by a thread of its own."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.error :as error]
   [thrum.shown :as shown])
  (:import
   (java.io Writer)
   (java.time ZonedDateTime)
   (java.time.format DateTimeFormatter)
   (java.util Locale)
   (java.util.concurrent ArrayBlockingQueue BlockingQueue TimeUnit)
   (java.util.concurrent.atomic LongAdder)))

(set! *warn-on-reflection* true)

(def ^:private ^DateTimeFormatter time-format
  (DateTimeFormatter/ofPattern "dd/MMM/yyyy:HH:mm:ss Z" Locale/ROOT))

(defn- escaped-char [c]
  (let [n (int c)]
    (if (or (< n 0x20) (< 0x7e n) (= 0x22 n) (= 0x5c n))
      (str/join (map #(format "\\x%02X" (bit-and 0xff (int %))) (.getBytes (str c) "UTF-8")))
      c)))

(defn escaped
  "Returns the string with every byte below 0x20 or above 0x7e, every quote and every backslash as \\xHH."
  [s]
  (str/join (map escaped-char (str s))))

(defn line
  "Returns the line of a request: without query, cookies or any other header."
  [{:keys [request status bytes]} ^ZonedDateTime at]
  (let [{:keys [remote-addr request-method uri protocol]} request]
    (str (or remote-addr "-") " - - [" (.format time-format at) "] \""
         (if request-method
           (escaped (str (str/upper-case (name request-method)) " " uri " " protocol))
           "-")
         "\" " (or status "-") " " (if (pos? (long (or bytes 0))) bytes "-"))))

(defn- write-line! [^Writer out ^BlockingQueue lines ^String text]
  (.write out text)
  (.write out "\n")
  (when (.isEmpty lines) (.flush out)))

(defn- write-lines! [^Writer out ^BlockingQueue lines closed]
  (loop []
    (let [text (.poll lines 100 TimeUnit/MILLISECONDS)]
      (when text (write-line! out lines text))
      (when (or text (not @closed)) (recur))))
  (.flush out))

(defn- write-all!
  "Writes until closed. A disk that fails ends the log, not the server: what comes then counts as dropped."
  [^Writer out close? lines closed ^LongAdder dropped]
  (try
    (write-lines! out lines closed)
    (catch Throwable _
      (reset! closed :failed)
      (.add dropped (inc (.size ^BlockingQueue lines))))
    (finally
      (when close? (try (.close out) (catch Exception _))))))

(defn- writer-thread ^Thread [f]
  (-> (Thread/ofPlatform) (.daemon true) (.name "thrum-access-log") (.start ^Runnable f)))

(def ^:private ^:const stop-ms
  "How long the end of the server waits for the lines that are queued."
  5000)

(defn observer
  "Returns an observer that writes to a java.io.Writer, which stays open, or appends to a file; queue: how many lines may wait to
  be written, beyond which they are dropped and counted."
  [to queue]
  (when-not (or (instance? Writer to) (string? to) (instance? java.io.File to))
    (throw (error/invalid (str "A log is written to a java.io.Writer, or a file, not " (shown/text to)) {:value to})))
  (let [own? (not (instance? Writer to))
        out (if own? (io/writer to :append true) to)
        lines (ArrayBlockingQueue. (int queue))
        closed (atom nil)
        dropped (LongAdder.)
        thread (writer-thread #(write-all! out own? lines closed dropped))]
    {:end (fn [facts]
            (when (or @closed (not (.offer lines (line facts (ZonedDateTime/now)))))
              (.increment dropped)))
     :stop (fn [_]
             (compare-and-set! closed nil :stopped)
             (.join thread stop-ms))
     :dropped #(.sum dropped)}))

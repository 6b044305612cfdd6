(ns thrum.server.impl.access-log
  "The built-in observer: one line a request, without query, cookies or other secrets, written by a
  thread of its own."
  {:no-doc true}
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.spi :as spi])
  (:import
   (clojure.lang IProxy)
   (java.io Writer)
   (java.time ZonedDateTime)
   (java.time.format DateTimeFormatter)
   (java.util ArrayList Locale)
   (java.util.concurrent ArrayBlockingQueue BlockingQueue TimeUnit)
   (java.util.concurrent.atomic LongAdder)))

(set! *warn-on-reflection* true)

(def ^:private ^DateTimeFormatter time-format
  (DateTimeFormatter/ofPattern "dd/MMM/yyyy:HH:mm:ss Z" Locale/ROOT))

;; What a client sent, so that it can neither end a line nor fill a disk

(def ^:private ^:const longest
  "How many characters of a field are written."
  1024)

(defn- bounded [s]
  (let [s (str s)]
    (if (< longest (count s)) (str (subs s 0 longest) "...") s)))

(defn- plain? [c]
  (let [n (int c)]
    (and (<= 0x20 n 0x7e) (not= 0x22 n) (not= 0x5c n))))

(defn- escaped-by
  "Returns the string with each character that is not plain, of printable ASCII without quote and
  backslash, as (f character)."
  [f s]
  (let [s (bounded s)]
    (if (every? plain? s)
      s
      (str/join (map #(if (plain? %) % (f %)) s)))))

(defn- as-bytes [c]
  (str/join (map #(format "\\x%02X" (bit-and 0xff (int %))) (.getBytes (str c) "UTF-8"))))

(defn escaped
  "Returns the string with every byte below 0x20 or above 0x7e, every quote and every backslash as
  \\xHH; cut where it is long."
  [s]
  (escaped-by as-bytes s))

;; The formats

(defn- method-of [{:keys [request-method]}]
  (some-> request-method name (.toUpperCase Locale/ROOT)))

(defn- header [request k]
  (get-in request [:headers k]))

(defn- referer
  "Returns where the client comes from, without query and fragment: there are secrets in them too."
  [request]
  (some-> (header request "referer") (str/split #"[?#]" 2) first))

(defn- common [{:keys [request status bytes]} ^ZonedDateTime at]
  (let [{:keys [remote-addr uri protocol]} request
        method (method-of request)]
    (str (or remote-addr "-") " - - [" (.format time-format at) "] \""
         (if method
           (escaped (str method " " uri " " protocol))
           "-")
         "\" " (or status "-") " " (if (pos? (long (or bytes 0))) bytes "-"))))

(defn- quoted [s]
  (str "\"" (if s (escaped s) "-") "\""))

(defn- seconds [nanos]
  (String/format Locale/ROOT "%.6f" (object-array [(/ (long (or nanos 0)) 1e9)])))

(defn- combined [{:keys [request nanos] :as facts} at]
  (str/join " " [(common facts at) (quoted (referer request)) (quoted (header request "user-agent"))
                 (seconds nanos) (or (:thrum/request-id request) "-")]))

(defn- json-value [x]
  (cond
    (nil? x) "null"
    (string? x) (str "\"" (escaped-by #(format "\\u%04x" (int %)) x) "\"")
    :else (str x)))

(defn- class-name
  "Returns the name of the throwable's class: of a proxy, as core's CancellationException is, that
  of the class behind it."
  [throwable]
  (let [class (class throwable)]
    (.getName (if (instance? IProxy throwable) (.getSuperclass class) class))))

(defn- json
  [{:keys [request status bytes nanos throwable]} ^ZonedDateTime at]
  (let [{:keys [remote-addr scheme uri protocol], id :thrum/request-id} request
        members [["time" (str (.toInstant at))]
                 ["remote_addr" remote-addr]
                 ["scheme" (some-> scheme name)]
                 ["host" (header request "host")]
                 ["method" (method-of request)]
                 ["uri" uri]
                 ["protocol" protocol]
                 ["status" status]
                 ["bytes" bytes]
                 ["seconds" (when nanos (symbol (seconds nanos)))]
                 ["referer" (referer request)]
                 ["user_agent" (header request "user-agent")]
                 ["request_id" id]
                 ["error" (some-> throwable class-name)]]]
    (str "{" (str/join "," (for [[k v] members] (str "\"" k "\":" (json-value v)))) "}")))

(def formats
  "By name: a function from an observer's facts and the time to a line."
  {:common common, :combined combined, :json json})

(defn- write-lines! [^Writer out ^BlockingQueue lines closed]
  (loop []
    ;; Looked at before the poll: what was queued before the end is written.
    (let [last? @closed, ^String text (.poll lines 100 TimeUnit/MILLISECONDS)]
      (when text
        (.write out text)
        (.write out "\n")
        (when (.isEmpty lines) (.flush out)))
      (when (or text (not last?)) (recur))))
  (.flush out))

(defn- write-all!
  "Writes until closed. A disk that fails ends the log, not the server: the failure goes to the
  uncaught exception handler, and what comes then counts as dropped. file: what out writes to, and
  is closed; nil for a writer that stays open."
  [^Writer out file lines closed ^LongAdder dropped]
  (try
    (write-lines! out lines closed)
    (catch Throwable t
      (vreset! closed true)
      (.add dropped (inc (.drainTo ^BlockingQueue lines (ArrayList.))))
      (spi/uncaught! (ex-info (str "The access log " (when file (str file " "))
                                   "has ended: it cannot be written")
                              (if file {:file (str file)} {})
                              t)))
    (finally
      (when file (try (.close out) (catch Exception _))))))

(defn- queued?
  "Queues the line where there is room. Returns whether it did, and the log has not ended since: a
  line that its thread has left is taken out again."
  [^BlockingQueue lines closed text]
  (and (.offer lines text)
       (not (and @closed (.remove lines text)))))

(def ^:private ^:const stop-ms
  "How long the end of the server waits for the lines that are queued."
  5000)

(defn- writer
  "Returns to, where that is a Writer, or else a Writer that appends to this file."
  ^Writer [to]
  (cond
    (instance? Writer to) to
    (or (string? to) (instance? java.io.File to)) (io/writer to :append true)
    :else (throw (spi/invalid (str "A log is written to a java.io.Writer, or a file, not "
                                (spi/text to))
                   {:value to}))))

(defn observer
  "Returns an observer that writes to a java.io.Writer, which stays open, or appends to a file;
  format: one of formats; queue: how many lines may wait to be written, beyond which they are
  dropped and counted."
  [to {:keys [format queue]}]
  (let [out (writer to)
        file (when-not (instance? Writer to) to)
        line (formats format)
        lines (ArrayBlockingQueue. (int queue))
        closed (volatile! false)
        dropped (LongAdder.)
        thread (doto (spi/platform-thread "thrum-access-log"
                                          #(write-all! out file lines closed dropped))
                 .start)]
    {:end (fn [facts]
            (when (or @closed (not (queued? lines closed (line facts (ZonedDateTime/now)))))
              (.increment dropped)))
     :stop (fn [_] (vreset! closed true) (.join thread stop-ms))
     :dropped #(.sum dropped)}))

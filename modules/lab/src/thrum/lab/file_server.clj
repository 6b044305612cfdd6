(ns thrum.lab.file-server
  "The web server that the lab downloads from: it holds one block of bytes and sends no connection
  more than so many of them per second. Runs in a process of its own and ends with its parent."
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.in-child :as in-child])
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.io OutputStream)
   (java.net InetAddress InetSocketAddress)
   (java.time Duration)
   (java.util.concurrent Executors)))

(set! *warn-on-reflection* true)

(def jvm-opts "Flags of the server's JVM." (conj child/http-server-opts "-Xmx512m"))

(def ^:private start-ms "How long the server's JVM may take to start." 60000)
(def ^:private backlog 4096)
(def ^:private block (byte-array 65536))

(defn chunk-size
  "Returns how many bytes to send at a time: an eighth of the file, between 1 kB and 64 kB."
  [bytes]
  (min (alength ^bytes block) (max 1024 (quot bytes 8))))

(defn due-ns
  "Returns when, in ns after the start, `sent` bytes may have been sent at `rate` bytes per second."
  [sent rate]
  (long (/ (* sent 1e9) rate)))

(defn- sleep-until [deadline-ns]
  (let [left (- (long deadline-ns) (System/nanoTime))]
    (when (pos? left)
      (Thread/sleep (Duration/ofNanos left)))))

(defn- send-paced
  "Writes `bytes` bytes to out, each chunk when all of it is due, so that the whole takes bytes /
  rate."
  [^OutputStream out bytes rate]
  (let [start (System/nanoTime), chunk (chunk-size bytes)]
    (doseq [sent (range 0 bytes chunk)
            :let [size (min chunk (- bytes sent))]]
      (when rate
        (sleep-until (+ start (due-ns (+ sent size) rate))))
      (.write out ^bytes block 0 (int size))
      (.flush out))))

(defn path
  "Returns the path of a file of `bytes` bytes sent at `rate`, bytes per second or :unlimited."
  [bytes rate]
  (str "/file/" bytes (when (number? rate) (str "?rate=" rate))))

(def piece "The size of a file that the server sends in one piece, at the end of its time." 1000)

(defn delayed
  "Returns the path of a file of that size which takes ms."
  [ms]
  (path piece (quot (* 1000 piece) ms)))

(defn- asked-for [^HttpExchange exchange]
  (let [uri (.getRequestURI exchange)
        [_ rate] (some->> (.getQuery uri) (re-matches #"rate=(\d+)"))]
    {:bytes (parse-long (last (str/split (.getPath uri) #"/")))
     :rate (some-> rate parse-long)}))

(def ^:private handler
  (reify HttpHandler
    (handle [_ exchange]
      (with-open [exchange exchange]
        (let [{:keys [bytes rate]} (asked-for exchange)]
          (.sendResponseHeaders exchange 200 bytes)
          (with-open [out (.getResponseBody exchange)]
            (send-paced out bytes rate)))))))

(defn start!
  "Starts the server on a free port of the loopback interface and returns it."
  ^HttpServer []
  (let [address (InetSocketAddress. (InetAddress/getLoopbackAddress) 0)]
    (doto (HttpServer/create address backlog)
      (.setExecutor (Executors/newVirtualThreadPerTaskExecutor))
      (.createContext "/file/" handler)
      (.start))))

(defn -main
  "Starts the server, prints {:port n}, and ends when standard input does. Ctrl-C is for the parent
  to answer."
  [& _]
  (in-child/run!
    (fn []
      (in-child/say! {:port (.getPort (.getAddress (start!)))})
      (in-child/halt-with-parent!))))

(defn start-child!
  "Starts the server in a process of its own and returns it, a thrum.lab.child with its :url."
  []
  (child/ready! (child/start! (child/java-command jvm-opts 'thrum.lab.file-server))
    #(assoc % :url (str "http://127.0.0.1:" (:port (child/ask % start-ms))))))

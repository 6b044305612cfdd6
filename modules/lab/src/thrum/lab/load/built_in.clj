(ns thrum.lab.load.built-in
  "Load without wrk: a closed loop of connections, a virtual thread each, in a JVM of its own, with
  an HdrHistogram of the latencies. Or a burst: so many requests, so many at once, a connection for
  each. A request that waits longer than the time-out for more of its answer is given up, and its
  connection opened anew; wrk goes on waiting. The percentiles are of what was answered."
  (:require
   [clojure.edn :as edn]
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.in-child :as in-child]
   [thrum.lab.load.answer :as answer]
   [thrum.lab.load.job :as job])
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.io BufferedInputStream IOException PushbackReader)
   (java.net InetAddress InetSocketAddress Socket SocketTimeoutException URI)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap ExecutorService Executors)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong LongAdder)
   (org.HdrHistogram ConcurrentHistogram)))

(set! *warn-on-reflection* true)

(def ^:private jvm-opts ["-Xmx512m" "-XX:+UseSerialGC"])
(def ^:private start-ms "How long the generator's JVM may take beyond its load." 60000)
(def ^:private pause-ms "How long a connection rests after it was refused, so as not to spin." 10)
(def ^:private longest-us "The longest latency that is recorded; longer ones count as this."
                          600000000)
(def ^:private kinds [:connect :read :write :timeout :status])

;; What is counted: latencies in us, errors by kind, and the sockets to close at the end.

(defrecord Tally [^ConcurrentHistogram latencies errors ^Set sockets ^AtomicBoolean ended])

(defn- tally []
  (->Tally (ConcurrentHistogram. longest-us 3)
           (into {} (map (fn [kind] [kind (LongAdder.)])) kinds)
           (ConcurrentHashMap/newKeySet)
           (AtomicBoolean.)))

(defn- ended? [{:keys [^AtomicBoolean ended]}]
  (.get ended))

(defn- add-error! [{:keys [errors]} kind]
  (LongAdder/.increment (errors kind)))

(defn- count-error! [tally kind]
  (when-not (ended? tally)
    (add-error! tally kind)))

(defn- count-answer!
  [{:keys [^ConcurrentHistogram latencies], :as tally} started status]
  (when-not (ended? tally)
    (.recordValue latencies
                  (min (long longest-us) (quot (- (System/nanoTime) (long started)) 1000)))
    ;; Counted as an answer, so counted as an error too, although the load may end here.
    (when-not (<= 200 (long status) 399) (add-error! tally :status))))

;; One connection

(defn request
  "Returns a job's request as bytes."
  ^bytes [{:keys [url headers]}]
  (let [uri (URI. url)
        target (str (not-empty (.getRawPath uri))
                    (some->> (.getRawQuery uri)
                             (str "?")))
        lines (into [(str "GET " (or (not-empty target) "/") " HTTP/1.1")
                     (str "Host: " (.getRawAuthority uri))]
                    (map (fn [[name value]] (str name ": " value)))
                    headers)]
    (.getBytes (str (str/join "\r\n" lines) "\r\n\r\n") "ISO-8859-1")))

(defn- address ^InetSocketAddress [url]
  (let [uri (URI. url), port (.getPort uri)]
    (InetSocketAddress. (.getHost uri) (int (if (neg? port) 80 port)))))

(defn- connect! ^Socket [{:keys [url timeout-ms]}]
  (let [socket (Socket.)]
    (try
      (.connect socket (address url) (int timeout-ms))
      (doto socket (.setTcpNoDelay true) (.setSoTimeout (int timeout-ms)))
      (catch Throwable t (.close socket) (throw t)))))

(defn- talk!
  "Sends requests on the socket until it must not be used again, or the load has ended. phase says
  what is being done."
  [tally ^Socket socket ^bytes request phase]
  (let [in (BufferedInputStream. (.getInputStream socket)), out (.getOutputStream socket)]
    (loop []
      (when-not (ended? tally)
        (let [started (System/nanoTime)]
          (vreset! phase :write)
          (.write out request)
          (vreset! phase :read)
          (let [{:keys [status keep?]} (answer/read! in)]
            (count-answer! tally started status)
            (when keep? (recur))))))))

(defn- kind-of [phase throwable]
  (if (and (= :read phase) (instance? SocketTimeoutException throwable)) :timeout phase))

(defn- with-connection!
  "Opens a connection and talks. Returns :refused where it could not be opened."
  [{:keys [^Set sockets] :as tally} job request]
  (let [phase (volatile! :connect)]
    (try
      (with-open [socket (connect! job)]
        (.add sockets socket)
        (try
          (talk! tally socket request phase)
          (finally (.remove sockets socket))))
      (catch IOException e
        (count-error! tally (kind-of @phase e))
        (when (= :connect @phase) :refused)))))

(defn- keep-asking! [tally job request]
  (try
    (while (not (ended? tally))
      (when (= :refused (with-connection! tally job request))
        (Thread/sleep (long pause-ms))))
    (catch InterruptedException _)))

;; All of them

(defn- figures
  [{:keys [^ConcurrentHistogram latencies errors]} seconds]
  (let [requests (.getTotalCount latencies)
        percentile-ms (fn [p]
                        (when (pos? requests) (/ (.getValueAtPercentile latencies p) 1000.0)))]
    {:requests requests
     :seconds seconds
     :per-second (/ requests (double seconds))
     :p50-ms (percentile-ms 50.0)
     :p99-ms (percentile-ms 99.0)
     :max-ms (percentile-ms 100.0)
     :errors (into {}
                   (keep (fn [[kind n]] (when (pos? (LongAdder/.sum n)) [kind (LongAdder/.sum n)])))
                   errors)}))

(defn- end! [{:keys [^AtomicBoolean ended ^Set sockets]} ^ExecutorService threads]
  (.set ended true)
  (run! Socket/.close sockets)
  (.shutdownNow threads)
  (.close threads))

(defn run
  "Keeps the job's connections busy for its :seconds and returns what came of it; see
  thrum.lab.load. Blocks."
  [{:keys [connections seconds], :as job}]
  (let [tally (tally)
        request (request job)
        threads (Executors/newVirtualThreadPerTaskExecutor)
        started (System/nanoTime)
        elapsed (try
                  (dotimes [_ connections] (.execute threads #(keep-asking! tally job request)))
                  (Thread/sleep (long (* 1000 seconds)))
                  (/ (- (System/nanoTime) started) 1e9)
                  (finally
                    (end! tally threads)))]
    (figures tally elapsed)))

;; A burst

(defn- ask-once!
  "Opens a connection, asks one question, and closes it."
  [tally job ^bytes request]
  (let [phase (volatile! :connect)
        started (System/nanoTime)]
    (try
      (with-open [socket (connect! job)]
        (vreset! phase :write)
        (.write (.getOutputStream socket) request)
        (vreset! phase :read)
        (count-answer! tally
                       started
                       (:status (answer/read! (BufferedInputStream. (.getInputStream socket))))))
      (catch IOException e (count-error! tally (kind-of @phase e))))))

(defn burst
  "Sends the job's :requests, so many :connections at once, each on a connection of its own, and
  returns what came of it; see thrum.lab.load. Blocks until the last one is answered or given up."
  [{:keys [requests connections], :as job}]
  (let [tally (tally)
        request (request job)
        left (AtomicLong. requests)
        started (System/nanoTime)]
    (with-open [threads (Executors/newVirtualThreadPerTaskExecutor)]
      (dotimes [_ connections]
        (.execute threads #(while (pos? (.getAndDecrement left)) (ask-once! tally job request)))))
    (figures tally (/ (- (System/nanoTime) started) 1e9))))

(def ^:private nothing
  (reify HttpHandler
    (handle [_ exchange]
      (with-open [^HttpExchange exchange exchange]
        (.sendResponseHeaders exchange 200 -1)))))

(defn- warm-up-bursts!
  "Has this JVM compile what a burst runs, on a server of its own, so that the one that is measured
  need not answer for it."
  []
  (let [server (HttpServer/create (InetSocketAddress. (InetAddress/getLoopbackAddress) 0) 1000)]
    (try
      (doto server
        (.setExecutor (Executors/newVirtualThreadPerTaskExecutor))
        (.createContext "/" nothing)
        .start)
      (burst {:url (str "http://127.0.0.1:" (.getPort (.getAddress server)) "/")
              :requests 3000
              :connections 100
              :timeout-ms 10000})
      (finally
        (.stop server 0)))))

(defn- do-bursts!
  "Does the job, prints what came of it, and so on with each further one until standard input ends."
  [job in]
  (warm-up-bursts!)
  (loop [job job]
    (when job
      (in-child/say! (burst job))
      (recur (edn/read {:eof nil} in)))))

(defn -main
  "Reads a job from standard input, does it, prints what came of it, and ends; at once when standard
  input ends. After a job with :requests, a burst, it goes on to read one."
  [& _]
  (in-child/run!
    #(let [in (PushbackReader. *in*), job (edn/read in)]
       (if (:requests job)
         (do-bursts! job in)
         (do (in-child/halt-with-parent!)
             (some-> (job/warm-up job) run)
             (in-child/say! (run job)))))))

(defn drive!
  "Does the job in a JVM of its own and returns what came of it; see thrum.lab.load."
  [{:keys [seconds warm-up-seconds] :as job}]
  (let [generator (child/start! (child/java-command jvm-opts 'thrum.lab.load.built-in))]
    (try
      (child/send! generator job)
      (child/ask generator (+ start-ms (* 1000 (+ seconds (or warm-up-seconds 0)))))
      (finally (child/stop! generator)))))

(defn open!
  "Starts a JVM for bursts and returns {:burst! :close!}: burst! takes a job and returns what came
  of it, blocking; see thrum.lab.load."
  []
  (let [generator (child/start! (child/java-command jvm-opts 'thrum.lab.load.built-in))]
    {:burst! (fn [job]
               (child/send! generator job)
               (child/ask generator (+ start-ms (job/longest-ms job))))
     :close! #(child/stop! generator)}))

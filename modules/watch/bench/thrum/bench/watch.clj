(ns thrum.bench.watch
  "What watching costs: CPU time of the process for an item of prun!, by what is on, and for an item
  and a request beside 100 000 tasks, in interleaved rounds; a tree of 100 000 tasks; the sampler's
  CPU time; the health check while every carrier is held. Some eight minutes; the second four.

      ./cljw -M:watch-cost
      ./cljw -M:watch-cost crowd"
  (:require
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.impl.registry :as registry]
   [thrum.server :as server]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi.watch :as spi]
   [thrum.watch :as watch]
   [thrum.watch.impl.flight :as flight])
  (:import
   (com.sun.management OperatingSystemMXBean)
   (java.io BufferedReader EOFException InputStreamReader)
   (java.lang AutoCloseable)
   (java.lang.management ManagementFactory ThreadInfo ThreadMXBean)
   (java.net Socket)
   (java.util.concurrent.atomic AtomicReference)
   (jdk.jfr FlightRecorder Recording)))

(set! *warn-on-reflection* true)

(def ^:private ^OperatingSystemMXBean system (ManagementFactory/getOperatingSystemMXBean))
(def ^:private ^ThreadMXBean threads (ManagementFactory/getThreadMXBean))

(defn- median [xs]
  (nth (sort xs) (quot (count xs) 2)))

;; CPU time of an item

;; Short blocks in many rounds: other work changes what an item costs by tens of percent from one
;; second to the next. The CPU time of a process comes in grains of 10 ms, which the mean evens out.
(def ^:private ^:const items 100000)

(defn- each-ns
  "Returns [CPU wall] of the process for each of n things that f does, in ns."
  [n f]
  (let [before (.getProcessCpuTime system), begun (System/nanoTime)]
    (f)
    [(/ (- (.getProcessCpuTime system) before) (double n))
     (/ (- (System/nanoTime) begun) (double n))]))

(defn- item-ns
  "Returns what an item costs that does nothing."
  []
  (each-ns items #(t/prun! 64 identity (range items))))

(defn- mean [xs]
  (/ (reduce + xs) (double (count xs))))

(defn- middle-mean
  "Returns [mean error]: the mean of the middle half, and its standard error, by the deviation of
  all where those outside count as the nearest within."
  [xs]
  (let [n (quot (count xs) 4), middle (drop-last n (drop n (sort xs)))
        near (map #(max (first middle) (min (last middle) %)) xs), middle-of-near (mean near)
        deviation (Math/sqrt (mean (map #(Math/pow (- % middle-of-near) 2) near)))]
    [(mean middle) (* 2 (/ deviation (Math/sqrt (count xs))))]))

(defn- print-row [what taken base]
  (let [cpu (map first taken), wall (map second taken)
        ratios (map / cpu (map first base)), [middle error] (middle-mean ratios)]
    (println (format "| %s | %.0f | %.0f | %.3f | %.4f ± %.4f | %.3f | %.3f |"
                     what (apply min cpu) (median cpu) (median ratios) middle error
                     (/ (reduce + cpu) (reduce + (map first base)))
                     (median (map / wall (map second base)))))))

(defn- round
  "Returns what each of the variants takes, measured in a random order."
  [measure variants]
  (let [taken (into {} (for [[what begin!] (shuffle variants)]
                         (let [end! (begin!)]
                           [what (try (measure) (finally (end!)))])))]
    (mapv (comp taken first) variants)))

(defn- compare!
  "Measures in interleaved rounds, behind some that are not counted, and prints a row for each of
  [what begin!], where begin! returns a function that ends it. The first is what the others are
  compared with; a variant that is the same shows the noise."
  [title measure rounds variants]
  (let [taken (do (dotimes [_ 10] (round measure variants))
                  (doall (repeatedly rounds #(round measure variants))))
        columns (apply map vector taken)]
    (println (str "| " title
                  " | best CPU ns | median | median of CPU ratios | mean of their middle half"
                  " | ratio of sums | of wall |"))
    (println "|---|--:|--:|--:|--:|--:|--:|")
    (doseq [[[what _] costs] (map vector variants columns)]
      (print-row what costs (first columns)))))

(defn- unwatched! []
  (spi/watch! false)
  (fn []))

(defn- watched! []
  (spi/watch! true)
  #(spi/watch! false))

(defn- ready! []
  (let [end! (watched!)]
    (spi/observe! (#'flight/observer))
    end!))

(defn- recording! []
  (let [end! (ready!)
        recording (doto (Recording.) (.enable "thrum.Task") .start)]
    (fn []
      (.close recording)
      (end!))))

(defn- items! []
  (FlightRecorder/getFlightRecorder)
  (compare! "prun!, 64 at once" item-ns 60
            [["not watched" unwatched!] ["not watched, again" unwatched!] ["watched" watched!]
             ["watched, the recorder in use, thrum.Task off" ready!]])
  (compare! "prun!, 64 at once" item-ns 10
            [["not watched" unwatched!] ["watched, thrum.Task recorded" recording!]]))

;; A hundred thousand tasks alive, and kept in the registry: all the while, because to make and end
;; them costs more than what is measured. What varies is whether that which begins now is watched.
(def ^:private ^:const crowd 100000)

(defn- crowd!
  "Starts so many tasks, which park. Returns a function that ends them."
  []
  (let [gate (promise), tasks (doall (repeatedly crowd #(t/future @gate)))]
    (fn []
      (deliver gate true)
      (run! deref tasks))))

(defn- switch!
  "Watches what begins from now on, with this registry and these observers of requests; given nil,
  does not."
  [registry observers]
  (alter-var-root #'registry/watch (constantly registry))
  (.set ^AtomicReference @#'exchanges/registered observers))

(defn- begun-unwatched! []
  (let [registry @#'registry/watch, observers (exchanges/observers)]
    (switch! nil nil)
    #(switch! registry observers)))

(def ^:private beside-the-crowd
  [["not watched" begun-unwatched!] ["not watched, again" begun-unwatched!]
   ["watched" (constantly (fn []))]])

;; Clients of this process, whose CPU time is in every figure, on connections that last.

(def ^:private ^:const clients 8)
(def ^:private ^:const requests-each 1000)

(def ^:private get-request
  (.getBytes "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))

(defn- ask!
  "Sends that many requests, each after the response to the one before, which ends with a !."
  [^Socket socket]
  (let [out (.getOutputStream socket), in (.getInputStream socket), answer (byte-array 1024)]
    (dotimes [_ requests-each]
      (.write out ^bytes get-request)
      (loop []
        (let [n (.read in answer)]
          (when (neg? n) (throw (EOFException.)))
          (when-not (= 33 (aget answer (dec n))) (recur)))))))

(defn- client ^Socket [port]
  (doto (Socket. "127.0.0.1" (int port)) (.setTcpNoDelay true)))

(defn- request-ns [sockets]
  (each-ns (* (long clients) (long requests-each))
    #(run! deref (mapv (fn [socket] (future (ask! socket))) sockets))))

(defn- crowds! [rounds]
  (compare! "prun!, 64 at once" item-ns rounds beside-the-crowd)
  (with-open [server ^AutoCloseable (server/run-server (constantly {:status 200, :body "!"})
                                      {:engine :helidon, :port 0})]
    (let [sockets (doall (repeatedly clients #(client (server/port server))))]
      (compare! "request" #(request-ns sockets) rounds beside-the-crowd)
      (run! #(.close ^Socket %) sockets))))

(defn- timed
  "Returns [wall CPU] of f on this thread, in ms."
  [f]
  (let [wall (System/nanoTime), cpu (.getCurrentThreadCpuTime threads)]
    (f)
    [(/ (- (System/nanoTime) wall) 1e6) (/ (- (.getCurrentThreadCpuTime threads) cpu) 1e6)]))

(defn- tree! []
  (let [taken (doall (repeatedly 7 #(timed watch/tree)))]
    (println (format "tree of 100 000 tasks: wall %.0f ms best, %.0f ms median; CPU %.0f, %.0f ms"
                     (apply min (map first taken)) (median (map first taken))
                     (apply min (map second taken)) (median (map second taken))))))

(defn- sampler-ms
  "Returns the CPU time of the sampler so far, in ms."
  []
  (let [sampler? (fn [^ThreadInfo info]
                   (and info (= "thrum-watch-sampler" (.getThreadName info))))
        [^ThreadInfo info] (filter sampler? (.getThreadInfo threads (.getAllThreadIds threads)))]
    (/ (.getThreadCpuTime threads (.getThreadId info)) 1e6)))

(defn- share!
  "Prints what the sampler takes, in windows of ten seconds: the first have its allowance."
  []
  (with-open [_ ^AutoCloseable (watch/start! {:port 0})]
    (println "sampler, CPU in ms of each 10 s:"
             (str/join ", " (loop [before 0.0, windows []]
                              (if (= 6 (count windows))
                                windows
                                (do (Thread/sleep 10000)
                                    (let [now (double (sampler-ms))]
                                      (recur now (conj windows (Math/round (- now before))))))))))))

;; Every carrier held

(defn- health-ms [port]
  (first (timed #(with-open [socket (Socket. "127.0.0.1" (int port))]
                   (.setSoTimeout socket 10000)
                   (.write (.getOutputStream socket)
                           (.getBytes (str "GET /health HTTP/1.1\r\nHost: x\r\n"
                                           "Connection: close\r\n\r\n")))
                   (.readLine (BufferedReader. (InputStreamReader. (.getInputStream socket))))))))

(defn- health! []
  (with-open [w ^AutoCloseable (watch/start! {:port 0})]
    (let [gate (volatile! false), hog #(t/future (while (not @gate)))
          hogs (doall (repeatedly (* 2 (.availableProcessors (Runtime/getRuntime))) hog))]
      (Thread/sleep 1500)
      (let [taken (sort (doall (repeatedly 300 #(health-ms (watch/port w)))))]
        (println (format "/health, every carrier held, 300 times: p50 %.1f ms, p99 %.1f ms"
                         (nth taken 150) (nth taken 297))))
      (vreset! gate true)
      (run! deref hogs))))

(defn -main
  "Prints the figures. crowd: those of 100 000 tasks alone, of so many rounds."
  [& [only rounds]]
  (when-not only (items!))
  (spi/watch! true)
  (let [end! (crowd!)]
    (crowds! (parse-long (or rounds "300")))
    (tree!)
    (when-not only (share!))
    (end!))
  (when-not only (health!))
  (System/exit 0))

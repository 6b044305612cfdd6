(ns thrum.soak.stage
  "What an ordeal is made of: servers that end with it, clients in number, bystanders who must be
  answered meanwhile, and verdicts.

  An ordeal is a map: :name; :sentence, what it proves; :run, a function of the stage, which throws
  a verdict or returns figures; :controls, pairs of a sentence and a function that breaks the stage,
  after which the ordeal must fail; :needs, the capabilities that it asks for; :alone?, that it
  needs a JVM of its own. A stage is a map: :engine, :seconds; what a control may change: :options,
  over those of each server, and :wrap, a function around each handler; :endings, what is to be
  ended."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.lang.management ManagementFactory)
   (java.util.concurrent Semaphore ThreadLocalRandom)))

(set! *warn-on-reflection* true)

(def idle-timeout-ms
  "The :idle-timeout-ms of all servers of this JVM: the JDK's has one alone."
  4000)

;; Verdicts

(defn expect
  "Ends the ordeal unless ok?: what was expected, and what was found."
  [ok? expected found]
  (when-not ok?
    (throw (ex-info (str "expected " expected ", found " (pr-str found))
                    {::failed true, :expected expected, :found found}))))

;; Chance and time

(defn chance
  "Returns an integer from 0 below n."
  ^long [n]
  (.nextInt (ThreadLocalRandom/current) (int n)))

(defn random-bytes
  "Returns n bytes by chance."
  [n]
  (let [bs (byte-array n)]
    (.nextBytes (ThreadLocalRandom/current) bs)
    bs))

(defn now-ms
  "Returns a moment in ms, of a clock that never goes back."
  ^long []
  (quot (System/nanoTime) 1000000))

(defn timed
  "Returns [value ms] of (f)."
  [f]
  (let [start (now-ms), value (f)]
    [value (- (now-ms) start)]))

(defn pause!
  "Keeps a client busy doing nothing: its pace, never what a verdict waits for."
  [ms]
  (Thread/sleep (long ms)))

;; Many clients

(def ^:private longest-ms 60000)

(defn- value-of
  [outcome]
  (let [{:keys [value thrown]}
        (deref outcome longest-ms {:thrown (ex-info "A client hangs" {::failed true})})]
    (if thrown (throw thrown) value)))

(defn start
  "As scene/start, on a virtual thread: an ordeal has hundreds of clients, and a server's platform
  threads are counted."
  [f]
  (scene/start #(Thread/startVirtualThread %) f))

(defn- at-once [start n f]
  (mapv value-of (mapv (fn [i] (start #(f i))) (range n))))

(defn each
  "Returns what (f i) returned for i below n, all at once on virtual threads; throws what one threw,
  or that one hangs."
  [n f]
  (at-once start n f))

(defn each-busy
  "As each, on platform threads: for clients that never wait, and would keep virtual threads, the
  server's too, from running."
  [n f]
  (at-once scene/start n f))

(defn bounded
  "As each, at most so many at a time."
  [most n f]
  (let [permits (Semaphore. (int most))]
    (each n (fn [i]
              (.acquire permits)
              (try (f i) (finally (.release permits)))))))

(defn until
  "Calls (f) on each of n virtual threads again and again for so many ms; returns how many calls
  that were."
  [n ms f]
  (let [end (+ (now-ms) (long ms))]
    (reduce + (each n (fn [_] (loop [calls 0]
                                (if (< (now-ms) end) (do (f) (recur (inc calls))) calls)))))))

;; Servers

(def ^:private usual
  {:port 0
   :stop-on-shutdown? false
   :shutdown-timeout-ms 2000
   :idle-timeout-ms idle-timeout-ms
   :header-timeout-ms 2000
   :error-handler (fn [_ _] {:status 500, :headers {}, :body "failed"})})

(defn options-of
  "Returns the options of a server on this stage."
  [{:keys [engine options]} more]
  (merge usual {:engine engine} more options))

(defn serve
  "Starts a server that ends with the ordeal; returns it."
  [{:keys [wrap servers] :as stage} handler options]
  (let [server (server/run-server ((or wrap identity) handler) (options-of stage options))]
    (swap! servers conj server)
    (scene/at-end stage #(server/stop! server))
    server))

;; Clients

(defmacro with-client
  "Runs the forms with a client of the port; closes it."
  [[c port] & forms]
  `(let [~c (wire/connect ~port)]
     (try ~@forms (finally (wire/close! ~c)))))

(defn ask
  "Returns the response to these texts, on a connection of its own."
  [port & texts]
  (with-client [c port] (apply wire/ask! c texts)))

(defn whole-200?
  "True if a response is a complete 200."
  [answer]
  (and (= 200 (:status answer)) (wire/complete? answer)))

;; Bystanders: well-behaved clients

(def ^:private in-time-ms
  "How long a bystander's request may take on a small and busy machine."
  5000)

(defn- visit!
  [port slowest]
  (let [[answer ms] (timed #(ask port (wire/get "/bystander")))]
    (swap! slowest max ms)
    (expect (whole-200? answer) "that a bystander is answered" answer)
    (expect (< (long ms) (long in-time-ms))
            (str "that a bystander is answered within " in-time-ms " ms")
            ms)
    (pause! 10)))

(defn beside-bystanders
  "Returns what (f) returns, a map, with :bystanders, how many requests of two well-behaved clients
  were answered meanwhile, and :slowest-ms. Each must have been, in time; their path is /bystander."
  [port f]
  (let [slowest (atom 0)
        over (promise)
        visits (start #(each 2
                         (fn [_]
                           (loop [n 0]
                             (if (realized? over)
                               n
                               (do
                                 (visit! port slowest)
                                 (recur (inc n))))))))
        figures (try
                  (f)
                  (finally
                    (deliver over true)))]
    (assoc figures :bystanders (reduce + (value-of visits)) :slowest-ms @slowest)))

(defn beside
  "Returns (f), or throws what it throws; calls (visit!) again and again meanwhile."
  [visit! f]
  (let [outcome (start f)]
    (while (not (realized? outcome)) (visit!) (pause! 20))
    (let [{:keys [value thrown]} @outcome]
      (if thrown (throw thrown) value))))

(defn bystander?
  "True if a request is a bystander's."
  [request]
  (= "/bystander" (:uri request)))

;; What must be as before

(def ^:private under-way [:in-flight :overdue :streams :queued])

(defn- busy [server]
  (into {} (filter (comp pos? val)) (select-keys (server/status server) under-way)))

(defn expect-quiet
  "Ends the ordeal unless nothing is under way on the server any more, within ms."
  ([server] (expect-quiet server 3000))
  ([server ms]
   (scene/eventually ms #(empty? (busy server)))
   (expect (empty? (busy server)) "that no exchange is left" (busy server))))

(defn used-heap
  "Returns how many bytes of the heap are in use after a collection."
  ^long []
  (dotimes [_ 3] (System/gc))
  (.getUsed (.getHeapMemoryUsage (ManagementFactory/getMemoryMXBean))))

(defn- carrier? [^Thread thread]
  (str/starts-with? (.getName thread) "ForkJoinPool-"))

(defn- root-group
  ^ThreadGroup []
  (last (take-while some?
                    (iterate #(.getParent ^ThreadGroup %)
                             (.getThreadGroup (Thread/currentThread))))))

(defn platform-threads
  "Returns the platform threads of this JVM, but those which carry virtual ones."
  []
  (let [all (make-array Thread 2000)
        n (.enumerate (root-group) ^"[Ljava.lang.Thread;" all)]
    (remove carrier? (take n all))))

(defn sampled
  "Returns [value most] of (f): the most that (sample) returned meanwhile."
  [sample f]
  (let [over (promise)
        most (start #(loop [most 0]
                       (if (realized? over)
                         most
                         (do
                           (pause! 20)
                           (recur (max most (long (sample))))))))
        value (try
                (f)
                (finally
                  (deliver over true)))]
    [value (value-of most)]))

(defn open-descriptors
  "Returns how many file descriptors this process has open, -1 where that is not known."
  ^long []
  (let [os (ManagementFactory/getOperatingSystemMXBean)]
    (if (instance? com.sun.management.UnixOperatingSystemMXBean os)
      (.getOpenFileDescriptorCount ^com.sun.management.UnixOperatingSystemMXBean os)
      -1)))

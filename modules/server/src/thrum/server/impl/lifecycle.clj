(ns thrum.server.impl.lifecycle
  "How a server starts, drains and ends."
  {:no-doc true}
  (:require
   [thrum.server.impl.address :as address]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.forwarded :as forwarded]
   [thrum.server.impl.pace :as pace]
   [thrum.server.impl.request-id :as request-id]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.stream :as stream]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.net BindException UnknownHostException)
   (java.nio.channels UnresolvedAddressException)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

;; pace: the thread that looks for slow clients, or nil. stopped: open until the server has stopped.
;; hook: what runs at the end of the JVM.
(deftype Life [engine options traffic running ^Thread pace ^CountDownLatch stopped
               ^AtomicReference hook])

(def ^:private ^:const answer-ms
  "How long stop! waits for clients to be answered after it has interrupted the handlers, and for
  streams to end before it cuts them."
  2000)

;; Start

(defn- why
  "Returns the message of the cause, its class where it has none, or the message of the
  BindException beneath it: engines wrap that one, and name the address once more. Those of an
  unknown host may be the host alone."
  [^Throwable cause]
  (let [causes (take-while some? (iterate ex-cause cause))
        beneath (fn [c] (first (filter #(instance? c %) causes)))
        ^Throwable t (or (beneath BindException) cause)]
    (if (or (beneath UnknownHostException) (beneath UnresolvedAddressException))
      "the host is unknown"
      (or (ex-message t) (.getName (class t))))))

(defn- start-failed
  [{:keys [name]} {:keys [host port ssl-port]} ^Throwable cause]
  (ex-info (str "The engine " name
                " could not start on " host
                ":" (or port ssl-port)
                ": " (why cause))
           {:type :thrum/start-failed, :engine name, :host host, :port port, :ssl-port ssl-port}
           cause))

(defn- server-of
  "Returns what serves a wire: on each thread with the class loader of the thread that starts the
  server."
  [traffic handler]
  (let [loader (.getContextClassLoader (Thread/currentThread))
        {:keys [min-bytes-per-second] :as options} (traffic/options traffic)
        serve! (fn [wire]
                 (.setContextClassLoader (Thread/currentThread) loader)
                 (serve/serve! traffic handler wire))]
    (if min-bytes-per-second
      #(serve! (pace/paced % options))
      serve!)))

(defn- open-pollers!
  "Has the JDK open what all its virtual threads wait for sockets with. It would do so at the first
  wait, and where there is no file descriptor then, no virtual thread could ever wait for a socket
  in this JVM."
  []
  (try
    (Class/forName "sun.nio.ch.Poller")
    ;; Another JDK's.
    (catch ClassNotFoundException _)
    (catch LinkageError e
      (throw (IOException. "virtual threads cannot wait for sockets in this JVM" e)))))

(defn- start-engine
  [{:keys [start], :as engine} options traffic handler]
  (try
    (open-pollers!)
    ;; Some engines wait as they start, and leave a thread behind where that is interrupted.
    (spi/undisturbed
      #(start (assoc options :on-refused (fn [e] (traffic/observe! traffic :end (constantly e))))
              (server-of traffic handler)))
    (catch Exception e
      (throw (if (= :thrum/invalid (spi/type-of e)) e (start-failed engine options e))))))

(declare stop!)

(defn- add-hook! [^Life life]
  (let [hook (Thread. ^Runnable (fn [] (stop! life)) "thrum-stop")]
    (.set ^AtomicReference (.-hook life) hook)
    (.addShutdownHook (Runtime/getRuntime) hook)))

(defn- remove-hook! [^Life life]
  (when-some [hook (.getAndSet ^AtomicReference (.-hook life) nil)]
    (try
      (.removeShutdownHook (Runtime/getRuntime) hook)
      ;; The JVM is ending: it may be this hook that runs.
      (catch IllegalStateException _))))

(defn- as-asked
  "Returns what makes the request of its client out of the one that arrived, or nil where that is
  the same."
  [{:keys [trusted-proxies forwarded-headers request-id?]}]
  (let [trusted (some-> trusted-proxies address/blocks)]
    (when-some [steps (seq (cond-> []
                             request-id? (conj (request-id/giver trusted))
                             trusted (conj (forwarded/reader trusted forwarded-headers))))]
      (apply comp (reverse steps)))))

(defn- start-looking
  "Starts to look for clients that are too slow, where that is asked for. Returns the thread, or
  nil."
  [traffic {:keys [min-bytes-per-second rate-grace-ms]}]
  (when min-bytes-per-second
    (watchdog/start "thrum-pace" (watchdog/period-ms [rate-grace-ms])
      (fn [] (ending/end-slow! (traffic/in-flight traffic))))))

(defn- keep-jvm!
  "Keeps the JVM until the server has stopped. The threads of an engine may all be daemons: Tomcat's
  are, and those of another one that a virtual thread has started."
  [^CountDownLatch stopped]
  (-> (Thread/ofPlatform)
      (.daemon false)
      (.inheritInheritableThreadLocals false)
      (.name "thrum-server")
      (.start #(while (try (.await stopped) false (catch InterruptedException _ true))))))

(defn- keeping-jvm
  "Returns the value of (f), which starts what stays until stopped opens; it does where f throws."
  [^CountDownLatch stopped f]
  (try
    (keep-jvm! stopped)
    (f)
    (catch Throwable t
      (.countDown stopped)
      (throw t))))

(defn start
  "Returns the life of a server of this engine; the options are checked already. Throws
  :thrum/start-failed."
  [engine options handler]
  (let [traffic (traffic/traffic (assoc options
                                        :as-asked (as-asked options)
                                        :clean-values? (:clean-values? engine)))
        stopped (CountDownLatch. 1)
        ;; The engine last: what fails behind it would leave its listener open.
        pace (start-looking traffic options)
        running (watchdog/starting pace
                  (fn []
                    (keeping-jvm stopped #(start-engine engine options traffic handler))))
        life (Life. engine options traffic running pace stopped (AtomicReference.))]
    (when (:stop-on-shutdown? options) (add-hook! life))
    life))

;; Stop

(defn- each!
  "Calls f with each: one that throws, an engine's abort for instance, or where no thread can be
  started for it, keeps none of the others."
  [f xs]
  (doseq [x xs]
    (try (f x) (catch Throwable _))))

(defn- end-streams!
  "Ends the streams that are open, and those that still open; cuts what is left of them later.
  Returns the alarm for that; nil where no thread can be started for it."
  [traffic]
  (traffic/move! traffic :closing :ending)
  (each! stream/end! (traffic/in-flight traffic))
  (try
    (spi/arm! (spi/deadline-in answer-ms)
      #(each! stream/cut! (traffic/in-flight traffic)))
    (catch Throwable _)))

(defn- end-requests! [traffic]
  (each! #(ending/end! % :shutdown) (remove stream/open? (traffic/in-flight traffic)))
  (traffic/await-quiet! traffic (complement exchange/settled?) (spi/deadline-in answer-ms)))

(defn- drain!
  "Lets what is in flight end, and ends the rest: streams first. Returns the set of what has not
  ended all the same."
  [^Life life]
  (let [{:keys [shutdown-timeout-ms drain-streams-ms]} (.-options life)
        traffic (.-traffic life)
        end (spi/deadline-in shutdown-timeout-ms)]
    (traffic/await-quiet! traffic
                          (constantly true)
                          (spi/deadline-in (min drain-streams-ms shutdown-timeout-ms)))
    (let [cut (end-streams! traffic)
          quiet? (traffic/await-quiet! traffic stream/awaited? end)]
      (when-not quiet? (end-requests! traffic))
      (some-> cut spi/disarm!)
      (each! stream/cut! (traffic/in-flight traffic))
      (if quiet? #{} (set (traffic/in-flight traffic))))))

(def ^:private leave-ms
  "How long stop! waits for the ends of those whose time is over: most handlers end at their
  interrupt, and an access log ends with the server."
  200)

(defn- await-late!
  "Waits for requests that were refused, or cut, since the drain has found none in flight: their
  observer is called before that of the server's end. Not for long where they have had their time,
  as those in given-up."
  [traffic given-up]
  (traffic/await-quiet! traffic (constantly true) (spi/deadline-in leave-ms))
  (traffic/await-quiet! traffic
                        #(and (stream/awaited? %) (not (contains? given-up %)))
                        (spi/deadline-in answer-ms)))

(defn- stop-now!
  "Stops, on a thread that is never interrupted."
  [^Life life]
  (let [traffic (.-traffic life), given-up (volatile! #{})]
    (try
      (Thread/sleep (long (:drain-delay-ms (.-options life))))
      ;; First: an engine that finds itself idle may close kept connections with its listener, and
      ;; no handler must have been given a request on one of them.
      (traffic/move! traffic :draining :closing)
      (engine/close-listeners! (.-running life))
      (vreset! given-up (drain! life))
      (finally
        (try
          (engine/stop! (.-running life))
          (await-late! traffic @given-up)
          (finally
            (some-> ^Thread (.-pace life) (.interrupt))
            (remove-hook! life)
            (traffic/move! traffic (traffic/state traffic) :stopped)
            (traffic/observe! traffic :stop (constantly {}))
            (.countDown ^CountDownLatch (.-stopped life))))))))

(defn join
  "Waits until the server has stopped."
  [^Life life]
  (.await ^CountDownLatch (.-stopped life)))

(defn- serving?
  "True if the calling thread works for a request of the server, or runs its observer."
  [traffic]
  (or (traffic/observing? traffic)
      (some exchange/inside? (traffic/in-flight traffic))))

(defn start-thread!
  "Calls f on a platform thread of its own. Throws where none can be started."
  [f]
  (-> (Thread/ofPlatform) (.name "thrum-stopping") (.start ^Runnable f)))

(defn- start-stopping!
  "Stops on another thread, unless another call does: the caller may be interrupted, or be what is
  drained. The server drains from when that thread is there."
  [^Life life]
  (let [ours (promise)]
    (start-thread! #(when @ours (stop-now! life)))
    (deliver ours (traffic/move! (.-traffic life) :running :draining))))

(defn stop!
  "Drains and stops. Blocks until that is done, but from inside one of the server's own handlers,
  a task of theirs, or its observer, which it would wait for. Throws where no thread can be started;
  the server goes on then."
  [^Life life]
  (when (= :running (traffic/state (.-traffic life)))
    (start-stopping! life))
  (when-not (serving? (.-traffic life))
    (join life)))

(defn port
  "Returns the port of HTTP, or nil."
  [^Life life]
  (let [port (engine/port (.-running life))]
    (when (pos? port) port)))

(defn ssl-port
  "Returns the port of HTTPS, or nil."
  [^Life life]
  (let [port (engine/ssl-port (.-running life))]
    (when (pos? port) port)))

(defn native
  "Returns the engine's own server object."
  [^Life life]
  (engine/native (.-running life)))

(defn status
  "Returns what the server counts."
  [^Life life]
  (traffic/status (.-traffic life)))

(defn engine
  "Returns the engine of the server."
  [^Life life]
  (.-engine life))

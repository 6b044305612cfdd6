(ns thrum.lab.subject.child
  "A server in a process of its own, with or without Thrum, that answers questions about itself. The
  first line of standard input is the job, {:engine :engine-options :way :pool :handler :peer
  :backlog}, every further one a question. The process ends when standard input does."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.cpu-time :as cpu-time]
   [thrum.lab.in-child :as in-child]
   [thrum.lab.memory :as memory]
   [thrum.lab.subject.work :as work])
  (:import
   (java.io PushbackReader)
   (java.lang.management ManagementFactory)
   (java.util.concurrent Callable ExecutorService Executors Future)
   (java.util.concurrent.atomic AtomicBoolean)))

(set! *warn-on-reflection* true)

;; The servers

(def ^:private bare
  "By engine: the function that starts it without Thrum, loaded only when it is asked for."
  {:jdk 'thrum.lab.subject.jdk/start!
   :jetty 'thrum.lab.subject.jetty/start!
   :tomcat 'thrum.lab.subject.tomcat/start!
   :helidon 'thrum.lab.subject.helidon/start!
   :http-kit 'thrum.lab.subject.http-kit/start!})

(defn- on-platform-threads
  "Returns a Ring handler that runs another one on a pool of platform threads."
  [handler size]
  (let [^ExecutorService pool (Executors/newFixedThreadPool size)]
    (fn [request]
      (.get ^Future (.submit pool ^Callable (fn [] (handler request)))))))

(defn- handler-of [{:keys [handler pool]}]
  (cond-> (if handler (requiring-resolve handler) #'work/ring-handler)
    pool (on-platform-threads pool)))

(defn- failed
  "Returns an error handler that prints the first failure. Under load there may be thousands, which
  the report counts as errors."
  []
  (let [said? (AtomicBoolean.)]
    (fn [_ ^Throwable t]
      (when (.compareAndSet said? false true)
        (locking System/err
          (.println System/err (str "A request failed; no later failure is printed, the report "
                                    "counts them:"))
          (.printStackTrace t)))
      {:status 500})))

(defn- start-thrum!
  [{:keys [engine engine-options backlog], :as job}]
  (let [run-server (requiring-resolve 'thrum.server/run-server)
        port (requiring-resolve 'thrum.server/port)]
    (port (run-server (handler-of job)
                      (cond-> {:engine engine, :port 0, :backlog backlog, :stop-on-shutdown? false
                               :error-handler (failed)}
                        engine-options (assoc :engine-options engine-options))))))

(defn start!
  "Starts the server of a job in this process and returns its port. :way is :bare, :thrum or :peer;
  with :pool, handlers run on so many platform threads; :handler names a Ring handler of the user's,
  :peer a function from a Ring handler to the port of the server that it has started."
  [{:keys [engine way peer] :as job}]
  (case way
    :thrum (start-thrum! job)
    :bare ((requiring-resolve (bare engine)) job)
    :peer ((requiring-resolve peer) (handler-of job))))

;; Answers to questions

(defn- heap-bytes
  "Returns the heap in use after a full collection; the second one takes what the first has only
  found."
  []
  (System/gc)
  (System/gc)
  (memory/heap))

(def ^:private questions
  {:facts (fn []
            {:threads (.getPeakThreadCount (ManagementFactory/getThreadMXBean))
             :rss (memory/rss)})
   :heap (fn [] {:heap (heap-bytes)})
   :cpu (fn [] {:cpu-nanos (cpu-time/process-ns)})
   :sleepers (fn [] {:sleepers (work/sleepers-now)})
   :wake (fn [] (work/wake!) {})})

(defn- answer-all! [in]
  (loop []
    (let [question (edn/read {:eof nil} in)]
      (when question
        (in-child/say! ((questions question)))
        (recur)))))

(defn -main
  "Starts the server that the job asks for, prints {:port n}, or {:problem sentence} where it cannot
  be started, and answers questions."
  [& _]
  (in-child/run!
    #(let [in (PushbackReader. *in*)]
       (in-child/say! {:port (start! (edn/read in))})
       (answer-all! in)))
  (.halt (Runtime/getRuntime) 0))

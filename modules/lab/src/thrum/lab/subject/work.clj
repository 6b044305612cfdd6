(ns thrum.lab.subject.work
  "What the handlers of the lab's servers do, the same behind every engine: sleep as long as the
  path says, or until they are woken, and then greet."
  (:import
   (java.util.concurrent CountDownLatch Executor Executors TimeUnit)
   (java.util.concurrent.atomic AtomicInteger AtomicReference)))

(set! *warn-on-reflection* true)

(def greeting "The body of every answer." "Hello from the lab.\n")
(def greeting-bytes "The same, encoded." (.getBytes ^String greeting "UTF-8"))
(def content-type "text/plain")

(def held
  "The path of a request whose handler sleeps until wake!, but no longer than two minutes."
  "/held")

(def ^:private ^AtomicInteger sleepers (AtomicInteger.))
(def ^:private ^AtomicReference alarm (AtomicReference. (CountDownLatch. 1)))

(defn path
  "Returns the path of a request whose handler sleeps for ms, not at all where that is nil."
  [ms]
  (if ms (str "/sleep/" ms) "/"))

(defn sleepers-now
  "Returns how many handlers sleep until they are woken."
  []
  (.get sleepers))

(defn wake!
  "Wakes the handlers that sleep until then."
  []
  (.countDown ^CountDownLatch (.getAndSet alarm (CountDownLatch. 1))))

(defn- sleep-until-woken! []
  (.incrementAndGet sleepers)
  (try
    (.await ^CountDownLatch (.get alarm) 2 TimeUnit/MINUTES)
    (finally (.decrementAndGet sleepers))))

(defn do-it!
  "Does what a request for path asks for: sleeps, or nothing."
  [^String path]
  (cond
    (.startsWith path "/sleep/") (Thread/sleep (long (parse-long (.substring path 7))))
    (.equals path held) (sleep-until-woken!)))

(defn executor
  "Returns what handlers run on: a pool of platform threads of that size, or, nil, a virtual thread
  for each."
  ^Executor [pool]
  (if pool
    (Executors/newFixedThreadPool pool)
    (Executors/newVirtualThreadPerTaskExecutor)))

(defn ring-handler
  "The Ring handler."
  [request]
  (do-it! (:uri request))
  {:status 200, :headers {"Content-Type" content-type}, :body greeting})

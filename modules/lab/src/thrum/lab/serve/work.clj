(ns thrum.lab.serve.work
  "What the handlers of the lab's servers do, the same behind every engine: sleep as long as the path says, then greet."
  (:import
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(def greeting "The body of every answer." "Hello from the lab.\n")
(def greeting-bytes "The same, encoded." (.getBytes ^String greeting "UTF-8"))
(def content-type "text/plain")

(def ^:private ^AtomicInteger sleepers (AtomicInteger.))

(defn path
  "Returns the path of a request whose handler sleeps for ms, not at all where that is nil."
  [ms]
  (if ms (str "/sleep/" ms) "/"))

(defn sleepers-now
  "Returns how many handlers are asleep."
  []
  (.get sleepers))

(defn- sleep! [ms]
  (.incrementAndGet sleepers)
  (try
    (Thread/sleep (long ms))
    (finally (.decrementAndGet sleepers))))

(defn do-it!
  "Does what a request for path asks for: sleeps, or nothing."
  [^String path]
  (when (.startsWith path "/sleep/")
    (sleep! (parse-long (.substring path 7)))))

(defn ring-handler
  "The Ring handler."
  [request]
  (do-it! (:uri request))
  {:status 200, :headers {"Content-Type" content-type}, :body greeting})

(ns thrum.lab.client
  "Downloads one file many times in a contender's way: a job in, a sample out. A job is {:contender
  :server :url :n :bytes :timeout-ms :params {:limit :pool}}, all of it EDN."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.contender :as contender]
   [thrum.lab.download :as download]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.in-child :as in-child]
   [thrum.lab.machine :as machine]
   [thrum.lab.measure :as measure])
  (:import
   (java.net URI)))

(set! *warn-on-reflection* true)

(def ^:private report-every "How many items a child finishes between two lines of progress." 50)
(def ^:private small
  "What warms a process up: how often to download, and how many bytes."
  [200 10000])
(def ^:private large [40 1000000])

(defn run
  "Does the job and returns its sample, without the outcome of each download. on-end is called after
  each one."
  [{:keys [contender url n bytes timeout-ms params]} on-end]
  (let [client (download/client), uri (URI. url)
        params (contender/with-limit contender params)
        fetch (fn [_] (download/expect-bytes (download/fetch client uri timeout-ms) bytes))]
    (try
      (-> (measure/sample (contender/way contender params) fetch (vec (range n)) on-end)
          (dissoc :outcomes)
          (assoc :limit (:limit params)))
      (finally (download/close! client)))))

(defn- warm-up-with!
  [url-of [n bytes]]
  (let [job {:contender :pool, :params {:pool 16}, :url (url-of bytes), :n n, :bytes bytes
             :timeout-ms 20000}]
    (when (:interrupted? (run job (fn [])))
      (throw (InterruptedException. "Interrupted while warming up")))))

(defn warm-up!
  "Downloads small and large files at full speed, 16 at once, so that no contender pays for loading
  and compiling. url-of returns the URL of a file of so many bytes. Throws InterruptedException."
  [url-of]
  (run! #(warm-up-with! url-of %) [small large]))

(defn start-server!
  "Starts the file server, warms this process up with it, and returns it as an environment, see
  thrum.lab.experiment, with its :url."
  []
  (child/ready! (file-server/start-child!)
    (fn [server]
      (warm-up! #(str (:url server) (file-server/path % :unlimited)))
      (assoc server :close! #(child/stop! server)))))

(defn- interrupt-after
  "Returns a thread that interrupts the current one after ms, unless it is interrupted itself
  before."
  ^Thread [ms]
  (let [thread (Thread/currentThread)]
    (.start (Thread/ofVirtual)
            #(try
               (Thread/sleep (long ms))
               (.interrupt thread)
               (catch InterruptedException _)))))

(defn run-until
  "Does the job for at most deadline-ms; a sample cut short by that has :deadline-passed?."
  [{:keys [deadline-ms] :as job} on-end]
  (let [alarm (interrupt-after deadline-ms), sample (run job on-end)]
    (.interrupt alarm)
    (if (:interrupted? sample)
      (-> sample (dissoc :interrupted?) (assoc :deadline-passed? true))
      sample)))

(defn- print-progress []
  (let [ended (atom 0)]
    #(when (zero? (rem (swap! ended inc) report-every))
       (in-child/say! {:done report-every}))))

(defn sample
  "Warms up, does the job, see thrum.lab.job, saying {:done n} now and then, and returns its
  sample. How many files this process may open is asked first: with none left, the JVM cannot even
  load the library that knows."
  [{:keys [server] :as job}]
  (let [max-files (machine/max-files)]
    (warm-up-with! #(str server (file-server/path % :unlimited)) small)
    (assoc (run-until job (print-progress)) :max-files max-files)))

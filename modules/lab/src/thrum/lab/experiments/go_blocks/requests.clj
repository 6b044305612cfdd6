(ns thrum.lab.experiments.go-blocks.requests
  "Blocking HTTP requests, all at once, in one way: the first time in this JVM, and after that code
  has run a few times."
  (:require
   [thrum.lab.download :as download]
   [thrum.lab.measure :as measure])
  (:import
   (java.io IOException)
   (java.lang.management ManagementFactory)
   (java.net HttpURLConnection URI)))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long an answer may take." 60000)
(def ^:private warm-ups "How often the way is used, on short requests, before it counts as warm." 5)

;; Requests. By HttpURLConnection, which blocks the thread that asks and has none of its own, as
;; java.net.http has.

(defn- connect ^HttpURLConnection [^URI uri]
  (doto ^HttpURLConnection (.openConnection (.toURL uri))
    (.setConnectTimeout timeout-ms)
    (.setReadTimeout timeout-ms)))

(defn- fetch
  "Returns the outcome of a request; see thrum.lab.download."
  [uri bytes]
  (try
    (let [connection (connect uri)]
      (with-open [in (.getInputStream connection)]
        (-> {:status (.getResponseCode connection), :bytes (alength (.readAllBytes in))}
            (download/expect-bytes bytes))))
    (catch IOException e {:kind (download/kind e), :message (str (ex-message e))})))

;; Ways

(defn- way
  "Returns a function of f and coll that calls f on all n items at once; loads what it is made of."
  [id n]
  (case id
    :go (requiring-resolve 'thrum.lab.experiments.go-blocks.go/go-blocks)
    :io-thread (requiring-resolve 'thrum.lab.experiments.go-blocks.go/io-threads)
    :pipeline-blocking
    ((requiring-resolve 'thrum.lab.channels.pipeline/way) :thrum-pipeline-blocking n)
    ((requiring-resolve 'thrum.lab.contender/way) id {:limit n})))

(defn- run [way n url bytes]
  (let [uri (URI. url)]
    (measure/sample way (fn [_] (fetch uri bytes)) (vec (range n)) (fn []))))

(defn- whole
  "Returns the sample of n requests; throws ex-info if one failed, or the way did: the time of half
  the work says nothing."
  [n {:keys [error ok failed messages], :as sample}]
  (cond error (throw (ex-info (:message error) {:error error}))
        (not= n ok) (throw (ex-info
                             (str failed " of " n " requests failed: " (first (vals messages)))
                             {:n n, :ok ok, :failed failed}))
        :else sample))

(defn sample
  "Sends n requests to url, whose answer is so many bytes, in one of the ways, and returns the
  sample: :ms :peak :curve as of thrum.lab.measure/sample, warm; :cold-ms, what the first time took;
  and :threads, the most platform threads that this JVM has had, its own and the carriers of virtual
  threads among them, but no virtual thread. short-url is the URL of a short request, to warm up."
  [{:keys [n url short-url bytes] id :way}]
  (let [way (way id n)
        cold (whole n (run way n url bytes))]
    (dotimes [_ warm-ups]
      (whole n (run way n short-url bytes)))
    (-> (whole n (run way n url bytes))
        (select-keys [:ms :peak :curve])
        (assoc :cold-ms (:ms cold)
               :threads (.getPeakThreadCount (ManagementFactory/getThreadMXBean))))))

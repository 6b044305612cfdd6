(ns thrum.lab.experiment.fan-out
  "One client, one slow web server, many downloads: what does it cost to wait for all of them at
  once?"
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.client :as client]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.published :as published]
   [thrum.lab.server :as server]
   [thrum.lab.text :as text]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(def ^:private file-limit "The hard limit of open files of part :files." 256)
(def ^:private start-ms "How long a child's JVM may take to start." 60000)
(def ^:private jvm-ms "How long a child's JVM usually takes, for the estimate." 3000)
(def ^:private open-ms "How long the server and the warm-up usually take, for the estimate." 4000)
(def ^:private item-ms "Overhead of one download on a slow machine, for the estimate." 0.6)
(def ^:private unlimited-ms "How long one download without a limit takes, for the estimate." 4)
(def ^:private client-jvm-opts ["-Xmx512m" "-XX:+UseSerialGC" "-XX:TieredStopAtLevel=1"])
(def ^:private reserve "Files that a process keeps open for itself, the jars of its class path among
  them, for the estimate." 112)

(def quick
  "The default sizes: the published counts, with smaller files, and for the large counts a lower
  rate, which spares a small machine's processors what the published sizes would ask of them."
  {:bytes {:downloads 60000, :many 60000, :files 20000, :unlimited 2000000}
   :rate {:downloads published/rate, :many 100000, :files 100000, :unlimited :unlimited}
   :n {:downloads 100, :many 2000, :files 2000, :unlimited 100}
   :repeat {:fast 3, :unlimited 3}
   :deadline-ms 10000})

(def full
  "The published sizes. Part :files stays as it is in the quick form: it asks how many files are
  open at once, whatever their size. One contender that nobody published is left out, since it
  would take four minutes."
  (-> quick
      (update :bytes merge (zipmap [:downloads :many :unlimited] (repeat published/bytes-each)))
      (update :rate merge (zipmap [:downloads :many] (repeat published/rate)))
      (assoc-in [:repeat :unlimited] 5)
      (assoc :without #{:core-pmap-unchunked})))

(def ^:private parts
  "The questions of the experiment. A contender is an id, or an id with what is particular to it."
  [{:part :downloads
    :title "100 downloads from a slow server"
    :about "How long do 100 downloads take, if the server sends each no faster than its rate?"
    :headline {:system "100 downloads"
               :figure :ms
               :pairs [[:core-map :thrum-pmap]]
               :beside [:core-pmap "clojure.core/pmap takes %s"]
               :because "a hundred that wait at once take little longer than one"
               :tour [:core-map :core-pmap :pool :raw-jdk :thrum-map :thrum-pmap]}
    :contenders [:core-map :core-pmap :core-pmap-unchunked [:pool {:pool 50}] :raw-jdk :thrum-map
                 :thrum-pmap :thrum-upmap]}
   {:part :many
    :title "2 000 downloads, bounded"
    :about
    "Twenty times as many: a bound keeps the number of connections within what both ends can bear."
    :contenders [[:pool {:pool :limit}] :thrum-pmap :thrum-upmap]}
   {:part :files
    :title "2 000 downloads with 256 open files"
    :about
    "In a process that may open 256 files and sockets (a hard limit), who gets all of them home?"
    :contenders [[:thrum-map {:expect :breaks}] [:pool {:pool :limit}] :thrum-pmap-fd-limit]}
   {:part :unlimited
    :title "When the network is fast"
    :about
    "Without a rate limit there is little to wait for, and so little to gain: how close does the plain loop come, or does it win?"
    :contenders [:core-map :core-pmap :raw-jdk :thrum-pmap]}])

(defn- params
  "Returns the numbers that a contender of a part runs with."
  [{:keys [n bytes rate] :as part} {:keys [limit cpus]} own]
  (let [limit (if (= :files (:part part)) (- file-limit reserve) limit)]
    {:n n
     :cpus cpus
     :limit limit
     :pool (if (= :limit (:pool own)) limit (:pool own))
     :task-ms (limit-line/task-ms bytes rate)}))

(defn- estimate [{:keys [part n]} {:keys [limit-line-ms repeat]}]
  (+ (* repeat (if limit-line-ms (+ limit-line-ms (* n item-ms)) (* n unlimited-ms)))
     (if (= :files part) jvm-ms 0)))

(defn- repeats [{:keys [part]} {:keys [limit-line-ms]} {:keys [fast unlimited]}]
  (cond
    (= :files part) 1
    (nil? limit-line-ms) unlimited
    (<= limit-line-ms 1000) fast
    :else 1))

(defn- row
  "Returns the row of the plan for one contender of a part."
  [part contender {:keys [scale], :as settings}]
  (let [[id own] (if (keyword? contender) [contender {}] contender)
        params (params part settings own)
        row (contender/plan id params)
        row (assoc row :repeat (repeats part row (:repeat scale)))]
    (cond-> (assoc row :params (select-keys params [:limit :pool]) :estimate-ms (estimate part row))
      (:expect own) (assoc :expect (:expect own))
      (= :files (:part part)) (assoc :deadline-ms (:deadline-ms scale))
      (get-in published/figures [(:part part) id])
      (assoc :published (get-in published/figures [(:part part) id])))))

(defn- scaled
  "Returns what was scaled down in a part, in words; nil if it is as published."
  [{:keys [part bytes rate]}]
  (let [changes (cond-> []
                  (not= bytes published/bytes-each)
                  (conj (str "files of " (text/bytes bytes) " instead of 6 MB"))
                  (and (not= :unlimited part) (not= rate published/rate))
                  (conj (str (text/rate rate) " instead of 500 kB/s")))]
    (when (seq changes) (str "Scaled: " (text/commas changes) "."))))

(defn- part-plan
  [{:keys [part contenders], :as question} {:keys [scale rate hard-file-limit?], :as settings}]
  (let [sized (assoc question
                     :n (get-in scale [:n part])
                     :bytes (get-in scale [:bytes part])
                     :rate
                     (if (= :unlimited part) :unlimited (or rate (get-in scale [:rate part]))))]
    (cond-> (assoc sized
                   :scaled (scaled sized)
                   :contenders
                   (mapv #(row sized % settings) (remove (:without scale #{}) contenders)))
      (= :files part) (assoc :client-jvm client-jvm-opts)
      (and (= :files part) (not hard-file-limit?))
      (assoc :skipped "no shell here can set a hard limit of open files"))))

(defn- settings [scale {:keys [limit rate full]} facts]
  (merge facts {:limit limit
                :rate rate
                :scale (if full thrum.lab.experiment.fan-out/full scale)}))

(defn- job [env {:keys [n bytes rate]} {:keys [contender params deadline-ms]}]
  {:contender contender
   :params params
   :url (str (:url env) (server/path bytes rate))
   :server (:url env)
   :n n
   :bytes bytes
   :timeout-ms 600000
   :deadline-ms (or deadline-ms 600000)})

(defn- await-sample
  "Reads the client's lines until its sample arrives, handing on progress."
  [client timeout-ms on-end]
  (let [{:keys [done sample]} (child/ask client timeout-ms)]
    (or sample
        (do (on-end done)
            (recur client timeout-ms on-end)))))

(defn- sample-in-child!
  "Does the job in a JVM of its own that may open file-limit files."
  [job on-end]
  (let [client (child/start! (child/under-file-limit file-limit
                                                     (child/java-command client-jvm-opts
                                                                         'thrum.lab.client)))]
    (try
      (child/tell! client job)
      (await-sample client (+ start-ms (:deadline-ms job)) on-end)
      (catch Throwable t (trouble/sample t))
      (finally
        (child/stop! client)))))

(defn- with-true-limit
  "Returns the sample with what its limit makes of the row's limit line, where only the process
  itself knew the limit."
  [{:keys [limit], :as sample} {:keys [n bytes rate]} {:keys [contender]}]
  (if (= :thrum-pmap-fd-limit contender)
    (assoc sample
           :row
           (contender/limits contender
                             {:n n, :limit limit, :task-ms (limit-line/task-ms bytes rate)}))
    sample))

(defrecord FanOut [scale]
  experiment/Experiment
  (about [_]
    {:name :fan-out, :doc "many slow downloads at once", :parts (mapv (juxt :part :about) parts)})
  (plan [_ options facts]
    (let [settings (settings scale options facts)]
      {:experiment :fan-out
       :title "Fan-out"
       :start-ms open-ms
       :about "A web server sends a file slowly; a client downloads it many times."
       :parts (mapv #(part-plan % settings) parts)}))
  (open! [_]
    (let [server (server/start-child!)]
      (client/warm-up! #(str (:url server) (server/path % :unlimited)))
      (assoc server :close! #(child/stop! server))))
  (sample! [_ env part row on-end]
    (let [job (job env part row)]
      (if (= :files (:part part))
        (with-true-limit (sample-in-child! job on-end) part row)
        (client/run job #(on-end 1))))))

(defn experiment
  "Returns the experiment, with the sizes of `scale` (see quick) unless the options ask for the full
  ones."
  [scale]
  (->FanOut scale))

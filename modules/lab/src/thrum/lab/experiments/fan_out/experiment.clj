(ns thrum.lab.experiments.fan-out.experiment
  "One client, one slow web server, many downloads: what does it cost to wait for all of them at
  once?"
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.client :as client]
   [thrum.lab.columns :as columns]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiments.fan-out.published :as published]
   [thrum.lab.experiments.own.work :as work]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.job :as job]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.machine :as machine]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private file-limit "The hard limit of open files of part :files." 256)
(def ^:private start-ms "How long a child's JVM may take to start." 60000)
(def ^:private jvm-ms "How long a child's JVM usually takes, for the estimate." 3000)
(def ^:private open-ms "How long the server and the warm-up usually take, for the estimate." 4000)
(def ^:private item-ms "Overhead of one download on a slow machine, for the estimate." 0.6)
(def ^:private unlimited-ms "How long one download without a limit takes, for the estimate." 4)
(def ^:private client-jvm-opts ["-Xmx512m" "-XX:+UseSerialGC" "-XX:TieredStopAtLevel=1"])
(def ^:private reserve
  "Files that a process keeps open for itself, its class path's jars among them, for the estimate."
  112)

(def quick
  "The default sizes: the published counts, with smaller files, and for the large counts a lower
  rate, which spares a small machine's processors what the published sizes would ask of them."
  {:bytes {:downloads 60000, :many 60000, :files 20000, :unlimited 2000000}
   :rate {:downloads published/rate, :many 100000, :files 100000, :unlimited :unlimited}
   :n {:downloads 100, :many 2000, :files 2000, :unlimited 100}
   :repeat {:fast 3, :unlimited 3}
   :deadline-ms 10000})

(def full
  "The published sizes. Part :files stays as it is in the quick form: it counts the files open at
  once, and their size does not matter. One contender without a published figure is left out, since
  it would take four minutes."
  (-> quick
      (update :bytes merge (zipmap [:downloads :many :unlimited] (repeat published/bytes-each)))
      (update :rate merge (zipmap [:downloads :many] (repeat published/rate)))
      (assoc-in [:repeat :unlimited] 5)
      (assoc :without #{:core-pmap-unchunked})))

(def ^:private questions
  "The parts of the experiment. A contender is an id, or an id with what is particular to it."
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
    :about (str "Without a rate limit there is little to wait for, and so little to gain: how "
                "close does the plain loop come, or does it win?")
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
        published (get-in published/figures [(:part part) id])
        row (assoc row :repeat (repeats part row (:repeat scale)))]
    (cond-> (assoc row :params (select-keys params [:limit :pool]) :estimate-ms (estimate part row))
      (:expect own) (assoc :expect (:expect own))
      (= :files (:part part)) (assoc :deadline-ms (:deadline-ms scale))
      published (assoc :published published))))

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
  (let [rate (if (= :unlimited part) :unlimited (or rate (get-in scale [:rate part])))
        sized (assoc question
                     :n (get-in scale [:n part])
                     :bytes (get-in scale [:bytes part])
                     :rate rate)]
    (cond-> (assoc sized
                   :scaled (scaled sized)
                   :contenders
                   (mapv #(row sized % settings) (remove (:without scale #{}) contenders)))
      (= :files part) (assoc :client-jvm client-jvm-opts)
      (and (= :files part) (not hard-file-limit?))
      (assoc :skipped "no shell here can set a hard limit of open files"))))

(defn- plan [scale options facts]
  (let [settings (-> (merge facts (select-keys options [:limit :rate]))
                     (assoc :scale (if (:full options) full scale)))]
    {:experiment :fan-out
     :title "Fan-out"
     :start-ms open-ms
     :about "A web server sends a file slowly; a client downloads it many times."
     :parts (mapv #(part-plan % settings) questions)}))

;; Run

(defn- job [env {:keys [n bytes rate]} {:keys [contender params deadline-ms]}]
  {:contender contender
   :params params
   :url (str (:url env) (file-server/path bytes rate))
   :server (:url env)
   :n n
   :bytes bytes
   :timeout-ms 600000
   :deadline-ms (or deadline-ms 600000)})

(defn- sample-in-child!
  "Does the job in a JVM of its own that may open file-limit files."
  [job on-end]
  (job/sample! {:jvm-opts client-jvm-opts
                :around #(child/under-file-limit file-limit %)
                :timeout-ms (+ start-ms (:deadline-ms job))}
               (assoc job :call 'thrum.lab.client/sample)
               on-end))

(defn- with-true-limit
  "Returns the sample with what its limit makes of the row's limit line, where only the process
  itself knew the limit."
  [{:keys [limit] :as sample} {:keys [n bytes rate]} {:keys [contender]}]
  (if (and limit (= :thrum-pmap-fd-limit contender))
    (let [params {:n n, :limit limit, :task-ms (limit-line/task-ms bytes rate)}]
      (assoc sample :row (contender/limits contender params)))
    sample))

(defn- sample! [env part row on-end]
  (let [job (job env part row)]
    (if (= :files (:part part))
      (with-true-limit (sample-in-child! job on-end) part row)
      (client/run job #(on-end 1)))))

;; Report

(defn- conditions [{:keys [n bytes rate client-jvm]}]
  (when bytes
    (str (text/thousands n) " files of " (text/bytes bytes) ", "
         (if (number? rate) (str "each sent at " (text/rate rate)) "sent without a limit") "."
         (when client-jvm
           (str " Each contender has a client JVM of its own: " (str/join " " client-jvm) ".")))))

(defn- label [{:keys [verdict samples] :as row}]
  (when (= :broke verdict)
    (let [{:keys [ok failed]} (first samples)]
      (str "broke: " ((:show columns/failed) row)
           " of " (text/thousands (+ (or ok 0) (or failed 0))) " failed"))))

(defn- headline [{{:keys [core-map thrum-pmap]} :downloads}]
  (let [[slow fast] (map :median-ms [core-map thrum-pmap])]
    (when (and slow fast)
      (str "The same 100 downloads: " (text/ms slow) " one by one, " (text/ms fast)
           " on virtual threads"))))

;; Sanity

(defn- losses
  "Complains of downloads and bytes that a row lost, and of a limit that it did not keep."
  [{:keys [name n bytes samples expect], {:keys [limit]} :params}]
  (when-not (= :breaks expect)
    (cond-> []
      (not-every? #(= n (:ok %)) samples)
      (conj (str name " lost downloads: " (mapv :ok samples) " of " n))
      (not-every? #(= (* n bytes) (:bytes %)) samples)
      (conj (str name " lost bytes: " (mapv :bytes samples)))
      (some #(< (max limit 512) (:peak %)) samples)
      (conj (str name " ran more at once than its limit: " (mapv :peak samples))))))

(defn- complaints [{:keys [downloads many files] :as parts} _]
  (concat
    (mapcat losses (mapcat vals (vals parts)))
    (when downloads
      (concat (sanity/times-faster downloads :core-map 10 :thrum-pmap)
              (sanity/times-faster downloads :core-pmap 1.2 :thrum-pmap)))
    (sanity/at-most downloads 6 [:thrum-map :thrum-pmap :thrum-upmap])
    (sanity/at-most many 3 [:thrum-pmap :thrum-upmap])
    (when (and files (not= :broke (get-in files [:thrum-map :verdict])))
      ["t/map should run out of files under a hard limit"])))

;; The command line

(defn- parse-rate [s]
  (if (= "unlimited" s) :unlimited (or (parse-long s) :bad)))

(def ^:private options
  [[nil "--limit N" "how many downloads or calls at once"
    :default 512, :parse-fn parse-long, :validate work/positive]
   [nil "--rate R" "bytes per second of each download, or unlimited; published: 500000"
    :parse-fn parse-rate
    :validate [#(or (= :unlimited %) (and (int? %) (pos? %)))
               "must be a whole number of bytes per second, or unlimited"]]])

(defn sized
  "Returns the experiment, with the sizes of `scale` (see quick) unless the options ask for the full
  ones."
  [scale]
  {:name :fan-out
   :doc "many slow downloads at once"
   :parts (mapv (juxt :part :about) questions)
   :toured [:downloads]
   :options options
   :facts (fn [] {:hard-file-limit? (machine/hard-file-limit? file-limit)})
   :plan (partial plan scale)
   :open! (fn [_] (client/start-server!))
   :sample! sample!
   :conditions conditions
   :columns [columns/median columns/samples columns/limit-line columns/times-limit
             columns/in-flight columns/ok columns/failed columns/published]
   :label label
   :headline headline
   :complaints complaints})

(def experiment (sized quick))

(ns thrum.lab.experiment.go-blocks
  "A hundred blocking requests of a second, all at once: from go blocks of two releases of
  core.async, and in other ways."
  (:require
   [thrum.lab.channels :as channels]
   [thrum.lab.child :as child]
   [thrum.lab.client :as client]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.published :as published]
   [thrum.lab.server :as server]))

(set! *warn-on-reflection* true)

(def ^:private open-ms "How long it usually takes to compile, to start the server and to warm up,
  for the estimate." 13000)
(def ^:private jvm-ms "How long a JVM usually takes to start and to load a release of core.async,
  for the estimate." 2000)
(def ^:private overhead-ms "What a JVM's requests take beyond waiting, for the estimate." 900)
(def ^:private requests "How many requests there are at once." 100)
(def ^:private short-ms "How long a request takes that warms up." 20)
(def ^:private request-ms "How long a request takes that counts." 1000)
(def ^:private bytes-each
  "The size of an answer. The server sends it in one piece, at the end."
  1000)

(defn- vthreads [value] [(str "-Dclojure.core.async.vthreads=" value)])

(def ^:private factory ["-Dclojure.core.async.executor-factory=thrum.async.executor/everything"])

(def ^:private ways
  [{:contender :go-target
    :name "go, 1.9.829-alpha2, target"
    :about "vthreads=target"
    :virtual? true
    :way :go
    :alpha? true
    :flags (vthreads "target")}
   {:contender :go-avoid
    :name "go, 1.9.829-alpha2, avoid"
    :about "vthreads=avoid"
    :way :go
    :alpha? true
    :flags (vthreads "avoid")}
   {:contender :go
    :name "go, 1.9.865"
    :about "as it is: a cached pool of platform threads"
    :way :go}
   {:contender :io-thread
    :name "io-thread, 1.9.865"
    :about "core.async's own way to virtual threads"
    :virtual? true
    :way :io-thread}
   {:contender :raw-jdk
    :name "raw JDK virtual threads"
    :about "newVirtualThreadPerTaskExecutor in a loop"
    :virtual? true
    :way :raw-jdk}
   {:contender :go-factory
    :name "go, 1.9.865, Thrum's executor"
    :about "executor-factory=thrum.async.executor/everything"
    :thrum? true
    :virtual? true
    :way :go
    :flags factory}
   {:contender :pipeline-blocking
    :name "a/pipeline-blocking 100"
    :about "thrum.async"
    :thrum? true
    :virtual? true
    :way :pipeline-blocking}
   {:contender :pmap
    :name "t/pmap 100"
    :about "without a channel"
    :thrum? true
    :virtual? true
    :way :thrum-pmap}])

;; Plan

(def ^:private no-checkout
  "the alpha's jar comes by ./cljw of a checkout of Thrum, and this is none")

(defn- row
  [{:keys [contender alpha?], :as way} {:keys [folder]} repeats]
  (let [published (published/go-blocks contender)
        limit-line-ms (limit-line/ms (limit-line/bounded requests requests) request-ms)]
    (cond-> (-> (select-keys way [:contender :name :about])
                (assoc :thrum? (boolean (:thrum? way))
                       :virtual? (boolean (:virtual? way))
                       :job (select-keys way [:way :flags :alpha?])
                       :limit-line-ms limit-line-ms
                       :repeat repeats
                       :estimate-ms (* repeats (+ jvm-ms overhead-ms (* 2 limit-line-ms)))))
      published (assoc :published published)
      (and alpha? (nil? folder)) (assoc :skipped no-checkout))))

(defn- part-plan
  [{:keys [full]} {:keys [channels]}]
  {:part :go-blocks
   :title "100 blocking requests of a second, all at once"
   :about
   (str
     "A go block may not block, one is told. What does it cost if it does? Each sample has a JVM of its own, which sends the "
     "requests twice: cold, as the first thing it does, as published; and warm, after 600 others. Threads are platform threads, "
     "carriers of virtual threads among them; virtual threads are not counted.")
   :n requests
   :in-turns? true
   :limit-line-about "one round of what a request waits"
   :headline {:system "core.async's go"
              :figure :threads
              :pairs [[:go-avoid :go-target] [:go :go-factory]]
              :beside [:go-factory "with Thrum's executor the current release has %s"]
              :because "a go block that blocks holds no platform thread"
              :tour [:go-avoid :go-target :go :go-factory]}
   :against [{:slow :go-avoid, :fast :go-target, :published published/go-blocks-times}
             {:slow :go, :fast :go-factory}]
   :contenders (mapv #(row % channels (if full 3 1)) ways)})

;; Run

(defn- url [{:keys [url]} ms]
  (str url (server/path bytes-each (quot (* 1000 bytes-each) ms))))

(defn- request-job
  [env {:keys [way]}]
  {:job :requests
   :way way
   :n requests
   :bytes bytes-each
   :url (url env request-ms)
   :short-url (url env short-ms)})

(defn- jvm
  "Returns what is particular to the JVM of a row, see thrum.lab.channels/sample; {:problem words}
  if it cannot be had. For the alpha nothing is compiled ahead: it makes other code of a go block
  when that is compiled to a file."
  [{:keys [classes alpha]} {:keys [flags alpha?]}]
  (assoc (if alpha? @alpha {:classes classes}) :flags flags))

(defn- open-with [classes]
  (let [server (server/start-child!)]
    (client/warm-up! #(str (:url server) (server/path % :unlimited)))
    (assoc server
           :classes classes
           :alpha (delay (channels/alpha-class-path! (:folder (channels/facts))))
           :close! #(do (child/stop! server) (channels/delete! classes)))))

(defn- ended [sample on-end]
  (on-end requests)
  sample)

(defrecord GoBlocks []
  experiment/Experiment
  (about [_]
    {:name :go-blocks
     :doc "100 blocking requests at once, from core.async's go blocks"
     :parts [[:go-blocks "What does a go block that blocks cost, in time and in threads?"]]})
  (plan [_ options facts]
    {:experiment :go-blocks
     :title "go blocks that block"
     :start-ms open-ms
     :not-counted (when (:folder (:channels facts))
                    "the download of core.async 1.9.829-alpha2, the first time")
     :about "A hundred requests at once, from core.async's go blocks and in other ways."
     :parts [(part-plan options facts)]})
  (open! [_]
    (let [classes (channels/compile-ahead!)]
      (try
        (open-with classes)
        (catch Throwable t (channels/delete! classes) (throw t)))))
  (sample! [_ env _ {:keys [job]} on-end]
    (let [{:keys [problem], :as jvm} (jvm env job)]
      (if problem
        {:row {:skipped problem}}
        (ended (channels/sample jvm (request-job env job)) on-end)))))

(defn experiment
  "Returns the experiment."
  []
  (->GoBlocks))

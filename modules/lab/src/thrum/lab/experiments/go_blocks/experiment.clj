(ns thrum.lab.experiments.go-blocks.experiment
  "A hundred blocking requests of a second, all at once: from go blocks of two releases of
  core.async, and in other ways."
  (:require
   [thrum.lab.channels :as channels]
   [thrum.lab.checkout :as checkout]
   [thrum.lab.client :as client]
   [thrum.lab.columns :as columns]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private open-ms
  "How long it usually takes to compile, to start the server and to warm up, for the estimate."
  13000)
(def ^:private jvm-ms
  "How long a JVM usually takes to start and to load a release of core.async, for the estimate."
  2000)
(def ^:private overhead-ms "What a JVM's requests take beyond waiting, for the estimate." 900)
(def ^:private requests "How many requests there are at once." 100)
(def ^:private short-ms "How long a request takes that warms up." 20)
(def ^:private request-ms "How long a request takes that counts." 1000)

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

(def ^:private source
  "an article: 100 requests to a server on the internet, Clojure 1.12.3, a JDK that is not named")

(defn- published-figure [ms threads]
  {:ms ms, :limit-line-ms 1000.0, :threads threads, :source source})

(def ^:private published
  "Published times of 100 go blocks that each make a request of a second, and the threads that were
  seen, by contender. Right after the start of the program."
  {:go-target (published-figure 3652.99125 25)
   :go-avoid (published-figure 4712.404833 107)})

(def ^:private published-times
  "How many times as fast go blocks were on virtual threads as on platform threads, as published."
  (/ 4712.404833 3652.99125))

;; Plan

(def ^:private no-checkout
  "the alpha's jar comes by ./cljw of a checkout of Thrum, and this is none")

(defn- row
  [{:keys [contender alpha?], :as way} checkout repeats]
  (let [figure (published contender)
        limit-line-ms (limit-line/ms (limit-line/bounded requests requests) request-ms)]
    (cond-> (-> (select-keys way [:contender :name :about])
                (assoc :thrum? (boolean (:thrum? way))
                       :virtual? (boolean (:virtual? way))
                       :job (select-keys way [:way :flags :alpha?])
                       :limit-line-ms limit-line-ms
                       :repeat repeats
                       :estimate-ms (* repeats (+ jvm-ms overhead-ms (* 2 limit-line-ms)))))
      figure (assoc :published figure)
      (and alpha? (nil? checkout)) (assoc :skipped no-checkout))))

(defn- part-plan
  [{:keys [full]} {:keys [checkout]}]
  {:part :go-blocks
   :title "100 blocking requests of a second, all at once"
   :about (str "The rule is that a go block does not block. What does it cost if it does? Each "
               "sample has a JVM of its own, which sends the requests twice: cold, as the first "
               "thing it does, as published; and warm, after 600 others. Threads are platform "
               "threads, carriers of virtual threads among them; virtual threads are not counted.")
   :n requests
   :in-turns? true
   :limit-line-about "one round of what a request waits"
   :headline {:system "core.async's go"
              :figure :threads
              :pairs [[:go-avoid :go-target] [:go :go-factory]]
              :beside [:go-factory "with Thrum's executor the current release has %s"]
              :because "a go block that blocks holds no platform thread"
              :tour [:go-avoid :go-target :go :go-factory]}
   :against [{:slow :go-avoid, :fast :go-target, :published published-times}
             {:slow :go, :fast :go-factory}]
   :contenders (mapv #(row % checkout (if full 3 1)) ways)})

(defn- plan [options facts]
  {:experiment :go-blocks
   :title "go blocks that block"
   :start-ms open-ms
   :not-counted (when (:checkout facts)
                  "the download of core.async 1.9.829-alpha2, the first time")
   :about "A hundred requests at once, from core.async's go blocks and in other ways."
   :parts [(part-plan options facts)]})

;; Run

(defn- url [{:keys [url]} ms]
  (str url (file-server/delayed ms)))

(defn- request-job
  [env {:keys [way]}]
  {:call 'thrum.lab.experiments.go-blocks.requests/sample
   :way way
   :n requests
   :bytes file-server/piece
   :url (url env request-ms)
   :short-url (url env short-ms)})

(defn- jvm
  "Returns what is particular to the JVM of a row, see thrum.lab.channels/sample; {:problem words}
  if it cannot be had. For the alpha nothing is compiled ahead: it makes other code of a go block
  when that is compiled to a file."
  [{:keys [classes alpha]} {:keys [flags alpha?]}]
  (assoc (if alpha? @alpha {:classes classes}) :flags flags))

(defn- open! [_]
  (let [classes @channels/classes]
    (assoc (client/start-server!)
           :classes classes
           :alpha (delay (channels/alpha-class-path! (checkout/folder))))))

(defn- sample! [env _ {:keys [job]} on-end]
  (let [{:keys [problem] :as jvm} (jvm env job)]
    (if problem
      {:row {:skipped problem}}
      (let [sample (channels/sample jvm (request-job env job))]
        (on-end requests)
        sample))))

;; Report

(defn- cold
  "Returns what the first time in a JVM took, and how many times the limit line that is."
  [{:keys [limit-line-ms] :as row}]
  (columns/of-samples #(str (text/ms %)
                            (when limit-line-ms
                              (str " (" (text/ratio (/ % limit-line-ms)) ")")))
                      :cold-ms
                      row))

(def ^:private columns
  [columns/median {:heading "cold", :show cold} columns/samples columns/limit-line
   columns/times-limit columns/in-flight columns/threads columns/published])

(defn- label [{:keys [median-ms] :as row}]
  (when median-ms
    (str (text/ms median-ms) " · " ((:show columns/threads) row) " threads")))

;; Sanity

(def ^:private spare-threads
  "How many platform threads a JVM may have beside the carriers of its virtual threads."
  28)

(defn- complaints [{rows :go-blocks} {:keys [cpus]}]
  (when rows
    (let [ours (filter rows [:go-factory :pipeline-blocking :pmap])
          few #(<= % (+ (or cpus 0) spare-threads))]
      (concat
        (when-not cpus ["the number of processors is missing"])
        (sanity/at-most rows 2 (conj ours :raw-jdk))
        (sanity/every-sample rows :threads few "had too many platform threads" ours)
        (sanity/every-sample rows :threads #(<= requests %)
                             "should have a platform thread for each request"
                             (remove #(:skipped (rows %)) [:go-avoid :go]))))))

(def experiment
  {:name :go-blocks
   :doc "100 blocking requests at once, from core.async's go blocks"
   :parts [[:go-blocks "What does a go block that blocks cost, in time and in threads?"]]
   :toured [:go-blocks]
   :plan plan
   :open! open!
   :sample! sample!
   :columns columns
   :label label
   :complaints complaints})

(ns thrum.lab.check-test
  "The sanity check of lab results lets a sane one pass, and nothing that is not."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.check :as check]))

(set! *warn-on-reflection* true)

(defn- row
  [contender median-ms & {:as more}]
  (merge {:contender contender
          :name (name contender)
          :verdict :done
          :median-ms median-ms
          :over-limit 1.2
          :params {:limit 512}
          :samples [{:ok 100, :bytes 1000, :peak 100}]}
         more))

(defn- part
  [part-name & rows]
  {:part part-name, :n 100, :bytes 10, :contenders (vec rows)})

(defn- answering
  "A row of the experiment scope."
  [contender median-ms left]
  (row contender median-ms :params nil :samples [{:left left}]))

(defn- scope-part
  [part-name & answers]
  {:part part-name, :n 4, :contenders (mapv #(apply answering %) answers)})

(defn- querying
  "A row of the experiment jdbc."
  [contender left lost]
  (row contender 1100 :params nil :samples [{:left left, :lost lost}]))

(defn- requesting
  "A row of the experiment go-blocks."
  [contender threads]
  (row contender 1040 :params nil :samples [{:threads threads, :cold-ms 1200.0}]))

(defn- piping
  "A row of the experiment pipelines."
  [contender peak left taken]
  (row contender
       1100
       :params nil
       :samples [{:peak peak, :closed (assoc left :taken taken), :unread (assoc left :taken 0)}]))

(defn- channels-part
  [part-name & rows]
  {:part part-name, :n 100, :contenders (vec rows)})

(defn- published
  "A part with a headline, whose slow row's limit line is factor times that of its fast one."
  [part figure slow fast factor]
  (let [limit (fn [limit row]
                (merge {:limit-line-ms limit
                        :limit-line-per-second (/ 1e6 limit)
                        :published {:threads limit}}
                       row))]
    (->
      (assoc
        part
        :headline
        {:system (name (:part part)), :figure figure, :pairs [[slow fast]], :because "it must"})
      (update :contenders
              (partial
                mapv
                #(condp = (:contender %) slow (limit (* factor 100.0) %) fast (limit 100.0 %)
                   %))))))

(defn- answering-under-load
  [contender per-second]
  (row contender
       nil
       :over-limit nil
       :params nil
       :median-per-second per-second
       :samples [{:per-second per-second}]))

(defn- experiment [named & parts]
  {:experiment named, :parts (vec parts)})

(def ^:private downloads
  (part :downloads
        (row :core-map 12000) (row :core-pmap 500) (row :thrum-map 150) (row :thrum-pmap 150)
        (row :thrum-upmap 150)))

(def ^:private files
  (part :files
        (row :thrum-map 100
             :verdict :broke, :expect :breaks, :samples [{:ok 30, :bytes 300, :peak 2000}])
        (row :thrum-pmap-fd-limit 2500)))

(def ^:private skipped
  {:part :other, :skipped "cannot run here", :contenders [(row :core-map nil :verdict :not-run)]})

(def ^:private jetty
  {:part :jetty-sleep
   :contenders [(answering-under-load :pool-50 950.0) (answering-under-load :thrum 2300.0)]})

(def ^:private http-kit
  {:part :http-kit-sleep
   :skipped "not there"
   :contenders [(row :pool-50 nil :verdict :not-run)]})

(def ^:private spring
  (part :spring-100
        (row :platform-20-warm 5060) (row :virtual-warm 1060) (row :property-warm 1050)))

(def ^:private curve
  (part :spring-curve
        (row :virtual nil
             :limit-points [[10 100.0] [20 100.0]], :median-points [[10 104.0] [20 110.0]])))

(def ^:private go-blocks
  (channels-part :go-blocks
    (row :go-target nil :verdict :skipped :skipped "no checkout" :samples nil)
    (requesting :go-avoid 108) (requesting :go 107) (requesting :raw-jdk 12)
    (requesting :go-factory 12) (requesting :pipeline-blocking 13) (requesting :pmap 30)))

(def ^:private nothing-left {:platform 0, :virtual 0})

(def ^:private pipelines
  (channels-part :pipelines
    (piping :core-pipeline-blocking 50 {:platform 50, :virtual 0} 2000)
    (piping :thrum-pipeline-blocking 50 nothing-left 0)
    (piping :thrum-pipeline-fn 50 nothing-left 3)
    (piping :thrum-upipeline 50 nothing-left 0)))

(def ^:private databases
  (channels-part :jdbc
    (querying :interrupt 100 150) (querying :query-timeout 50 0) (querying :thrum 0 0)))

(def ^:private members
  (channels-part :cluster
    (row :one 2100 :params nil :samples [{:cpu-ms 700.0}])
    (row :two 2100 :params nil :samples [{:results 1000}])
    (row :three 2100 :params nil :samples [{:results 1000}])))

(def ^:private sane
  {:thrum.lab/version 1
   :machine {:cpus 2}
   :experiments
   [(experiment :fan-out
      (published downloads :ms :core-map :thrum-pmap 100)
      (part :many (row :thrum-pmap 3000) (row :thrum-upmap 3000))
      files
      {:part :unlimited}
      skipped)
    (experiment :scope
      (scope-part :hangs
        [:futures 201 1] [:executor 202 0] [:thrum-scope 202 0] [:thrum-all 202 0])
      (scope-part :fails
        [:futures 55 3] [:executor 160 0] [:thrum-scope 55 0] [:thrum-all 55 0])
      (scope-part :deaf
        [:futures 201 1] [:executor 401 0] [:thrum-scope 401 0] [:thrum-all 401 0]
        [:thrum-abandon 202 1]))
    (experiment :ring-jdk {:part :jdk-sleep, :skipped "not there"})
    (experiment :ring-jetty (published jetty :per-second :pool-50 :thrum 2.4)
                {:part :jetty-no-sleep})
    (experiment :ring-tomcat {:part :tomcat-sleep, :skipped "not there"})
    (experiment :ring-helidon {:part :helidon-sleep, :skipped "not there"})
    (experiment :ring-http-kit (published http-kit :per-second :pool-50 :thrum 2.4))
    (experiment :spring-tomcat (published spring :ms :platform-20-warm :virtual-warm 5) curve
      {:part :spring-ab, :skipped "no ab"})
    (experiment :go-blocks (published go-blocks :threads :go :go-factory 4))
    (experiment :jdbc databases)
    (experiment :pipelines pipelines)
    (experiment :cluster members)]})

(defn- doctored
  "Returns the complaints about the sane result with a value of one row replaced."
  [[experiment part row path value]]
  (let [at (into [:experiments experiment :parts part :contenders row] path)]
    (check/complaints (assoc-in sane at value))))

(deftest a-sane-result-passes
  (is (= [] (check/complaints sane))))

(deftest what-cannot-be-is-said
  (doseq [[change text]
          {[0 0 3 [:over-limit] 0.9] "faster than its limit line"
           [0 0 3 [:over-limit] nil] "should stay within"
           [0 0 3 [:verdict] :failed] "ended as :failed"
           [0 0 3 [:samples 0 :ok] 99] "lost downloads"
           [0 0 3 [:samples 0 :bytes] 999] "lost bytes"
           [0 1 0 [:samples 0 :peak] 513] "ran more at once"
           [0 0 0 [:median-ms] 900] "should take 10 times as long"
           [0 0 1 [:median-ms] nil] "no medians"
           [0 1 0 [:over-limit] 3.5] "should stay within 3"
           [0 2 0 [:verdict] :did-not-break] "ended as :did-not-break"
           [1 0 2 [:samples 0 :left] 1] ":thrum-scope left running: [1]"
           [1 0 0 [:samples 0 :left] 0] ":futures left running: [0]"
           [1 1 3 [:samples] []] ":thrum-all left running: []"
           [1 2 1 [:samples 0 :left] nil] ":executor left running: [nil]"
           [1 0 3 [:over-limit] 3.5] ":thrum-all should stay within 3"
           [1 1 2 [:median-ms] 150] ":executor should take 1.2 times"
           [7 0 1 [:median-ms] 2000] ":platform-20-warm should take 2.6 times as long"
           [7 0 1 [:over-limit] 2.0] ":virtual-warm should stay within 1.9"
           [7 1 0 [:median-points 1 1] 90.0]
           "faster than its limit line with 20 requests at once: 90.0"
           [8 0 4 [:samples 0 :threads] 31] ":go-factory had too many platform threads: [31]"
           [8 0 6 [:over-limit] 2.1] ":pmap should stay within 2"
           [8 0 2 [:samples 0 :threads] 99]
           ":go should have a platform thread for each request: [99]"
           [9 0 2 [:samples 0 :left] 1] ":thrum left queries running: [1]"
           [9 0 2 [:samples 0 :lost] 101] ":thrum lost connections: [101]"
           [9 0 0 [:samples 0 :left] 0] ":interrupt should have left queries running: [0]"
           [9 0 1 [:samples 0 :left] 0] ":query-timeout should have left queries running: [0]"
           [9 0 0 [:samples 0 :lost] 0] ":interrupt should have lost connections: [0]"
           [10 0 1 [:over-limit] 4.1] ":thrum-pipeline-blocking should stay within 4"
           [10 0 1 [:samples 0 :peak] 51]
           ":thrum-pipeline-blocking should have had 50 items at once: [51]"
           [10 0 2 [:samples 0 :closed :virtual] 1]
           ":thrum-pipeline-fn left threads, platform and virtual: [[0 1]]"
           [10 0 3 [:samples 0 :closed :taken] 51] ":thrum-upipeline took on from its source: [51]"
           [10 0 3 [:samples] []] ":thrum-upipeline should have had 50 items at once: []"
           [11 0 1 [:samples 0 :results] 999] ":two lost results: [999]"}]
    (is (str/includes? (str (first (doctored change))) text))))

(deftest a-part-that-is-missing-is-said
  (is (= ["the part :cluster is missing"] (check/complaints (update sane :experiments pop))))
  (is (= ["the part :many is missing"]
         (check/complaints (update-in sane [:experiments 0 :parts]
                             #(into [(first %)] (drop 2) %)))))
  (is (some #{"the number of processors is missing"} (check/complaints (dissoc sane :machine)))))

(deftest an-experiment-that-was-skipped-need-not-have-more
  (let [spring {:part :spring-100, :skipped "no javac", :headline {:system "Spring", :figure :ms}
                :contenders [(row :virtual-warm nil :verdict :not-run)]}]
    (is (= [] (check/complaints (assoc-in sane [:experiments 7 :parts] [spring]))))))

(def ^:private tour
  "The sane result without what the tour leaves out."
  (-> (assoc sane :options {:form :tour})
      (update :experiments (partial mapv #(update % :parts (partial filterv :headline))))
      (update-in [:experiments 0 :parts 0 :contenders] pop)))

(deftest a-tour-has-five-rows-and-need-not-have-more
  (is (= [] (check/complaints tour)))
  (is (= ["the part :many is missing"]
         (take 1 (check/complaints (assoc tour :options {:form :quick}))))))

(deftest a-row-of-the-tour-that-is-missing-or-shows-no-difference-is-said
  (doseq [[path value text]
          [[[3 :parts] [] "opens on [:downloads :http-kit-sleep :spring-100 :go-blocks], not on"]
           [[3 :parts 0 :contenders 1 :median-per-second] 1000.0 ":jetty-sleep: Not confirmed."]
           [[3 :parts 0 :contenders 1 :median-per-second] nil
            ":jetty-sleep: Not measured: not run."]
           [[6 :parts 0 :skipped] nil ":http-kit-sleep: Not measured: "]
           [[8 :parts 0 :contenders 4 :samples 0 :threads] 100 ":go-blocks: Not confirmed"]]
          :let [complaints (check/complaints (assoc-in tour (into [:experiments] path) value))]]
    (is (str/includes? (str/join " " complaints) text))))

(deftest a-result-of-nothing-is-said
  (is (seq (check/complaints {:thrum.lab/version 1, :experiments []})))
  (is (seq (check/complaints {}))))

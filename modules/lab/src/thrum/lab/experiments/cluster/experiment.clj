(ns thrum.lab.experiments.cluster.experiment
  "Calls over one, two and three members of a cluster on loopback: what do they cost beyond what
  they wait for, and how long is the gap when a member is killed?"
  (:require
   [thrum.lab.checkout :as checkout]
   [thrum.lab.columns :as columns]
   [thrum.lab.compiled :as compiled]
   [thrum.lab.experiments.cluster.calls :as calls]
   [thrum.lab.goals :as goals]
   [thrum.lab.job :as job]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.result :as result]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private open-ms "How long it usually takes to compile, for the estimate." 15000)
(def ^:private jvm-ms "How long a JVM usually takes to start, and to join." 4000)
(def ^:private work-ms "What the parts of a sample usually take." 15000)
(def ^:private answer-ms "How long a sample may take, the start of its JVMs included." 180000)
(def ^:private download-ms "How long it may take to download what is on the class path." 180000)

(def ^:private size
  {:n 1000, :limit 64, :nap-ms 125, :computes 60, :compute-ms 20, :nothings 5000})

(def ^:private ways
  [{:contender :local, :name "t/pmapv", :about "in one JVM, without a cluster", :members 0}
   {:contender :one, :name "one member", :members 1}
   {:contender :two, :name "two members", :members 2}
   {:contender :three, :name "three members", :members 3}])

;; Plan

(def ^:private no-checkout "Infinispan comes by ./cljw of a checkout of Thrum, and this is none")

(defn- row [full? {:keys [members] :as way}]
  (let [{:keys [n limit nap-ms]} size
        repeats (if full? 3 1)]
    (-> (dissoc way :members)
        (assoc :thrum? true
               :virtual? true
               :job {:members members}
               :limit-line-ms (limit-line/ms (limit-line/bounded n limit) nap-ms)
               :repeat repeats
               :estimate-ms (* repeats (+ work-ms (* jvm-ms (inc members))))))))

(defn- part-plan [{:keys [full]} {:keys [checkout]}]
  (cond-> (assoc size
                 :part :cluster
                 :title "1 000 sleeps of 125 ms, 64 at once, over members of a cluster"
                 :about (str "Each call runs on one member, a JVM of its own on this machine, and "
                             "the caller is another. Then work for the processors, which the JVMs "
                             "share, against the same in one JVM: what is above 1 is the cost of "
                             "the calls. Items that do nothing, alone and 64 at a time, show that "
                             "cost too. Then the sleeps again, with one member killed by signal 9 "
                             "after a third of the results.")
                 :in-turns? true
                 :limit-line-about "rounds × the sleep"
                 :contenders (mapv #(row full %) ways))
    (nil? checkout) (assoc :skipped no-checkout)))

(defn- plan [options {:keys [checkout] :as facts}]
  {:experiment :cluster
   :title "The map over a cluster"
   :start-ms open-ms
   :not-counted (when checkout "the download of Infinispan, the first time")
   :about "The same map over JVMs of their own, on loopback."
   :parts [(part-plan options facts)]})

;; Run

(defn- jvm [class-path]
  {:jvm-opts calls/jvm-opts
   :class-path class-path
   :timeout-ms answer-ms
   :around calls/quietly})

(def ^:private namespaces
  "What is compiled for the JVMs of the samples."
  '[thrum.lab.job.child thrum.lab.experiments.cluster.calls thrum.cluster.main
    thrum.cluster.engine.infinispan])

(defn- open! [_]
  (let [folder (checkout/folder)
        {:keys [class-path problem]} (checkout/class-path! folder "-A:cluster" download-ms)]
    (if problem
      {:skipped (str "Infinispan could not be had: " problem)}
      {:class-path (compiled/class-path (compiled/folder! (jvm class-path) namespaces)
                                        class-path)})))

(defn- sample! [{:keys [class-path]} part {:keys [job]} on-end]
  (let [job (assoc (merge (select-keys part (keys size)) job)
              :call 'thrum.lab.experiments.cluster.calls/sample)
        sample (job/sample! (jvm class-path) job)]
    (on-end (:n job))
    sample))

;; Report

(def ^:private gap
  {:heading "gap at a kill -9", :show (partial columns/of-samples text/ms :gap-ms)})

(defn- us [x]
  (str (text/decimals 1 x) " µs"))

(def ^:private item {:heading "an item", :show (partial columns/of-samples us :item-us)})
(def ^:private batch {:heading "in batches", :show (partial columns/of-samples us :batch-us)})
(def ^:private again {:heading "run again", :show (partial columns/each-sample :again)})

(defn- label [{:keys [median-ms samples] :as row}]
  (when median-ms
    (cond-> (text/ms median-ms)
      (some :gap-ms samples) (str " · gap " ((:show gap) row)))))

(defn- figures [{:keys [contenders]}]
  (let [{:keys [limit-line-ms] :as row} (result/row-of contenders :three)
        times-limit #(some-> (:ms %) (/ limit-line-ms))]
    (goals/of-row "thrum.cluster, three members"
                  row
                  [[times-limit "sleeps, x limit line" 1.15]
                   [:item-us "µs an item that does nothing" 60]
                   [:batch-us "µs an item of a batch of 64" 10]
                   [:growth-kb "kB that its caller grows by" 4096]
                   [:gap-ms "ms without a result at a kill -9" 2000]])))

(defn- complaints [{rows :cluster} _]
  (when rows
    (sanity/every-sample rows :results #{(:n size)} "lost results" [:two :three])))

(def experiment
  {:name :cluster
   :doc "the same map over one, two and three JVMs, on loopback"
   :parts [[:cluster "What does a call cost over members of a cluster, and a killed member?"]]
   :plan plan
   :open! open!
   :sample! sample!
   :columns [columns/median columns/samples columns/limit-line columns/times-limit
             {:heading "CPU work", :show (partial columns/of-samples text/ms :cpu-ms)}
             {:heading "x in one JVM", :show (partial columns/of-samples text/ratio :cpu-times)}
             item batch gap again]
   :label label
   :figures figures
   :complaints complaints})

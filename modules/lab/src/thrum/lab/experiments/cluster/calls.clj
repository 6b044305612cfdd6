(ns thrum.lab.experiments.cluster.calls
  "Calls over a cluster on loopback, whose members are JVMs of their own. Where thrum.cluster is not
  on the class path, nothing of it is needed until a sample is taken."
  (:require
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.lab.child :as child]
   [thrum.lab.experiments.cluster.work :as work]
   [thrum.lab.measure :as measure]
   [thrum.lab.ports :as ports]
   [thrum.lab.stats :as stats])
  (:import
   (java.lang AutoCloseable Process)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def jvm-opts
  "The flags of every JVM: those of one that is soon ready."
  ["-Xmx256m" "-XX:+UseSerialGC" "-XX:TieredStopAtLevel=1"])
(def ^:private joined-ms "How long a member may take to join." 60000)
(def ^:private warm-ups "How many short naps come before anything counts." 500)

(def ^:private loggers (mapv #(Logger/getLogger %) ["org.infinispan" "org.jgroups"]))

(defn- cluster [name]
  (requiring-resolve (symbol "thrum.cluster" name)))

;; Members

(defn quietly
  "Returns command, without its standard error: engines write much there."
  [command]
  (into ["/bin/sh" "-c" "exec \"$0\" \"$@\" 2>/dev/null"] command))

(defn- start-member! [seeds port]
  (-> (child/java-command jvm-opts 'thrum.cluster.main)
      (into ["member" "--allow" "thrum.lab.experiments.cluster.work" "--cluster" "lab"
             "--port" (str port) "--seeds" (str/join "," seeds)])
      quietly
      child/leashed
      child/start!))

;; A child on a leash is killed, by signal 9, when its standard input ends.
(defn- kill! [{:keys [^Process process]}]
  (.close (.getOutputStream process)))

(defn- with-members
  "Calls f with a node that calls n members, and the members."
  [n f]
  (let [ports (ports/free n)
        seeds (mapv #(str "127.0.0.1:" %) ports)
        members (mapv #(start-member! seeds %) ports)]
    (run! #(.setLevel ^Logger % Level/OFF) loggers)
    (try
      (run! #(child/await-match % #"joined" joined-ms) members)
      (with-open [^AutoCloseable node ((cluster "join!") {:cluster "lab", :seeds seeds})]
        (while (< (count (:members ((cluster "status") node))) n)
          (Thread/sleep 20))
        (f node members))
      (finally (run! child/stop! members)))))

;; Figures

(defn- longest-gap-ms
  "Takes all results; calls at-third! after a third of n. Returns the longest wait for one of those
  that follow."
  [results n at-third!]
  (loop [i 1, left (seq results), before (double (measure/now-ms)), longest 0.0]
    (if left
      (let [now (double (measure/now-ms)), third (long (quot n 3))]
        (when (= i third) (at-third!))
        (recur (inc i) (next left) now (if (< third i) (max longest (- now before)) longest)))
      longest)))

(defn- killed [{:keys [limit n nap-ms]} node members]
  (let [results ((cluster "pmap") node limit #'work/nap (repeat n nap-ms))
        gap (longest-gap-ms results n #(kill! (peek members)))]
    {:gap-ms gap, :again (:re-runs ((cluster "status") node)), :results (count results)}))

(defn- steps-of
  "Returns how many steps of `compute` take about so many ms here."
  [ms]
  (let [n 2000000]
    (dotimes [_ 20] (work/compute n))
    (long (/ (* n ms) (measure/ms-of #(work/compute n))))))

(defn- computed [{:keys [computes compute-ms]} pmapv]
  (let [items (repeat computes (steps-of compute-ms))
        limit (* 2 (.availableProcessors (Runtime/getRuntime)))]
    (pmapv limit #'work/compute items)
    {:local-ms (measure/ms-of #(t/pmapv limit work/compute items))
     :cpu-ms (measure/ms-of #(pmapv limit #'work/compute items))}))

(defn- us-each
  "Returns the µs of one of n calls that do nothing, the median of three rounds after one that does
  not count. options: the limit, or the map of its options."
  [prun! options n]
  (let [us #(/ (* 1000 (measure/ms-of (fn [] (prun! options #'work/nothing (range n))))) n)]
    (us)
    (stats/median (repeatedly 3 us))))

(defn- items [{:keys [nothings]} prun!]
  {:item-us (us-each prun! 512 nothings)
   :batch-us (us-each prun! {:limit 64, :batch 64} (* 10 nothings))})

(defn- held-kb []
  (dotimes [_ 3] (System/gc))
  (let [runtime (Runtime/getRuntime)]
    (quot (- (.totalMemory runtime) (.freeMemory runtime)) 1024)))

(defn- growth
  "Returns how many kB the caller holds more after all of these results than after a tenth of them."
  [{:keys [nothings]} pmap]
  (let [n (* 10 nothings)
        held (reduce (fn [held [i _]]
                       (cond-> held (#{nothings (dec n)} i) (conj (held-kb))))
                     []
                     (map-indexed vector (pmap {:limit 64, :window 256, :batch 4}
                                               #'work/nothing
                                               (range n))))]
    {:growth-kb (- (peek held) (first held))}))

(defn- figures [{:keys [limit n nap-ms] :as job} pmapv]
  (pmapv limit #'work/nap (repeat warm-ups 5))
  (let [{:keys [local-ms cpu-ms]} (computed job pmapv)]
    {:ms (measure/ms-of #(pmapv limit #'work/nap (repeat n nap-ms)))
     :cpu-ms cpu-ms
     :cpu-times (/ cpu-ms local-ms)}))

(defn sample
  "Makes n calls, limit at once, that each sleep nap-ms, over so many members, 0 for core's map in
  this JVM; computes calls, two for a processor at once, that each need one for about compute-ms;
  and, over several members, the n calls once more, with one member killed after a third of the
  results. Returns the sample: :ms of the sleeps; :cpu-ms, and :cpu-times that of the same work in
  this JVM; :item-us and :batch-us of a call that does nothing, alone and 64 at a time; :growth-kb,
  what the caller's heap grows by over many results; :gap-ms, the longest wait for a result after
  the kill, :again, how many calls ran again, and :results, how many came."
  [{:keys [members] :as job}]
  (if (zero? (long members))
    (figures job t/pmapv)
    (with-members members
      (fn [node processes]
        ;; What does nothing comes first: it warms the JVMs up for what sleeps.
        (merge (items job (partial (cluster "prun!") node))
               (figures job (partial (cluster "pmapv") node))
               (growth job (partial (cluster "pmap") node))
               (when (< 1 (long members)) (killed job node processes)))))))

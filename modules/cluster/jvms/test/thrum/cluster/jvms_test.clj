(ns thrum.cluster.jvms-test
  "The map over members that are JVMs of their own: killed, stopped, replaced, out of memory."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.cluster :as cluster]
   [thrum.cluster.jvm-work :as work]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.trail :as trail]
   [thrum.core :as t])
  (:import
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

;; Members live from test to test; each test has as many as it asks for.

(def ^:private ports (processes/free-ports 4))
(def ^:private seeds (mapv #(str "127.0.0.1:" %) ports))
(def ^:private members (atom {}))
(def ^:private caller (atom nil))

;; Another engine: -J-Dthrum.cluster.engine=thrum.cluster.engine.hazelcast/start
(def ^:private engine
  (System/getProperty "thrum.cluster.engine" "thrum.cluster.engine.infinispan/start"))

(def ^:private arguments ["--heartbeat-ms" "3000", "--engine" engine])

(def ^:private quiet (mapv #(Logger/getLogger %) ["org.infinispan" "org.jgroups" "com.hazelcast"]))

(run! #(.setLevel ^Logger % Level/SEVERE) quiet)

(defn- join-as-caller! []
  (cluster/join! {:cluster "jvms", :seeds seeds, :heartbeat-ms 3000
                  :engine @(requiring-resolve (symbol engine))}))

(defn- start-on! [port]
  (swap! members assoc port (processes/start-member! port seeds arguments)))

(defn- seen []
  (count (:members (cluster/status @caller))))

(defn- ensure!
  "Has exactly n members up and seen by the caller."
  [n]
  (let [wanted (take n ports)]
    (doseq [port (drop n ports)] (some-> (@members port) processes/kill!))
    (doseq [port wanted :when (not (some-> (@members port) processes/alive?))] (start-on! port))
    (doseq [port wanted] (processes/await-line! (@members port) "joined"))
    (when-not (processes/await! #(= n (seen)))
      (throw (ex-info (str "not " n " members: " (cluster/status @caller)) {})))))

(defn- with-caller [f]
  (processes/compile!)
  (reset! caller (join-as-caller!))
  (try
    (f)
    (finally
      (cluster/close! @caller)
      (run! processes/kill! (vals @members)))))

(use-fixtures :once with-caller)

(defn- gap-ms
  "Realises the results; at each count among the keys of steps it calls that step. Returns [results
  longest gap in ms since the first step]."
  [steps results]
  (let [first-step (apply min (keys steps))]
    (loop [done [], left results, before (System/nanoTime), longest 0]
      (if-some [left (seq left)]
        (let [now (System/nanoTime), gap (if (< (count done) first-step) 0 (- now before))
              done (conj done (first left))]
          (when-some [step (steps (count done))] (step))
          (recur done (rest left) now (max longest gap)))
        [done (quot longest 1000000)]))))

(defn- member [i] (@members (nth ports i)))

(deftest a-member-is-killed
  (ensure! 3)
  (let [folder (trail/folder)
        [results gap] (gap-ms {100 #(processes/signal! (member 1) "-9")}
                              (cluster/pmap @caller 32 #'work/nap (trail/items folder 400 50)))]
    (trail/check! folder 400 results 1)
    (is (< gap 2000))
    (println "  kill -9: longest gap" gap "ms," (- (trail/noted folder :start) 400) "run again")))

(deftest the-coordinator-is-killed
  (ensure! 3)
  (let [folder (trail/folder)
        ;; The caller was there first: the first member is the coordinator only where it left.
        second-caller (join-as-caller!)
        _ (cluster/close! @caller)
        _ (reset! caller second-caller)
        [results gap] (gap-ms {100 #(processes/signal! (member 0) "-9")}
                              (cluster/pmap @caller 32 #'work/nap (trail/items folder 400 50)))]
    (trail/check! folder 400 results 1)
    (is (< gap 2000))
    (println "  coordinator: longest gap" gap "ms")))

(deftest a-member-is-stopped-and-goes-on
  (ensure! 3)
  (let [folder (trail/folder)
        victim (member 2)
        [results gap] (gap-ms {100 #(processes/signal! victim "-STOP")}
                              (cluster/pmap @caller 32 #'work/nap (trail/items folder 400 50)))]
    (trail/check! folder 400 results 1)
    (processes/signal! victim "-CONT")
    (is (processes/await! #(= 3 (seen))))
    (is (= (range 50) (cluster/pmap @caller 8 #'work/nothing (range 50))))
    (println "  SIGSTOP: longest gap" gap "ms")))

(deftest members-that-are-stopped-together-come-back
  (ensure! 3)
  (let [stopped (mapv member [0 1])]
    (run! #(processes/signal! % "-STOP") stopped)
    (is (processes/await! #(= 1 (seen))))
    (run! #(processes/signal! % "-CONT") stopped)
    (is (processes/await! #(= 3 (seen))))
    (is (= (range 50) (cluster/pmap @caller 8 #'work/nothing (range 50))))))

(defn- re-runs [] (:re-runs (cluster/status @caller)))

(deftest a-stopped-member-that-is-sent-megabytes-holds-up-no-other
  (ensure! 3)
  (let [victim (member 1), before (re-runs)
        [results gap] (gap-ms {100 #(processes/signal! victim "-STOP")}
                              (cluster/upmap @caller 32 #'work/index
                                             (map #(vector % (byte-array 300000)) (range 600))))]
    (is (= (range 600) (sort results)))
    ;; What the stopped one had, and nothing of the others'.
    (is (<= (- (re-runs) before) 32))
    (is (< gap 6000))
    (processes/signal! victim "-CONT")
    (is (processes/await! #(= 3 (seen))))
    (println "  SIGSTOP under megabytes: longest gap" gap "ms")))

(deftest a-member-joins-while-it-runs
  (ensure! 2)
  (let [newcomer (nth ports 2)
        _ (some-> (@members newcomer) processes/kill!)
        pids (atom #{})
        end (+ (System/nanoTime) 50000000000)
        inputs (take-while (fn [_] (and (< (count @pids) 3) (< (System/nanoTime) end))) (range))]
    (run! #(swap! pids conj %) (cluster/upmap @caller 8 #'work/where (range 50)))
    (is (= 2 (count @pids)))
    (start-on! newcomer)
    (run! #(swap! pids conj %) (cluster/upmap @caller {:limit 2, :window 2} #'work/where inputs))
    (is (= 3 (count @pids)))))

(deftest a-culprit-is-named-and-one-member-is-left
  (ensure! 4)
  (let [folder (trail/folder)
        results (cluster/pmap @caller 8 #'work/halt (trail/items folder 40 50))]
    (is (= [0 10 20 30 40] (take 5 results)))
    (let [data (try (nth results 5) (catch clojure.lang.ExceptionInfo e (ex-data e)))]
      (is (= :thrum/poison (:type data)))
      (is (= 3 (count (distinct (:members data))))))
    (is (= 1 (count (filter processes/alive? (vals @members)))))
    (is (= 3 (count (filter #(= [:start 5] (take 2 %)) (trail/events folder)))))))

(deftest a-member-runs-out-of-memory
  (ensure! 4)
  (let [folder (trail/folder)
        tasks (doall (cluster/pmap-tasks @caller 40 #'work/hoard (trail/items folder 40 50)))
        outcomes (mapv #(try @% (catch java.util.concurrent.ExecutionException e
                                  (:type (ex-data (ex-cause e)))))
                       tasks)]
    (is (= :thrum/poison (nth outcomes 5)))
    (is (= (map #(* 10 %) (remove #{5} (range 40))) (map outcomes (remove #{5} (range 40)))))
    (is (= 1 (count (filter processes/alive? (vals @members)))))))

(defn- start-caller! [folder options]
  (processes/start!
    ["-e"
     (pr-str `(do (require 'thrum.cluster 'thrum.cluster.jvm-work)
                  (thrum.cluster/pmapv (thrum.cluster/join!
                                         (assoc ~options
                                           :engine @(requiring-resolve '~(symbol engine))))
                                       9
                                       (resolve 'thrum.cluster.jvm-work/nap)
                                       ~(trail/items folder 100 60000))))]))

(defn- caller-ends! [signal within-ms]
  (ensure! 3)
  (let [folder (trail/folder)
        child (start-caller! folder {:cluster "jvms", :seeds seeds, :heartbeat-ms 3000})]
    (try
      (is (processes/await! #(= 9 (trail/noted folder :start))) (slurp (:output child)))
      (processes/signal! child signal)
      (let [begin (System/nanoTime)]
        (is (processes/await! #(= 9 (trail/noted folder :interrupted))))
        (let [ms (quot (- (System/nanoTime) begin) 1000000)]
          (println " " signal "to the caller: nothing runs after" ms "ms")
          (is (< ms within-ms))))
      (is (= 9 (trail/noted folder :start)))
      (finally (processes/kill! child)))))

(deftest a-killed-caller-leaves-nothing-running
  (caller-ends! "-9" 2000))

(deftest a-stopped-caller-leaves-nothing-running
  (caller-ends! "-STOP" 10000))

(deftest a-cancel-reaches-every-member
  (ensure! 3)
  (let [folder (trail/folder)
        job (t/future (cluster/pmapv @caller 9 #'work/nap (trail/items folder 100 60000)))]
    (is (processes/await! #(= 9 (trail/noted folder :start))))
    (t/cancel! job)
    (is (processes/await! #(= 9 (trail/noted folder :interrupted))))
    (is (= 9 (trail/noted folder :start)))))

(deftest a-member-drains-at-sigterm
  (ensure! 3)
  (let [folder (trail/folder)
        victim (member 1)
        [results _] (gap-ms {50 #(processes/signal! victim "-TERM")}
                            (cluster/pmap @caller 16 #'work/nap (trail/items folder 300 30)))]
    (trail/check! folder 300 results 0)
    (is (processes/await! #(not (processes/alive? victim))))
    (is (str/includes? (slurp (:output victim)) "left"))))

(defn- replace! [i]
  (let [old (member i)]
    (processes/signal! old "-TERM")
    (is (processes/await! #(not (processes/alive? old))))
    (start-on! (nth ports i))
    (processes/await-line! (member i) "joined")))

(deftest members-are-replaced-one-after-the-other
  (ensure! 3)
  (let [folder (trail/folder)
        [results _] (gap-ms {50 #(replace! 0), 150 #(replace! 1), 250 #(replace! 2)}
                            (cluster/pmap @caller 16 #'work/nap (trail/items folder 400 30)))]
    (trail/check! folder 400 results 0)))

(deftest a-slow-member-gets-less
  (ensure! 3)
  (let [folder (trail/folder)
        slow (str (processes/pid (member 1)))
        results (cluster/pmapv @caller 12 #'work/nap-at (map #(vector folder % 20 slow 500)
                                                             (range 400)))
        runs (frequencies (for [[event _ pid] (trail/events folder), :when (= :end event)] pid))]
    (trail/check! folder 400 results 0)
    (is (= 3 (count runs)))
    (is (every? #(< (* 3 (long (runs slow))) (long %)) (vals (dissoc runs slow))) (str runs))))

;; Longer than the heartbeat, on as many virtual threads as a member has processors.
(deftest members-that-compute-on-all-processors-are-not-lost
  (ensure! 2)
  (let [n (* 2 (.availableProcessors (Runtime/getRuntime)))
        before (re-runs)]
    (is (= (repeat n 8000) (cluster/pmapv @caller n #'work/compute (repeat n 8000))))
    (is (= before (re-runs)))))

(deftest a-thousand-calls-at-once
  (ensure! 3)
  (is (= (map #(vector % (inc %) (+ 2 %)) (range 1000))
         (t/pmapv 1000
                  #(cluster/pmapv @caller 3 #'work/nothing [% (inc %) (+ 2 %)])
                  (range 1000)))))

;; -J-Dthrum.cluster.items=100000 for the long run.
(def ^:private many (Long/getLong "thrum.cluster.items" 1000))
(def ^:private kills (if (< many 10000) 2 10))

(defn- joined []
  (filter #(and (processes/alive? (member %)) (processes/printed? (member %) "joined")) (range 3)))

;; At once where it can: what waits for another member first has nothing in flight.
(defn- kill-and-start-another! []
  (is (processes/await! #(next (joined))))
  (let [i (rand-nth (joined))]
    (processes/kill! (member i))
    (start-on! (nth ports i))))

(deftest ^{:time-limit-ms (if (< many 10000) 300000 1800000)} random-kills-and-joins-cost-no-result
  (ensure! 3)
  (let [folder (trail/folder)
        counts (map #(quot (* many (inc %)) (inc kills)) (range kills))
        [results gap] (gap-ms (zipmap counts (repeat kill-and-start-another!))
                              (cluster/pmap @caller 64 #'work/nap
                                            (map #(vector folder % (rand-int 20)) (range many))))]
    (trail/check! folder many results kills)
    (println " " many "items," kills "kills and joins: longest gap" gap "ms,"
             (- (trail/noted folder :start) many) "run again")))

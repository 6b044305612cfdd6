(ns thrum.cluster-test
  "The map over a cluster of nodes in this JVM: results, re-runs, suspects, batches, cancel,
  deadlines, drain."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [clojure.test.check :as check]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.cluster :as cluster]
   [thrum.cluster.history :as history]
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.impl.function :as function]
   [thrum.cluster.impl.member :as member]
   [thrum.cluster.impl.seal :as seal]
   [thrum.cluster.impl.silence :as silence]
   [thrum.cluster.impl.wire :as wire]
   [thrum.cluster.nodes :as nodes :refer [await! caller! close-all! member! type-of with-cluster]]
   [thrum.cluster.spi :as engine]
   [thrum.cluster.stand-in :as stand-in]
   [thrum.cluster.work :as work]
   [thrum.core :as t]
   [thrum.spi.watch :as watch])
  (:import
   (java.io File FileOutputStream)
   (java.security KeyStore KeyStore$PasswordProtection KeyStore$SecretKeyEntry)
   (java.util.concurrent CompletableFuture ExecutionException)
   (java.util.concurrent.atomic AtomicLong)
   (javax.crypto.spec SecretKeySpec)
   (thrum.cluster.impl.node Node)))

(set! *warn-on-reflection* true)

(use-fixtures :each (fn [f] (reset! work/trail []) (reset! work/hook (fn [_ _])) (f)))

(deftest results-come-in-order-from-all-members
  (with-cluster [network c 3]
    (is (= (map #(* 10 %) (range 200)) (cluster/pmap c 8 #'work/brief (range 200))))
    (is (= #{"m0" "m1" "m2"} (into #{} (map last) @work/trail)))))

(deftest every-form-of-the-family-gives-what-cores-gives
  (with-cluster [network c 2]
    (let [items (range 20), tens (map #(* 10 %) items)]
      (is (= tens (cluster/pmapv c 4 #'work/times-ten items)))
      (is (= (set tens) (set (cluster/upmap c 4 #'work/times-ten items))))
      (is (= tens (map deref (cluster/pmap-tasks c 4 #'work/times-ten items))))
      (is (nil? (cluster/prun! c 4 #'work/object items)))
      (is (= tens (into [] (cluster/pmap c 4 #'work/times-ten) items)))
      (is (= [[1 :a] [2 :b]] (cluster/pmap c 4 #'work/two [1 2] [:a :b :c])))
      (is (= [] (cluster/pmapv c 4 #'work/times-ten []))))))

(deftest the-input-is-not-pulled-beyond-the-window
  (with-cluster [network c 2]
    (let [pulled (atom 0)
          source (map #(do (swap! pulled inc) %) (iterate inc 0))]
      (is (= [0 10 20] (take 3 (cluster/pmap c {:limit 2, :window 4} #'work/times-ten source))))
      (is (<= 3 @pulled 8)))))

(deftest batches-give-the-same-results
  (with-cluster [network c 2]
    (let [items (range 50), tens (map #(* 10 %) items)]
      (is (= tens (cluster/pmap c {:limit 3, :batch 7} #'work/brief items)))
      (is (= tens (cluster/pmapv c {:limit 3, :batch 7} #'work/brief items)))
      (is (= (set tens) (set (cluster/upmap c {:limit 3, :batch 7} #'work/brief items))))
      (is (= tens (into [] (cluster/pmap c {:limit 3, :batch 7} #'work/brief) items)))
      (is (= [[1 :a] [2 :b]] (cluster/pmap c {:limit 3, :batch 7} #'work/two [1 2] [:a :b]))))))

(deftest a-failure-comes-after-the-results-before-it
  (with-cluster [network c 2]
    (doseq [limit [{:limit 2} {:limit 2, :batch 3} {:limit 2, :batch 20}]]
      (let [results (cluster/pmap c limit #'work/failing-at-three (range 20))]
        (is (= [0 10 20] (take 3 results)) (str limit))
        (is (= :work/three (type-of #(nth results 3))) (str limit))
        (is (= :work/three (type-of #(count results))) (str limit)))
      (is (= :work/three
             (type-of #(cluster/pmapv c limit #'work/failing-at-three (range 20))))))))

(defn- source-of
  "Returns the numbers below n as a lazy seq that then throws once, and ends where asked again."
  [n]
  (let [thrown? (atom false)
        from (fn from [i]
               (lazy-seq
                 (cond
                   (< i n) (cons i (from (inc i)))
                   (compare-and-set! thrown? false true) (throw (ex-info "" {:type ::source})))))]
    (from 0)))

(deftest a-failure-of-the-source-comes-after-the-results-of-the-items-before-it
  (with-cluster [network c 2]
    (doseq [form [cluster/pmap cluster/upmap]
            limit [2 {:limit 2, :batch 3} {:limit 2, :batch 5} {:limit 2, :batch 20}]]
      (let [results (form c limit #'work/times-ten (source-of 5))]
        (is (= #{0 10 20 30 40} (set (take 5 results))) (str limit))
        (is (= ::source (type-of #(nth results 5))) (str limit))
        (is (= ::source (type-of #(count results))) (str limit))))))

(deftest eager-forms-take-what-can-be-reduced
  (with-cluster [network c 2]
    (doseq [limit [2 {:limit 2, :batch 3}]]
      (let [items (reify clojure.lang.IReduceInit (reduce [_ f init] (reduce f init (range 5))))]
        (is (= [0 10 20 30 40] (cluster/pmapv c limit #'work/times-ten items)))
        (reset! work/trail [])
        (is (nil? (cluster/prun! c limit #'work/brief items)))
        (is (= (set (range 5)) (into #{} (map second) @work/trail)))
        (is (= :thrum/invalid (type-of #(cluster/prun! c limit #'work/brief 5))))))))

(deftest what-is-no-collection-is-refused-at-the-call
  (with-cluster [network c 1]
    (doseq [form [cluster/pmap cluster/upmap cluster/pmapv], limit [2 {:limit 2, :batch 3}]]
      (is (= :thrum/invalid (type-of #(form c limit #'work/times-ten 5)))))))

(deftest a-failure-names-its-member
  (with-cluster [network c 1]
    (let [t (nodes/thrown #(cluster/pmapv c 1 #'work/failing-at-three [3]))
          riders (map ex-data (.getSuppressed ^Throwable t))]
      (is (= {:type :work/three, :item 3} (ex-data t)))
      (is (= [(nodes/full-name network "m0")] (keep :member riders)))
      (is (some #(= "thrum.cluster.work$failing_at_three" (.getClassName ^StackTraceElement %))
                (.getStackTrace ^Throwable t))))))

(deftest what-is-no-public-var-of-a-function-is-refused
  (with-cluster [network c 1]
    (doseq [f [inc :a #'work/trail #'work/hidden 'inc nil]]
      (is (= :thrum/invalid (type-of #(cluster/pmap c 2 f [1])))))))

(deftest a-namespace-that-is-not-allowed-is-refused
  (with-cluster [network c 1]
    (let [t (nodes/thrown #(cluster/pmapv c 1 #'clojure.core/identity [1]))]
      (is (= [:thrum/refused :not-allowed (nodes/full-name network "m0")]
             ((juxt :type :reason :member) (ex-data t)))))))

(deftest another-source-is-refused
  (with-cluster [network c 1]
    (let [reference function/reference]
      (with-redefs [function/reference #(assoc (reference %) :code "0123")]
        (let [t (nodes/thrown #(cluster/pmapv c 1 #'work/times-ten [1]))]
          (is (= [:thrum/refused :differs (nodes/full-name network "m0")]
                 ((juxt :type :reason :member) (ex-data t)))))))))

(defn- on-disk
  "Calls f with a function that writes the source of a namespace, and one that loads it."
  [ns-name f]
  (let [file (File/createTempFile "source" ".clj")
        write! #(spit file (str "(ns " ns-name ")\n(defn f [x] [" % " x])\n"))]
    (try
      (with-redefs [function/source (constantly (.toURL (.toURI file)))]
        (f write! #(load-file (str file))))
      (finally (remove-ns ns-name) (.delete file)))))

(deftest a-source-that-changes-on-disk-is-another-when-it-is-loaded
  (on-disk 'thrum.cluster.edited
    (fn [write! load!]
      (write! 1)
      (load!)
      (let [f #(ns-resolve 'thrum.cluster.edited 'f)
            code #(:code (function/reference (f)))
            member (function/registry "m" '#{thrum.cluster.edited})
            resolved? #(try
                         (= (f) (function/resolve! member "thrum.cluster.edited/f" %))
                         (catch clojure.lang.ExceptionInfo e (:reason (ex-data e))))
            first-code (code)]
        (is (true? (resolved? first-code)))
        (write! 2)
        (is (= [first-code true] [(code) (resolved? first-code)]))
        (load!)
        (is (not= first-code (code)))
        (is (= [true :differs] [(resolved? (code)) (resolved? first-code)]))))))

(deftest only-a-load-has-a-source-read-again
  (on-disk 'thrum.cluster.edited
    (fn [write! load!]
      (write! "1]) (def alias inc) (defonce once (fn [x] x)) (comment [")
      (load!)
      (let [codes #(mapv (fn [s] (:code (function/reference (ns-resolve 'thrum.cluster.edited s))))
                         '[alias once f])
            f (ns-resolve 'thrum.cluster.edited 'f)
            [code :as before] (codes)]
        (is (= [code code code] before))
        (write! "2]) (def alias inc) (defonce once (fn [x] x)) (comment [")
        (alter-var-root f (fn [f] (fn [x] (f x))))
        (is (= before (codes)) "a tracer loads nothing")
        (load!)
        (let [[code :as after] (codes)]
          (is (= [code code code] after) "the order in which vars are asked for counts for nothing")
          (is (not= before after)))))))

(deftest another-version-of-the-protocol-is-refused
  (with-cluster [network c 1]
    (with-redefs [thrum.cluster.impl.wire/request-bytes
                  (let [request-bytes @#'thrum.cluster.impl.wire/request-bytes]
                    (fn [op from write-rest!]
                      (doto (request-bytes op from write-rest!) (aset-byte 0 9))))]
      (let [t (nodes/thrown #(cluster/pmapv c 1 #'work/times-ten [1]))]
        (is (= [:thrum/refused :version] ((juxt :type :reason) (ex-data t))))))))

(deftest another-secret-is-refused
  (let [network (stand-in/network), m (member! network "m0" :secret "one")]
    (try
      (doseq [options [{:secret "two"} {}]]
        (let [t (nodes/thrown #(stand-in/join! network (merge {:name "c"} options)))]
          (is (= [:thrum/refused :secret] ((juxt :type :reason) (ex-data t))))
          (is (= 1 (count @(:nodes network))) "the node has left")))
      (let [c (caller! network :secret "one")]
        (try (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1]))) (finally (cluster/close! c))))
      (finally (cluster/close! m)))))

(deftest a-member-without-a-secret-takes-no-sealed-request
  (with-cluster [network c 1]
    (is (= :thrum/refused (type-of #(stand-in/join! network {:name "d", :secret "x"}))))))

(deftest what-cannot-be-carried-names-its-path
  (with-cluster [network c 1]
    (doseq [limit [1 {:limit 1, :batch 4}]]
      (let [argument (nodes/thrown #(cluster/pmapv c limit #'work/times-ten [{:a (Object.)}]))
            result (nodes/thrown #(cluster/pmapv c limit #'work/object [1]))]
        (is (= :thrum/invalid (:type (ex-data argument))))
        (is (= :a (last (:path (ex-data argument)))))
        (is (= [:thrum/invalid [1 :a]] ((juxt :type :path) (ex-data result))))))))

;; Losses

(deftest what-ran-on-a-dead-member-runs-again-on-another
  (with-cluster [network c 3]
    (reset! work/hook (fn [item node]
                        (when (and (= 40 item)
                                   (= 1 (count (filter #{[:start 40 node]} @work/trail)))
                                   (= 3 (count (stand-in/members-up network))))
                          (nodes/kill! network node)
                          (Thread/sleep 60000))))
    (let [results (cluster/pmapv c 12 #'work/hooked (range 100))]
      (is (empty? (history/violations {:trail @work/trail, :items (range 100), :results results
                                       :expected (map #(* 10 %) (range 100)), :losses 1})))
      (is (= 2 (count (filter #(= [:start 40] (take 2 %)) @work/trail)))))))

(deftest the-culprit-fails-and-the-innocent-do-not
  (with-cluster [network c 4]
    (reset! work/hook (fn [item node]
                        (when (= 5 item) (nodes/kill! network node) (Thread/sleep 60000))
                        (Thread/sleep 5)))
    (let [tasks (doall (cluster/pmap-tasks c 16 #'work/hooked (range 16)))
          outcomes (mapv #(try @% (catch ExecutionException e (ex-cause e))) tasks)
          culprit (nth outcomes 5)
          [a b last] (:members (ex-data culprit))]
      (is (= :thrum/poison (:type (ex-data culprit))))
      (is (= 3 (count (distinct [a b last]))))
      (is (= (map #(* 10 %) (remove #{5} (range 16))) (map outcomes (remove #{5} (range 16)))))
      (is (= 1 (count (stand-in/members-up network)))))))

(deftest the-last-member-is-not-risked
  (with-cluster [network c 3 :members-timeout-ms 400]
    (reset! work/hook (fn [item node]
                        (when (= 5 item) (nodes/kill! network node) (Thread/sleep 60000))))
    (is (= :thrum/no-members (type-of #(cluster/pmapv c 1 #'work/hooked [5]))))
    (is (= 1 (count (stand-in/members-up network))))
    (is (= [10] (cluster/pmapv c 1 #'work/hooked [1])))))

(deftest a-batch-with-a-culprit-loses-the-culprit-alone
  (with-cluster [network c 4]
    (reset! work/hook (fn [item node]
                        (when (= 5 item) (nodes/kill! network node) (Thread/sleep 60000))))
    (let [results (cluster/pmap c {:limit 2, :batch 4} #'work/hooked (range 12))]
      (is (= [0 10 20 30 40] (take 5 results)))
      (let [t (nodes/thrown #(nth results 5))]
        (is (= :thrum/poison (:type (ex-data t))))
        (is (= [[5]] (:items (ex-data t))))))))

(deftest a-cut-off-member-s-late-answers-are-dropped
  (with-cluster [network c 2]
    (let [cut (promise), gate (promise)]
      (reset! work/hook (fn [item node]
                          (when (and (= 0 item) (deliver cut node))
                            (stand-in/cut! network (nodes/full-name network node))
                            (deref gate 5000 :late)
                            (stand-in/heal! network (nodes/full-name network node)))))
      (is (= [0 10 20] (cluster/pmapv c 3 #'work/hooked [0 1 2])))
      (deliver gate :go)
      (await! #(= 2 (count (stand-in/members-up network))))
      (is (= [30 40] (cluster/pmapv c 2 #'work/hooked [3 4]))))))

;; An engine has one view for all; a member that this caller alone cannot reach stays in it.
(deftest a-member-that-no-engine-misses-is-lost-when-it-is-silent
  (with-cluster [network c 2 :heartbeat-ms 200]
    (reset! work/hook (fn [item node]
                        (when (and (= 3 item) (= "m0" node))
                          (stand-in/isolate! network (nodes/full-name network "m0")))))
    (dotimes [_ 20]
      (is (= (map #(* 10 %) (range 8)) (cluster/pmapv c 4 #'work/hooked (range 8)))))
    (let [members #(mapv :member (:members (cluster/status c)))]
      (is (= [(nodes/full-name network "m1")] (members)))
      (stand-in/heal! network (nodes/full-name network "m0"))
      (await! #(= 2 (count (members))))
      (is (= #{"m0" "m1"} (set (cluster/pmapv c 4 #'work/node (range 40))))))))

(deftest a-member-that-answers-nothing-and-shows-that-it-is-there-is-not-lost
  (with-cluster [network c 1 :heartbeat-ms 200]
    (with-redefs [caller/send! (let [send! caller/send!]
                                 (fn [from to request]
                                   (if (and (= :alive (:op (wire/request request)))
                                            (engine/worker? to))
                                     (CompletableFuture.)
                                     (send! from to request))))]
      (reset! work/hook (fn [_ _] (Thread/sleep 1600)))
      (is (= [10] (cluster/pmapv c 1 #'work/hooked [1])))
      (is (= [:start :end] (map first @work/trail))))))

(deftest without-members-a-call-waits-for-one
  (let [network (stand-in/network)
        impatient (caller! network), c (caller! network :members-timeout-ms 20000)]
    (try
      (is (= :thrum/no-members (type-of #(cluster/pmapv impatient 1 #'work/times-ten [1]))))
      (let [waiting (t/future (cluster/pmapv c 1 #'work/times-ten [1 2]))
            m (member! network "late")]
        (try (is (= [10 20] (deref waiting 20000 :late))) (finally (cluster/close! m))))
      (finally (close-all! [impatient c])))))

;; Cancel and deadlines

(deftest a-cancel-stops-what-runs-on-the-members-and-starts-nothing
  (with-cluster [network c 3]
    (let [job (t/future (cluster/pmapv c 6 #'work/endless (range 100)))]
      (await! #(= 6 (nodes/running)))
      (is (t/cancel! job))
      (await! #(zero? (nodes/running)))
      (is (= 6 (count (filter (comp #{:start} first) @work/trail)))))))

(deftest when-a-form-has-thrown-nothing-of-it-runs
  (with-cluster [network c 3]
    (is (= :thrum/timeout
           (type-of #(t/with-timeout 100 (cluster/pmapv c 6 #'work/endless (range 100))))))
    (is (zero? (nodes/running)))
    (let [n (count @work/trail)]
      (is (= :late (t/with-timeout [50 :late] (cluster/pmapv c 2 #'work/endless (range 100)))))
      (is (empty? (history/violations {:losses 0, :after-cancel (drop (+ 4 n) @work/trail)}))))))

(deftest a-failure-is-thrown-when-what-else-ran-has-ended
  (with-cluster [network c 3]
    (reset! work/hook (fn [item _]
                        (if (zero? item)
                          (do (await! #(= 6 (nodes/running)))
                              (throw (ex-info "zero" {:type :zero})))
                          (try
                            (Thread/sleep 60000)
                            (catch InterruptedException e (Thread/sleep 30) (throw e))))))
    (is (= :zero (type-of #(cluster/pmapv c 6 #'work/hooked (range 6)))))
    (is (= 5 (count (filter (comp #{:interrupted} first) @work/trail))))))

(deftest what-is-left-of-the-deadline-travels
  (with-cluster [network c 1]
    (is (= [nil] (cluster/pmapv c 1 #'work/remaining [1])))
    (let [[left] (t/with-timeout 5000 (cluster/pmapv c 1 #'work/remaining [1]))]
      (is (<= 1 left 5000)))))

(deftest a-deadline-that-passes-on-the-member-first-is-no-failure
  (let [m (member/member {:node "m", :allow #{'thrum.cluster.work}
                          :silence (silence/silence 1000 200)})
        run (fn [v ms]
              (wire/answered
                (member/handle! m (wire/run (assoc (function/reference v)
                                                   :from "~c", :run 1, :items [[1]]
                                                   :remaining-ms ms)))))]
    (is (= [:stopped :late] (run #'work/endless 50)))
    (is (= [:done [10]] (update (run #'work/times-ten 60000) 1 wire/results)))))

(deftest bindings-do-not-travel
  (with-cluster [network c 1]
    (is (= [:root] (binding [work/*bound* :mine] (cluster/pmapv c 1 #'work/bound [1])))))
  (let [m (member! (stand-in/network) "itself")]
    (try
      (is (= [:root] (binding [work/*bound* :mine] (cluster/pmapv m 1 #'work/bound [1]))))
      (finally (cluster/close! m)))))

(defn- swallows-an-interrupt-at-zero [item _]
  (when (zero? (long item))
    (try (Thread/sleep 60000) (catch InterruptedException _))))

(deftest a-batch-that-is-stopped-calls-no-further-item
  (with-cluster [network c 1]
    (reset! work/hook swallows-an-interrupt-at-zero)
    (let [call #(cluster/pmapv c {:limit 1, :batch 20} #'work/hooked (range 20))
          idle? #(= 0 (:running (first (:members (cluster/status c)))))]
      (doseq [stopped [#(is (= :late (t/with-timeout [100 :late] (call))))
                       #(let [job (t/future (call))]
                          (await! (fn [] (nodes/started? 0)))
                          (is (t/cancel! job)))]]
        (reset! work/trail [])
        (stopped)
        (await! idle?)
        (is (= [[:start 0 "m0"] [:end 0 "m0"]] @work/trail))))))

(deftest an-interrupt-that-an-item-leaves-behind-does-not-meet-the-next
  (with-cluster [network c 1]
    (reset! work/hook (fn [item _]
                        (if (= 0 item) (.interrupt (Thread/currentThread)) (Thread/sleep 1))))
    (is (= [0 10 20] (cluster/pmap c {:limit 1, :batch 3} #'work/hooked (range 3))))))

(deftest an-interrupt-that-a-call-leaves-behind-is-no-failure
  (with-cluster [_ c 1]
    (doseq [batch [nil 2]]
      (is (= [[[1] '(1)] [[2] '(2)]]
             (cluster/pmap c (cond-> {:limit 1} batch (assoc :batch batch)) #'work/interrupting
                           [1 2]))))))

(deftest what-the-data-of-an-exception-throws-is-no-stop
  (with-cluster [_ c 1]
    (let [^Throwable e (nodes/thrown #(cluster/pmapv c 1 #'work/failing-with-interrupt [1]))]
      (is (= "boom" (ex-message e))))))

;; Leaving

(deftest a-member-that-drains-finishes-what-it-runs-and-takes-nothing
  (let [network (stand-in/network)
        m0 (member! network "m0"), m1 (member! network "m1"), c (caller! network)
        gate (promise)]
    (try
      (reset! work/hook (fn [item _] (when (< item 4) (deref gate 5000 :late))))
      (let [job (t/future (cluster/pmapv c 4 #'work/hooked (range 20)))]
        (await! #(= 4 (nodes/running)))
        (let [closing (t/future (cluster/close! m0))
              before (count @work/trail)]
          (await! #(:draining? (first (:members (cluster/status c)))))
          (deliver gate :go)
          (is (= (map #(* 10 %) (range 20)) (deref job 5000 :late)))
          (is (nil? (deref closing 5000 :late)))
          (is (not-any? #(and (= :start (first %)) (= "m0" (last %))) (drop before @work/trail)))
          (is (= 20 (count (filter (comp #{:start} first) @work/trail))))))
      (finally (deliver gate :go) (close-all! [m0 m1 c])))))

(deftest a-member-leaves-when-its-answers-have-arrived
  (let [network (stand-in/network)
        m0 (member! network "m0" :drain-timeout-ms 20000), c (caller! network)
        item (apply str (repeat 5000 "x")), sends (promise), asks (promise), gate (promise)]
    (try
      (reset! (:hold network)
              (fn [_ ^bytes answer]
                (cond
                  (< 5000 (alength answer)) (do (deliver sends true) (deref gate 20000 :late))
                  (= [:done true] (wire/answered (seal/open nil answer))) (deliver asks true))))
      (let [job (t/future (cluster/pmapv c 1 #'work/two [item] [1]))
            _ (is (deref sends 20000 false))
            closing (t/future (cluster/close! m0))]
        (await! #(or (realized? asks) (nil? (nodes/full-name network "m0"))))
        (deliver gate :go)
        (is (= [[item 1]] (try (deref job 20000 :late) (catch ExecutionException e (ex-cause e)))))
        (is (nil? (deref closing 20000 :late)))
        (is (= 0 (:re-runs (cluster/status c)))))
      (finally (deliver gate :go) (close-all! [m0 c])))))

(deftest a-member-that-drains-finishes-work-that-calls-the-cluster-through-its-node
  (let [network (stand-in/network)
        m0 (member! network "m0" :drain-timeout-ms 20000), m1 (member! network "m1")
        c (caller! network), gate (promise)]
    (try
      (cluster/drain! m1 0)
      (reset! work/hook (fn [item node]
                          (when (= [0 "m0"] [item node])
                            (cluster/pmapv m0 1 #'work/hooked [1]))
                          (when (= 1 item) (deref gate 20000 :late))))
      (let [job (t/future (cluster/pmapv c 1 #'work/hooked [0]))
            _ (await! #(nodes/started? 1))
            closing (t/future (cluster/close! m0))]
        (await! #(every? :draining? (:members (cluster/status c))))
        (is (= :waits (deref job 0 :waits)))
        (deliver gate :go)
        (is (= [0] (deref job 20000 :late)))
        (is (nil? (deref closing 20000 :late)))
        (is (= :thrum/closed (type-of #(cluster/status m0)))))
      (finally (deliver gate :go) (close-all! [m0 m1 c])))))

(deftest a-member-that-must-leave-hands-its-work-to-another
  (let [network (stand-in/network)
        m0 (member! network "m0" :drain-timeout-ms 0), c (caller! network)]
    (reset! work/hook (fn [_ node] (when (= "m0" node) (Thread/sleep 60000))))
    (let [job (t/future (cluster/pmapv c 1 #'work/hooked [1]))]
      (await! #(nodes/started? 1))
      (let [m1 (member! network "m1")]
        (try
          (cluster/close! m0)
          (is (= [10] (deref job 5000 :late)))
          (is (= 1 (count (filter (comp #{:interrupted} first) @work/trail))))
          (finally (close-all! [m1 c])))))))

(deftest members-that-all-drain-are-no-members
  (let [network (stand-in/network)
        m (member! network "m0"), c (caller! network)]
    (try
      (is (cluster/drain! m 0))
      (let [job (t/future (type-of #(cluster/pmapv c 1 #'work/times-ten [1])))]
        (is (= :thrum/no-members (deref job 5000 :late)))
        (t/cancel! job))
      (finally (close-all! [m c])))))

(deftest a-second-close-waits-for-the-first
  (let [network (stand-in/network), m (member! network "m0" :drain-timeout-ms 20000)
        c (caller! network), gate (promise)]
    (try
      (reset! work/hook (fn [_ _] (deref gate 20000 :late)))
      (let [job (t/future (cluster/pmapv c 1 #'work/hooked [1]))
            _ (await! #(nodes/started? 1))
            closing (mapv (fn [_] (Thread/startVirtualThread #(cluster/close! m))) (range 2))]
        (await! (fn [] (every? #(= Thread$State/WAITING (.getState ^Thread %)) closing)))
        (deliver gate :go)
        (run! #(.join ^Thread %) closing)
        (is (= [10] (deref job 5000 :late)))
        (is (nil? (nodes/full-name network "m0"))))
      (finally (deliver gate :go) (close-all! [m c])))))

(deftest a-dead-caller-leaves-nothing-running
  (with-cluster [network c 2]
    (let [job (t/future (cluster/pmapv c 4 #'work/endless (range 4)))]
      (await! #(= 4 (nodes/running)))
      (stand-in/kill! network (.-name ^Node c))
      (await! #(zero? (nodes/running)))
      (t/cancel! job))))

(deftest a-time-may-be-as-long-as-a-long
  (let [most Long/MAX_VALUE, network (stand-in/network)
        m (member! network "m0" :lease-ms most :drain-timeout-ms most)
        c (caller! network :lease-ms most :members-timeout-ms most)
        job (t/future (cluster/pmapv c 4 #'work/endless (range 4)))]
    (try
      (await! #(= 4 (nodes/running)))
      (stand-in/kill! network (.-name ^Node c))
      (await! #(zero? (nodes/running)))
      (is (cluster/drain! m most))
      (finally
        (t/cancel! job)
        (close-all! [m c])))))

(deftest a-silent-caller-leaves-nothing-running-after-its-lease
  (let [network (stand-in/network)
        m (member! network "m0" :lease-ms 1000), c (caller! network)
        job (t/future (cluster/pmapv c 4 #'work/endless (range 4)))]
    (try
      (await! #(= 4 (nodes/running)))
      (stand-in/mute! network (.-name ^Node c))
      (await! #(<= 4 (count (filter (comp #{:interrupted} first) @work/trail))))
      (finally
        (swap! (:nodes network) assoc-in [(.-name ^Node c) :muted?] false)
        (t/cancel! job)
        (close-all! [m c])))))

(deftest a-lease-is-extended-while-its-caller-is-there
  (let [network (stand-in/network)
        m (member! network "m0" :lease-ms 1500), c (caller! network :lease-ms 1500)]
    (try
      (reset! work/hook (fn [_ _] (Thread/sleep 3000)))
      (is (= [10] (cluster/pmapv c 1 #'work/hooked [1])))
      (is (= 1 (count (filter (comp #{:start} first) @work/trail))))
      (finally (close-all! [m c])))))

;; A lease is for callers of other nodes: nothing comes from a node to itself while it waits.
(deftest what-a-node-calls-of-itself-has-no-lease
  (let [network (stand-in/network), ^Node m (member! network "itself"), gate (promise)]
    (try
      (reset! work/hook (fn [_ _] (deref gate 20000 :late)))
      (let [job (t/future (cluster/pmapv m 1 #'work/hooked [1]))]
        (await! #(nodes/started? 1))
        (member/expire! (.-member m) 0)
        (deliver gate :go)
        (is (= [10] (deref job 20000 :late)))
        (is (= [[:start 1 "itself"] [:end 1 "itself"]] @work/trail)))
      (finally (deliver gate :go) (cluster/close! m)))))

(deftest a-closed-node-calls-nothing
  (with-cluster [network c 2]
    (let [job (t/future (cluster/pmapv c 2 #'work/endless (range 4)))]
      (await! #(= 2 (nodes/running)))
      (cluster/close! c)
      (is (= :thrum/closed (type-of #(try @job (catch ExecutionException e
                                                 (throw (ex-cause e)))))))
      (is (zero? (nodes/running)))
      (is (= :thrum/closed (type-of #(cluster/pmapv c 1 #'work/times-ten [1]))))
      (is (= :thrum/closed (type-of #(cluster/status c))))
      (is (nil? (cluster/close! c))))))

(deftest a-member-calls-others-and-itself
  (let [network (stand-in/network)
        m0 (member! network "m0"), m1 (member! network "m1")]
    (try
      (is (= #{"m0" "m1"} (set (cluster/pmapv m0 4 #'work/node (range 40)))))
      (finally (close-all! [m0 m1])))))

(deftest what-is-waited-for-is-shown-with-its-member
  (with-cluster [network c 2]
    (let [gate (promise)
          shown (fn [] (into #{}
                             (comp (filter #(= :cluster-call (:kind %)))
                                   (map #((:describe %) (:thing %))))
                             (watch/registered)))
          _ (reset! work/hook (fn [_ _] (deref gate 5000 :late)))
          job (t/future (cluster/pmapv c 2 #'work/hooked [1 2]))]
      (await! #(= 2 (nodes/running)))
      (is (= #{"m0" "m1"} (into #{} (map #(subs (:member %) 0 2)) (shown))))
      (is (every? #(and (= :running (:state %)) (.contains ^String (:name %) "work/hooked on m"))
                  (shown)))
      (deliver gate :go)
      (is (= [10 20] (deref job 5000 :late)))
      (is (= #{} (shown))))))

(deftest status-shows-members-and-what-they-run
  (with-cluster [network c 2]
    (let [gate (promise)]
      (reset! work/hook (fn [_ _] (deref gate 5000 :late)))
      (let [job (t/future (cluster/pmapv c 4 #'work/hooked (range 4)))]
        (await! #(= 4 (nodes/running)))
        (let [{:keys [members re-runs]} (cluster/status c)]
          (is (= [2 2] (map :in-flight members) (map :running members)))
          (is (= 0 re-runs)))
        (deliver gate :go)
        (is (= [0 10 20 30] (deref job 5000 :late)))))))

;; Random schedules

(def ^:private schedules
  "What befalls the members after so many starts: a vector of [starts event]."
  (gen/vector (gen/tuple (gen/choose 1 250) (gen/elements [:kill :kill :cut :drain :join])) 0 4))

(defn- apart
  "Returns the events far enough from each other that one item is not in flight at three of them."
  [events]
  (reduce (fn [kept [n _ :as event]]
            (if (some #(< (abs (- n (first %))) 60) kept) kept (conj kept event)))
          []
          events))

(defn- befall! [network nodes event]
  (let [ups (stand-in/members-up network)
        victim (when (< 2 (count ups)) (rand-nth ups))]
    (case event
      :join (swap! nodes conj (member! network (str "j" (count @nodes))))
      :kill (some->> victim (stand-in/kill! network))
      :cut (some->> victim (stand-in/cut! network))
      :drain (when victim
               (some #(when (= victim (.-name ^Node %)) (t/future (cluster/drain! % 1000)))
                     @nodes)))))

(defn- outcome-of
  "Runs a form of the family over 250 items while the schedule's events befall the members."
  [form events]
  (reset! work/trail [])
  (let [network (stand-in/network)
        nodes (atom (mapv #(member! network (str "m" %)) (range 4)))
        c (caller! network)
        by-start (into {} events)
        n (AtomicLong.)]
    (reset! work/hook (fn [item _]
                        (some->> (by-start (.incrementAndGet n)) (befall! network nodes))
                        (Thread/sleep (long (mod (hash item) 4)))))
    (try
      {:items (range 250), :results (vec (form c (range 250)))
       :expected (mapv #(* 10 %) (range 250)), :losses (count events)}
      (finally (close-all! (conj @nodes c))))))

(def ^:private forms
  [#(cluster/pmap %1 16 #'work/hooked %2)
   #(cluster/pmapv %1 16 #'work/hooked %2)
   #(sort (cluster/upmap %1 16 #'work/hooked %2))
   #(cluster/pmap %1 {:limit 4, :batch 5} #'work/hooked %2)])

(deftest every-input-has-one-result-under-random-losses
  (let [property (prop/for-all [events (gen/fmap apart schedules), form (gen/elements forms)]
                   (empty? (history/violations
                             (assoc (outcome-of form events) :trail @work/trail))))
        outcome (check/quick-check 40 property)]
    (is (:pass? outcome) (pr-str (:shrunk outcome)))))

(deftest the-checker-sees-what-is-wrong
  (let [fine {:trail [[:start 1 "a"] [:end 1 "a"]], :items [1], :results [10], :expected [10]
              :losses 0}]
    (is (empty? (history/violations fine)))
    (doseq [wrong [(assoc fine :results [])
                   (assoc fine :results [10 10])
                   (update fine :trail into [[:start 1 "b"]])
                   (assoc fine :trail [])
                   (assoc fine :after-cancel [[:start 1 "a"]])]]
      (is (seq (history/violations wrong))))))

(deftest a-thousand-calls-at-once
  (with-cluster [network c 3]
    (is (= (repeat 1000 [0 10 20])
           (t/pmapv 1000 (fn [_] (cluster/pmapv c 3 #'work/times-ten [0 1 2])) (range 1000))))))

(defn- store!
  "Writes a PKCS12 store with a key and no certificate, and returns its path."
  [^String password]
  (let [file (doto (File/createTempFile "store" ".p12") (.deleteOnExit))
        chars (.toCharArray password)
        key (KeyStore$SecretKeyEntry. (SecretKeySpec. (byte-array 16) "AES"))]
    (with-open [out (FileOutputStream. file)]
      (doto (KeyStore/getInstance "PKCS12")
        (.load nil chars)
        (.setEntry "key" key (KeyStore$PasswordProtection. chars))
        (.store out chars)))
    (str file)))

(deftest stores-of-tls-that-cannot-be-used-are-refused
  (let [network (stand-in/network), store (store! "secret1")]
    (doseq [[path password parts] [["/nowhere.p12" "secret1" [":key-store" "No such file"]]
                                   [store "secret2" [":key-store" "cannot be used"]]
                                   [store "secret1" [":trust-store" "it holds no certificate"]]]]
      (let [tls {:key-store path, :key-password password
                 :trust-store path, :trust-password password}
            t (nodes/thrown #(member! network "m0" :tls tls, :secret "s"))]
        (is (= [:thrum/invalid :tls] ((juxt :type :option) (ex-data t))))
        (is (= [] (remove #(.contains ^String (ex-message t) %) (conj parts path))))
        (is (not (.contains (str (ex-message t) (ex-data t)) ^String password)))))
    (is (empty? @(:nodes network)))))

(deftest an-engine-may-be-a-var
  (let [network (stand-in/network)]
    (with-local-vars [start (stand-in/starter network)]
      (cluster/close! (cluster/join! {:engine start})))
    (is (= :thrum/invalid (type-of #(cluster/join! {:engine :keyword}))))))

(deftest misuse-is-answered-at-the-call
  (is (= :thrum/invalid (type-of #(cluster/join! {:prot 1}))))
  (is (= :thrum/invalid (type-of #(cluster/join! {:host "192.0.2.1"}))))
  (is (= :thrum/invalid (type-of #(cluster/join! {:host "0.0.0.0", :secret "s"}))))
  (is (= :thrum/invalid (type-of #(cluster/join! {:allow '[a]}))))
  (doseq [[k values] {:seeds [["a"] ["a:0"] ["a:65536"] ["127.0.0.1:99999"] ["[::1:7800"]
                              ["a[1]:7800"] ["a,b:7800"] ["a b:7800"]]
                      :heartbeat-ms [199]
                      :lease-ms [1 999]}
          value values
          :let [t (nodes/thrown #(cluster/join! {k value}))]]
    (is (= [:thrum/invalid k] ((juxt :type :option) (ex-data t)))))
  (is (= {:type :thrum/invalid, :option :allow, :value 'no.such.namespace}
         (ex-data (nodes/thrown #(cluster/join! {:allow '#{no.such.namespace}})))))
  (is (= :thrum/invalid (type-of #(cluster/pmap :no-node 2 #'work/times-ten [1]))))
  (let [message (ex-message (nodes/thrown #(cluster/join! {:secret 'hunter2})))]
    (is (not (.contains ^String message "hunter2"))))
  (with-cluster [network c 1]
    (doseq [timeout [nil -1 1.5]]
      (is (= :thrum/invalid (type-of #(cluster/drain! c timeout)))))
    (doseq [limit [0 nil {:limit 2, :batch 0} {:limt 2} {:limit 2, :batch 4, :window 7}
                   {:limit 2, :batch 4, :item-timeout-ms 9}]]
      (is (= :thrum/invalid (type-of #(cluster/pmap c limit #'work/times-ten [1])))))))

(ns thrum.cluster.trouble-test
  "What must not spread: the suspicion of innocent work, a node with another secret, an interrupt of
  close!, an error in a beat."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.cluster :as cluster]
   [thrum.cluster.impl.crew :as crew]
   [thrum.cluster.impl.pending :as pending]
   [thrum.cluster.impl.pulse :as pulse]
   [thrum.cluster.impl.seal :as seal]
   [thrum.cluster.impl.wire :as wire]
   [thrum.cluster.nodes :as nodes :refer [await! caller! close-all! member! type-of with-cluster]]
   [thrum.cluster.spi :as engine]
   [thrum.cluster.stand-in :as stand-in]
   [thrum.cluster.work :as work]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.util.concurrent CancellationException CompletableFuture CompletionException ExecutionException TimeoutException)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.cluster.impl.pending Pending)))

(set! *warn-on-reflection* true)

(use-fixtures :each (fn [f] (reset! work/trail []) (reset! work/hook (fn [_ _])) (f)))

(defn- calls
  "Returns the tasks of n calls of one item each."
  [c n]
  (mapv #(t/future (first (cluster/pmapv c 1 #'work/hooked [%]))) (range n)))

(defn- starts [] (count (filter (comp #{:start} first) @work/trail)))

(defn- outcome [task]
  (try (deref task 20000 :late) (catch ExecutionException e (:type (ex-data (ex-cause e))))))

;; The members die one after the other, each with all items that it runs.
(deftest suspects-wait-for-another-member-at-the-same-time
  (let [network (stand-in/network), timeout-ms 1000
        m0 (member! network "m0"), m1 (member! network "m1")
        c (caller! network :members-timeout-ms timeout-ms)]
    (reset! work/hook (fn [_ node] (when (#{"m0" "m1"} node) (Thread/sleep 60000))))
    (let [tasks (calls c 20)]
      (await! #(= 20 (starts)))
      (nodes/kill! network "m0")
      (await! #(= 30 (starts)))
      (let [m2 (member! network "m2"), begin (System/nanoTime)]
        (try
          (nodes/kill! network "m1")
          (is (= {:thrum/no-members 10} (select-keys (frequencies (map outcome tasks))
                                                     [:thrum/no-members :late])))
          (is (< (- (System/nanoTime) begin) (* 5 timeout-ms 1000000)))
          (finally (close-all! [m0 m1 m2 c])))))))

(defn- calls-of-a-suspect
  "Returns twelve calls: two members die with the first, on which it has no part; the others run
  until the gate is open."
  [network c gate]
  (let [deaths (atom 0)]
    (reset! work/hook (fn [item node]
                        (cond
                          (pos? (long item)) (deref gate 20000 :late)
                          (<= (long (swap! deaths inc)) 2)
                          (do (await! #(every? nodes/started? (range 12)))
                              (nodes/kill! network node)
                              (Thread/sleep 60000)))))
    (calls c 12)))

;; Their work goes on for longer than it waits for members.
(deftest an-innocent-suspect-outwaits-the-work-of-others
  (with-cluster [network c 4 :members-timeout-ms 200]
    (let [gate (promise)
          tasks (calls-of-a-suspect network c gate)]
      (await! #(= 2 (count (stand-in/members-up network))))
      (is (= :waits (deref (first tasks) 600 :waits)))
      (deliver gate :go)
      (is (= (map #(* 10 %) (range 12)) (map outcome tasks))))))

(deftest a-suspect-that-is-cancelled-leaves-no-member-reserved
  (with-cluster [network c 4]
    (let [gate (promise)
          [suspect & others] (calls-of-a-suspect network c gate)]
      (await! #(= 2 (count (stand-in/members-up network))))
      (is (= :waits (deref suspect 600 :waits)))
      (t/cancel! suspect)
      (deliver gate :go)
      (is (= (map #(* 10 %) (range 1 12)) (map outcome others)))
      (is (= 2 (count (set (cluster/pmapv c 1 #'work/node (range 40)))))))))

(deftest a-node-with-another-secret-harms-no-call
  (let [network (stand-in/network)
        members (mapv #(member! network % :secret "one") ["m0" "m1"])
        c (caller! network :secret "one")]
    (try
      (reset! work/hook (fn [_ _] (Thread/sleep 1)))
      (let [job (t/future (cluster/pmapv c 8 #'work/hooked (range 400)))]
        (dotimes [_ 10]
          (is (= :thrum/refused (type-of #(member! network "other" :secret "two")))))
        (is (= (map #(* 10 %) (range 400)) (outcome job))))
      (finally (close-all! (conj members c))))))

(defn- add!
  "Adds a node with that handler; nil: it refuses each request."
  [network name handler]
  (swap! (:nodes network) assoc name {:handler handler, :state :up}))

(defn- dies-unanswered!
  "Adds a node that dies at the first request, without an answer to any."
  [network name]
  (add! network name (fn [_] (stand-in/kill! network name) (byte-array 0))))

(deftest members-that-are-lost-before-they-answer-make-no-work-a-suspect
  (let [network (stand-in/network), c (caller! network :members-timeout-ms 20000)]
    (run! #(dies-unanswered! network %) ["x0" "x1" "x2" "x3" "x4"])
    (let [[task] (calls c 1)]
      (await! #(empty? (stand-in/members-up network)))
      (let [m (member! network "m0")]
        (try
          (is (= 0 (outcome task)))
          (is (= 0 (:re-runs (cluster/status c))))
          (finally (close-all! [m c])))))))

(deftest a-greeting-without-an-answer-holds-up-no-deadline
  (let [network (stand-in/network), c (caller! network), gate (promise), asked (atom 0)]
    (add! network "hung" (fn [_] (swap! asked inc) (deref gate 20000 nil) (byte-array 0)))
    (try
      (is (= :late
             (gate/in-time 10000
                           #(t/with-timeout [300 :late] (cluster/pmapv c 1 #'work/brief [1])))))
      (is (< @asked 10) "no cancel is sent to who runs nothing")
      (finally (deliver gate :open) (cluster/close! c)))))

(defn- alive-only!
  "Adds a node that answers all but greetings, and those when gate opens."
  [network name gate]
  (add! network name
        (fn [request]
          (when (= :status (:op (wire/request (seal/open nil request)))) (deref gate 20000 nil))
          (seal/seal nil (wire/answer :done name nil)))))

(deftest a-member-that-lives-and-answers-no-greeting-is-waited-for-no-longer-than-any
  (let [network (stand-in/network), gate (promise)
        c (caller! network :members-timeout-ms 1500)]
    (alive-only! network "half" gate)
    (try
      (is (= :thrum/no-members
             (gate/in-time 20000 #(type-of (fn [] (cluster/pmapv c 1 #'work/brief [1]))))))
      (finally (deliver gate :open) (cluster/close! c)))))

(deftest work-that-no-member-was-sent-was-not-started
  (let [network (stand-in/network), c (caller! network :members-timeout-ms 2500)]
    (add! network "busy" nil)
    (try
      (let [t (gate/in-time 20000 #(nodes/thrown (fn [] (cluster/pmapv c 1 #'work/brief [1]))))]
        (is (= {:type :thrum/no-members, :waited-ms 2500} (ex-data t)))
        (is (= 0 (:re-runs (cluster/status c)))))
      (finally (cluster/close! c)))))

(defn- cancels
  "Returns [n ms]: how many cancels of a run were sent, and for how long, when eight beats have
  passed since cancelled? was true of n. answer: called with n and the gate of the test."
  [cancelled? answer]
  (let [network (stand-in/network), beats (atom 0), retain! crew/retain!
        sent (atom 0), started (promise), gate (promise)]
    (add! network "m0"
          (fn [request]
            (seal/seal nil
                       (case (:op (wire/request (seal/open nil request)))
                         :run (do (deliver started true)
                                  (deref gate 20000 nil)
                                  (wire/answer :stopped "it" :cancelled))
                         :cancel (wire/answer :done "it" (answer (swap! sent inc) gate))
                         (wire/answer :done "it" nil)))))
    (with-redefs [crew/retain! (fn [crew members] (swap! beats inc) (retain! crew members))]
      (let [c (caller! network), job (t/future (cluster/pmapv c 1 #'work/brief [1]))]
        (try
          (is (deref started 20000 false))
          (t/cancel! job)
          (let [begin (System/nanoTime)]
            (await! #(cancelled? @sent))
            (let [before @beats] (await! #(< (+ 8 before) @beats)))
            [@sent (quot (- (System/nanoTime) begin) 1000000)])
          (finally (deliver gate :open) (cluster/close! c)))))))

(deftest a-cancel-is-repeated-until-the-member-has-the-run
  (is (= 2 (first (cancels #(<= 2 %) (fn [n _] (<= 2 n)))))))

(deftest a-cancel-without-an-answer-is-not-repeated-at-each-beat
  (let [[n ms] (cancels pos? (fn [_ gate] (deref gate 20000 nil)))]
    (is (<= n (inc (quot ms 2000))))))

(deftest a-cancel-that-is-never-answered-is-repeated-ever-less-often
  (let [^Pending pending (pending/pending "m0" "f")
        next-ms #(let [ms (pending/next-cancel-ms pending)]
                   (.set ^AtomicReference (.-cancel pending) %)
                   ms)]
    (is (= [2000 2000] (repeatedly 2 #(next-ms (CompletableFuture/completedFuture false)))))
    (is (= [2000 2000] (repeatedly 2 #(next-ms (CompletableFuture/failedFuture (Exception.)))))
        "what could not be sent was not left without an answer")
    (is (= [2000 4000 8000 16000 16000]
           (repeatedly 5 #(next-ms (CompletableFuture/failedFuture (TimeoutException.))))))))

(deftest an-interrupt-does-not-leave-a-node-half-closed
  (with-cluster [network c 1]
    (let [m (member! network "leaving" :drain-timeout-ms 1000), gate (promise)]
      (reset! work/hook (fn [_ _] (deref gate 20000 :late)))
      (let [job (t/future (cluster/pmapv c 4 #'work/hooked (range 4)))]
        (await! #(= 4 (nodes/running)))
        (let [interrupted? (promise)
              closing (Thread/startVirtualThread
                        #(do (cluster/close! m)
                             (deliver interrupted? (.isInterrupted (Thread/currentThread)))))]
          (await! #(#{Thread$State/WAITING Thread$State/TIMED_WAITING} (.getState closing)))
          (.interrupt closing)
          (is (true? (deref interrupted? 5000 :late)))
          (is (nil? (nodes/full-name network "leaving"))))
        (deliver gate :go)
        (is (= [0 10 20 30] (outcome job)))))))

(deftest a-join-that-was-interrupted-says-so
  (let [not-joined @(requiring-resolve 'thrum.cluster.engine.infinispan/not-joined)
        message #(ex-message (not-joined % (IllegalStateException. "" (InterruptedException.))))]
    (is (= "The cluster could not be joined at 127.0.0.1:7900: java.lang.InterruptedException"
           (message {:host "127.0.0.1", :port 7900})))
    (is (= "The cluster could not be joined at 127.0.0.1: java.lang.InterruptedException"
           (message {:host "127.0.0.1", :port nil}))
        "a caller has no port of its own choice")))

;; As Hazelcast, which drops the interrupt, one that waits by a task, and one that starts all the
;; same.
(deftest a-join-that-is-interrupted-throws-that-and-leaves-nothing
  (let [network (stand-in/network), gate (promise)
        wait! #(try (deref gate 20000 :late) (catch InterruptedException _))]
    (doseq [start [(fn [_] (wait!) (throw (IllegalStateException. "of the test")))
                   (fn [_] (wait!) (throw (CancellationException. "of the test")))
                   (fn [settings] (wait!) ((stand-in/starter network) settings))]]
      (let [starts (promise), outcome (promise)
            engine (fn [settings] (deliver starts true) (start settings))
            join #(deliver outcome
                           [(class (nodes/thrown (fn [] (cluster/join! {:engine engine}))))
                            (.isInterrupted (Thread/currentThread))])
            joining (Thread/startVirtualThread join)]
        (is (deref starts 20000 false))
        (.interrupt joining)
        (is (= [InterruptedException false] (deref outcome 20000 :late)))
        (is (empty? @(:nodes network)))))))

;; A CompletableFuture unwraps the first, and takes the second for its own cancel.
(deftest a-join-throws-what-the-engine-has-thrown
  (doseq [^Throwable t [(CompletionException. "of the test" (IllegalStateException.))
                        (CancellationException. "of the test")
                        (InterruptedException. "of the test")]]
    (is (identical? t (nodes/thrown #(cluster/join! {:engine (fn [_] (throw t))}))))
    (is (some #(= "thrum.cluster$join_BANG_" (.getClassName ^StackTraceElement %))
              (.getStackTrace t))
        "it shows the call")))

(deftest an-error-in-a-beat-is-reported-once-and-does-not-end-the-beats
  (let [network (stand-in/network), beats (atom 0), reported (atom [])
        retain! crew/retain!]
    (with-redefs [crew/retain! (fn [crew members]
                                 (if (< (long (swap! beats inc)) 3)
                                   (throw (OutOfMemoryError. "of the test"))
                                   (retain! crew members)))
                  spi/uncaught! #(swap! reported conj (class %))]
      (let [c (caller! network :members-timeout-ms 5000)]
        (try
          (await! #(<= 4 (long @beats)))
          (is (= [OutOfMemoryError] @reported))
          (finally (cluster/close! c)))))))

;; As to a caller that the members had put out, or had no memory for.
(deftest an-answer-that-is-lost-is-not-waited-for
  (with-redefs [pulse/most-absences (constantly 3)]
    (with-cluster [network c 1 :members-timeout-ms 10000]
      (let [lost (promise)]
        (reset! work/hook (fn [_ node]
                            (when (deliver lost (nodes/full-name network node))
                              (stand-in/isolate! network @lost))))
        (let [job (t/future (cluster/pmapv c 2 #'work/hooked [1 2]))]
          (await! #(realized? lost))
          (await! #(empty? @(:calls network)))
          (stand-in/heal! network @lost)
          (is (= [10 20] (outcome job))))))))

(deftest work-that-its-member-runs-is-waited-for
  (with-redefs [pulse/most-absences (constantly 3)]
    (with-cluster [network c 1]
      (let [answers (atom 0)]
        (reset! (:hold network) (fn [to bytes]
                                  (when (and (engine/worker? to)
                                             (vector? (second (wire/answered
                                                                (seal/open nil bytes)))))
                                    (swap! answers inc))))
        (reset! work/hook (fn [_ _] (await! #(< 8 (long @answers)))))
        (is (= [10] (cluster/pmapv c 1 #'work/hooked [1])))
        (is (= 1 (starts)))))))

(defn- without-runs!
  "Adds a member that says of itself that it runs nothing, and counts how often in asked; says:
  called with that number before it does. It counts runs in begun, and answers them when gate
  opens."
  [network {:keys [asked begun gate says], :or {says identity}}]
  (add! network "m0"
        (fn [request]
          (seal/seal nil
                     (case (:op (wire/request (seal/open nil request)))
                       :run (do (swap! begun inc)
                                (deref gate 20000 nil)
                                (wire/answer :stopped "it" :cancelled))
                       :alive (do (says (swap! asked inc)) (wire/answer :done "it" []))
                       (wire/answer :done "it" nil))))))

;; As of a member whose processors all compute, and which has not begun the run.
(deftest what-a-member-says-late-ends-no-wait
  (doseq [within-ms [-1 60000]]
    (with-redefs [pulse/most-absences (constantly 3), pulse/alive-ms within-ms]
      (let [network (stand-in/network), c (caller! network)
            asked (atom 0), begun (atom 0), gate (promise)]
        (without-runs! network {:asked asked, :begun begun, :gate gate})
        (try
          (t/future (cluster/pmapv c 1 #'work/brief [1]))
          (await! #(pos? (long @begun)))
          (let [before (long @asked)] (await! #(< (+ before 6) (long @asked))))
          (is (= (neg? (long within-ms)) (= 1 (long @begun))) (str within-ms))
          (finally (deliver gate :open) (cluster/close! c)))))))

;; The answer that comes late says nothing of the run, and still that the member is there.
(deftest a-member-that-answers-late-is-not-lost
  (with-redefs [pulse/alive-ms 20]
    (let [network (stand-in/network), c (caller! network :heartbeat-ms 400)
          asked (atom 0), begun (atom 0), gate (promise)
          until-asked-again #(await! (fn [] (or (realized? gate) (< (long %) (long @asked)))))]
      (without-runs! network {:asked asked, :begun begun, :gate gate, :says until-asked-again})
      (try
        (t/future (cluster/pmapv c 1 #'work/brief [1]))
        (await! #(pos? (long @begun)))
        (let [before (long @asked)] (await! #(< (+ before 20) (long @asked))))
        (is (= [1] (map :in-flight (:members (cluster/status c)))))
        (finally (deliver gate :open) (cluster/close! c))))))

(deftest a-lost-answer-is-found-also-where-the-member-fails-to-say-what-it-runs-now-and-then
  (with-redefs [pulse/most-absences (constantly 7)]
    (let [network (stand-in/network), c (caller! network)
          asked (atom 0), begun (atom 0), gate (promise)
          fails-now-and-then #(when (zero? (rem (long %) 3)) (throw (Error. "of the test")))]
      (without-runs! network {:asked asked, :begun begun, :gate gate, :says fails-now-and-then})
      (try
        (t/future (cluster/pmapv c 1 #'work/brief [1]))
        (await! #(< 1 (long @begun)))
        (finally (deliver gate :open) (cluster/close! c))))))

(defn- forgetful
  "Returns the engine, which answers no question once it is closed, as Infinispan answers none."
  [engine]
  (let [closed? (atom false)
        check! #(when @closed? (throw (IllegalStateException. "of the test: it is closed")))]
    (reify engine/Engine
      (workers [_] (check!) (engine/workers engine))
      (invoke [_ node request] (check!) (engine/invoke engine node request))
      (lost? [_ node] (check!) (engine/lost? engine node))
      (close! [_] (reset! closed? true) (engine/close! engine)))))

(deftest a-caller-that-closes-while-a-function-does-not-end-throws-that-it-is-closed
  (let [network (stand-in/network), m (member! network "m0"), gate (promise)
        c (cluster/join! {:name "c", :engine (comp forgetful (stand-in/starter network))})]
    (try
      (reset! work/hook (fn [_ _]
                          (while (= :shut (try (deref gate 20000 :late)
                                               (catch InterruptedException _ :shut))))))
      (let [job (t/future (type-of #(cluster/pmapv c 1 #'work/hooked [1])))]
        (await! #(nodes/started? 1))
        (cluster/close! c)
        (is (= :thrum/closed (deref job 20000 :late))))
      (finally (deliver gate :open) (close-all! [m])))))

(deftest a-caller-that-closes-while-its-engine-is-asked-throws-that-it-is-closed
  (let [network (stand-in/network), c (promise), closes? (atom false)
        closing (fn [engine]
                  (reify engine/Engine
                    (workers [_]
                      (when (compare-and-set! closes? true false) (cluster/close! @c))
                      (engine/workers engine))
                    (lost? [_ node] (engine/lost? engine node))
                    (close! [_] (engine/close! engine))))]
    (deliver c (cluster/join! {:name "c", :heartbeat-ms 20000
                               :engine (comp closing forgetful (stand-in/starter network))}))
    (reset! closes? true)
    (is (= :thrum/closed
           (gate/in-time 20000 (fn [] (type-of #(cluster/pmapv @c 1 #'work/brief [1]))))))))

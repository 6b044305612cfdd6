(ns thrum.async.port-test
  "Takes and puts that block: what they give, and what an interrupt or a cancel leaves of them."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.dispatch :as dispatch]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.impl.handler :as handler]
   [thrum.async.release :as release]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.locks Lock)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- queued
  "Returns how many takes and puts the channel's queues hold, those that were called off included."
  [^ManyToManyChannel ch]
  (+ (count (.-takes ch)) (count (.-puts ch))))

(defn- start
  "Starts f on a virtual thread; returns [thread outcome], the outcome a promise of [:value v flag]
  or [:thrown t flag], where flag is true if the thread was interrupted in the end."
  [f]
  (let [outcome (promise)
        interrupted? #(.isInterrupted (Thread/currentThread))]
    [(t/thread (deliver outcome (try (let [v (f)] [:value v (interrupted?)])
                                     (catch Throwable e [:thrown (class e) (interrupted?)]))))
     outcome]))

(defn- waits?
  "True if a take or a put waits in the channel that has not been called off."
  [^ManyToManyChannel ch]
  (let [^Lock mutex (.-mutex ch)]
    (.lock mutex)
    (try
      (boolean (some impl/active? (concat (.-takes ch) (map first (.-puts ch)))))
      (finally (.unlock mutex)))))

(defn- waiting
  "Starts f, which will wait on the channel, and returns as start does when it does so."
  [ch f]
  (let [started (start f)]
    (is (gate/eventually 5000 #(waits? ch)))
    started))

(defn- outcome [[_ outcome]]
  (deref outcome 5000 :late))

(defn- interrupt! [[^Thread thread]]
  (.interrupt thread))

(defn- endless
  "Returns a lazy seq that has no end, but does not let itself be walked far."
  []
  (map #(if (< % 100) % (throw (AssertionError. "An endless seq was walked"))) (iterate inc 0)))

(deftest endless-arguments-are-answered-at-once-and-in-short
  (doseq [wrong [#(a/alts!! [(async/chan)] :priority (endless))
                 #(a/pipeline-fn (endless) (async/chan) inc (async/chan))
                 #(a/pipeline-fn 1 (endless) inc (async/chan))
                 #(a/pipeline-fn 1 (async/chan) (endless) (async/chan))
                 #(a/pipeline-fn 1 (async/chan) inc (async/chan) {:window (endless)})
                 #(a/thread-call (endless)) #(a/thread-call (endless) inc)
                 #(t/with-scope [s] (a/process-call s {:closes (endless)} inc))]]
    (let [e (gate/in-time 5000
                          #(try
                             (wrong)
                             nil
                             (catch clojure.lang.ExceptionInfo e e)))]
      (is (= :thrum/invalid (:type (ex-data e))))
      (is (< (count (pr-str (ex-message e) (dissoc (ex-data e) :known))) 3000)))))

;; Values

(deftest values-go-through
  (let [ch (async/chan)
        put (start #(a/>!! ch :v))]
    (is (= :v (a/<!! ch)))
    (is (= [:value true false] (outcome put))))
  (testing "a buffer takes and gives without another thread"
    (let [ch (async/chan 2)]
      (is (= [true true] [(a/>!! ch 1) (a/>!! ch false)]))
      (is (= [1 false] [(a/<!! ch) (a/<!! ch)]))))
  (testing "a take that waits"
    (let [ch (async/chan), take (waiting ch #(a/<!! ch))]
      (is (true? (a/>!! ch false)))
      (is (= [:value false false] (outcome take))))))

(deftest a-closed-channel-answers-at-once
  (let [ch (async/chan 1)]
    (a/>!! ch 1)
    (async/close! ch)
    (is (false? (a/>!! ch 2)))
    (is (= [1 nil nil] [(a/<!! ch) (a/<!! ch) (a/<!! ch)]))))

(deftest closing-frees-a-take-that-waits
  (let [ch (async/chan), take (waiting ch #(a/<!! ch))]
    (async/close! ch)
    (is (= [:value nil false] (outcome take)))))

(deftest nil-cannot-be-put
  (is (thrown? IllegalArgumentException (a/>!! (async/chan 1) nil)))
  (is (= :thrum/invalid
         (:type (ex-data (try
                           (a/alts!! [(async/chan) [(async/chan) nil]])
                           (catch Exception e e)))))))

(deftest a-failure-that-is-taken-is-thrown
  (let [e (ex-info "x" {}), ch (async/to-chan! [1 e 2])]
    (is (= 1 (a/<?!! ch)))
    (is (identical? e (try (a/<?!! ch) (catch Exception t t))))
    (is (= [2 nil] [(a/<?!! ch) (a/<?!! ch)]))))

(deftest go-blocks-and-plain-threads-meet
  (let [ch (async/chan)]
    (async/go (dotimes [i 3] (async/>! ch i)) (async/close! ch))
    (is (= [0 1 2] (into [] (a/chan->reducible ch))))
    (let [got (async/go (async/<! ch))]
      (is (nil? (a/<!! got))))))

;; Interrupts and cancels

(deftest an-interrupted-take-leaves-nothing-behind
  (let [ch (async/chan), take (waiting ch #(a/<!! ch))]
    (interrupt! take)
    (is (= [:thrown InterruptedException false] (outcome take)))
    (is (zero? (queued ch)))
    (testing "the next put is not lost"
      (let [put (start #(a/>!! ch :v))]
        (is (= :v (a/<!! ch)))
        (is (= [:value true false] (outcome put)))))))

(deftest an-interrupted-put-withdraws
  (let [ch (async/chan), put (waiting ch #(a/>!! ch :v))]
    (interrupt! put)
    (is (= [:thrown InterruptedException false] (outcome put)))
    (is (zero? (queued ch)))
    (is (nil? (async/poll! ch)))))

(deftest who-is-interrupted-already-transfers-nothing
  (let [ch (doto (async/chan 2) (async/put! :v))
        interrupted (fn [f] (outcome (start #(do (.interrupt (Thread/currentThread)) (f)))))]
    (is (= [:thrown InterruptedException false] (interrupted #(a/<!! ch))))
    (is (= [:thrown InterruptedException false] (interrupted #(a/>!! ch :w))))
    (is (= [:thrown InterruptedException false] (interrupted #(a/alts!! [ch]))))
    (is (= [:v nil] [(async/poll! ch) (async/poll! ch)]))))

(deftest a-deadline-ends-a-wait
  (let [ch (async/chan)]
    (is (= :thrum/timeout
           (:type (ex-data (try
                             (t/with-timeout [10] (a/<!! ch))
                             (catch Exception e e))))))
    (is (= :late (t/with-timeout [10 :late] (a/>!! ch 1))))
    (is (= :late (t/with-timeout [10 :late] (a/alts!! [[ch 1] (async/chan)]))))
    (is (zero? (queued ch)))
    (is (false? (.isInterrupted (Thread/currentThread))))))

(deftest a-cancelled-scope-ends-every-wait-in-it
  (let [ch (async/chan)
        seen (atom [])]
    (t/with-scope [s]
      (dotimes [_ 3]
        (t/fork s
          {:daemon? true}
          (try
            (a/<!! ch)
            (catch CancellationException _
              (swap! seen conj :first)
              ;; Cancelled for good: the next wait does not wait either.
              (try
                (a/>!! ch 1)
                (catch CancellationException _ (swap! seen conj :next)))))))
      (is (gate/eventually 5000 #(= 3 (queued ch)))))
    (is (= {:first 3, :next 3} (frequencies @seen)))
    (is (zero? (queued ch)))))

(deftest a-cancelled-task-takes-nothing
  (let [ch (async/chan), task (a/chan->future ch)]
    (is (gate/eventually 5000 #(= 1 (queued ch))))
    (is (future-cancel task))
    (is (gate/eventually 5000 #(zero? (queued ch))))
    (let [put (start #(a/>!! ch :v))]
      (is (= :v (a/<!! ch)))
      (is (= [:value true false] (outcome put))))))

;; A port that has committed, and calls back when the test says so

(defn- late-port
  "Returns [port call-back!]: a port that commits to every take and put at once and answers when
  (call-back! v) is called."
  []
  (let [committed (promise)
        commit! (fn [^Lock handler]
                  (.lock handler)
                  (deliver committed (when (impl/active? handler) (impl/commit handler)))
                  (.unlock handler)
                  nil)]
    [(reify
       impl/ReadPort (take! [_ handler] (commit! handler))
       impl/WritePort (put! [_ _ handler] (commit! handler)))
     committed]))

(deftest what-has-come-about-is-not-thrown-away
  (doseq [wait [#(a/<!! %) #(a/>!! % 1)]]
    (let [[port committed] (late-port)
          waiting (start #(wait port))]
      (is (some? (deref committed 5000 nil)))
      (interrupt! waiting)
      (is (= :waits (deref (second waiting) 50 :waits)))
      (@committed :arrived)
      (is (= [:value :arrived true] (outcome waiting)))))
  (let [[port committed] (late-port)
        waiting (start #(a/alts!! [port] :default :nothing))]
    (is (some? (deref committed 5000 nil)))
    (@committed :arrived)
    (is (= [:value [:arrived port] false] (outcome waiting)))))

(deftest a-cancel-does-not-throw-away-either
  (let [[port committed] (late-port)
        got (promise)]
    (t/with-scope [s]
      (t/fork s (try (deliver got [(a/<!! port) (.isInterrupted (Thread/currentThread))])
                     (catch Throwable e (deliver got e))))
      (let [call-back! (deref committed 5000 nil)]
        (t/cancel! s)
        (call-back! :arrived)))
    (is (= [:arrived true] (deref got 5000 :late)))))

;; on-cancel: the taker has no interrupt that could come before the close.
(deftest a-close-by-the-cancel-of-the-taker-is-no-end
  (doseq [wait [#(a/<!! %) #(a/alts!! [%]) #(into [] (a/chan->reducible %))
                #(doall (seq (a/chan->reducible %)))]]
    (let [ch (async/chan), got (promise)]
      (t/with-scope [s]
        (t/fork s (deliver got (try (t/on-cancel [#(async/close! ch)] [:value (wait ch)])
                                    (catch CancellationException _ :cancelled))))
        (is (gate/eventually 5000 #(waits? ch)))
        (t/cancel! s))
      (is (= :cancelled (deref got 5000 :late))))))

;; The scope's end cancels the attachment first, then the fork.
(deftest a-close-by-the-end-of-the-takers-scope-is-no-end
  (doseq [wait [#(a/<!! %) #(a/alts!! [%]) #(spi/undisturbed (fn [] (a/<!! %)))]]
    (let [ch (async/chan), got (promise), reader (promise)
          moved-on? #(or (realized? got)
                         (= Thread$State/TIMED_WAITING (Thread/.getState @reader)))
          close! (fn [attachment]
                   (async/close! ch)
                   (is (gate/eventually 5000 moved-on?))
                   (spi/detach! @attachment))]
      (is (thrown-with-msg? ArithmeticException #"of the body"
            (t/with-scope [s]
              (let [attachment (promise)]
                (deliver attachment (spi/attach! #(close! attachment))))
              (t/fork s
                (deliver reader (Thread/currentThread))
                (deliver got (try [:value (wait ch)] (catch CancellationException _ :cancelled))))
              (is (gate/eventually 5000 #(waits? ch)))
              (throw (ArithmeticException. "of the body")))))
      (is (= :cancelled (deref got 5000 :late))))))

;; An end callback runs behind its task's outcome: no cancel comes any more.
(deftest an-end-callback-of-an-ended-scope-gets-the-end-of-a-channel
  (let [ch (doto (async/chan) async/close!), never (async/chan), got (promise), ended (promise)]
    (t/with-scope [s]
      (spi/fork! s {:daemon? true
                    :on-end (fn [_]
                              (deref ended 5000 nil)
                              (deliver got [(a/<!! ch)]))}
        (fn []))
      (a/process s (try (a/<!! never) (finally (deliver ended true))))
      (is (gate/eventually 5000 #(waits? never))))
    (is (= [nil] (deref got 5000 :late)))))

;; Alternatives

(deftest one-of-several-comes-about
  (let [x (async/chan 1), y (async/chan 1), z (async/chan)]
    (a/>!! y 1)
    (is (= [1 y] (a/alts!! [x y z])))
    (is (= [true x] (a/alts!! [[x 2] y z])))
    (testing "and nothing else"
      (is (= 2 (async/poll! x)))
      (is (nil? (async/poll! y))))
    (testing "later"
      (let [alts (waiting z #(a/alts!! [x y z]))]
        (is (true? (a/>!! z 3)))
        (is (= [:value [3 z] false] (outcome alts)))
        (is (true? (a/>!! x 4)))
        (is (= 4 (a/<!! x)) "the take of x that came to nothing has not taken this")))
    (testing "closed"
      (async/close! y)
      (is (= [nil y] (a/alts!! [z y])))
      (is (= [false y] (a/alts!! [z [y 1]]))))))

(deftest alternatives-have-a-default-and-an-order
  (let [x (async/chan 1)
        y (async/chan 1)]
    (is (= [nil :default] (a/alts!! [x y] :default nil)))
    (dotimes [_ 20]
      (a/>!! x :x)
      (a/>!! y :y)
      (is (= [[:x x] [:y y]]
             [(a/alts!! [x y] :priority true) (a/alts!! [x y] :priority true :default 1)])))
    (testing "nil is no order, as in core.async"
      (doseq [alts!! [async/alts!! a/alts!!]]
        (is (= [:given :default] (alts!! [(async/chan)] :priority nil :default :given)))))
    (testing "without an order both come first at times"
      (is (= #{x y}
             (set (repeatedly 50
                              #(do
                                 (async/offer! x 1)
                                 (async/offer! y 1)
                                 (second (a/alts!! [x y]))))))))))

(deftest interrupted-alternatives-are-all-withdrawn
  (let [x (async/chan), y (async/chan), alts (waiting y #(a/alts!! [x [y 1]] :priority true))]
    (interrupt! alts)
    (is (= [:thrown InterruptedException false] (outcome alts)))
    (is (= [0 0] [(queued x) (queued y)]))))

(deftest no-alternative-and-an-unknown-option-are-errors
  (doseq [wrong [#(a/alts!! []) #(a/alts!! nil) #(a/alts!! 5) #(a/alts!! {(async/chan) 1})
                 #(a/alts!! (async/chan)) #(a/alts!! [(async/chan)] :prioritise true)
                 #(a/alts!! [(async/chan)] :priority 1)]]
    (is (= :thrum/invalid
           (:type (ex-data (try
                             (wrong)
                             (catch Exception e e))))))))

(defn- throwing-port
  "Returns a port that throws e at every take and put, after (prepare! handler)."
  [e prepare!]
  (let [throw! #(do
                  (prepare! %)
                  (throw e))]
    (reify
      impl/ReadPort (take! [_ handler] (throw! handler))
      impl/WritePort (put! [_ _ handler] (throw! handler)))))

(defn- commit! [^Lock handler]
  (.lock handler)
  (try
    (impl/commit handler)
    (finally (.unlock handler))))

(deftest what-a-port-throws-is-thrown
  (doseq [[title prepare!] {"uncommitted" (fn [_])
                            "committed" commit!
                            "committed, with its callback called" #((commit! %) :v)}
          wait [#(a/<!! %) #(a/>!! % 1) #(a/alts!! [%]) #(a/alts!! [[% 1]])
                #(a/alts!! [%] :default 1)]]
    (testing title
      (let [e (Error. "broken"), port (throwing-port e prepare!)]
        (is (identical? e (gate/in-time 5000 #(try (wait port) (catch Throwable t t)))))))))

(deftest a-port-that-throws-loses-no-value-of-another
  (let [x (async/chan)
        y (throwing-port (Error. "broken") (fn [_] (async/offer! x :v)))
        reported (promise)
        thread (.unstarted (Thread/ofVirtual) #(deliver reported (a/alts!! [x y] :priority true)))
        uncaught (promise)]
    (.setUncaughtExceptionHandler thread
                                  (reify
                                    Thread$UncaughtExceptionHandler
                                    (uncaughtException [_ _ t] (deliver uncaught (ex-message t)))))
    (.start thread)
    (is (= [:v x] (deref reported 5000 :late)))
    (is (= "broken" (deref uncaught 5000 :late)))))

(deftest alternatives-that-cannot-all-begin-withdraw
  (let [x (async/chan)
        y (reify
            impl/WritePort
            (put! [_ _ _] (throw (IllegalArgumentException. "no"))))]
    (is (thrown? IllegalArgumentException (a/alts!! [x [y 1]] :priority true)))
    (is (zero? (queued x)))))

(defn- refused?
  [alts operations options]
  (= :refused
     (gate/in-time 5000
                   #(try
                      (apply alts operations options)
                      (catch Throwable _ :refused)))))

;; core.async refuses it by an assertion.
(deftest ^{:skip (release/before [1 8])} a-put-of-nil-is-refused-where-core-async-refuses-it
  (doseq [closed [false true]
          buffer [nil 1]
          options [[] [:priority true] [:default :none]]
          before [[] [:ready] [:waiting]]
          after [[] [:ready]]]
    (let [port (fn [kind]
                 (let [ch (async/chan 1)]
                   (when (= :ready kind) (async/put! ch :v))
                   ch))
          x (async/chan buffer)
          befores (mapv port before)
          operations (-> befores
                         (conj [x nil])
                         (into (map port) after))]
      (when closed (async/close! x))
      (is (= [true true]
             [(refused? async/alts!! operations options) (refused? a/alts!! operations options)])
          [closed buffer options before after])
      (is (every? zero? (map queued befores)))
      (is (= (count (filter #{:ready} before)) (count (keep async/poll! befores))))))
  (is (refused? a/alts!! [[(async/chan)]] []))
  (is (refused? a/alts!! [[]] [])))

(deftest a-closed-channel-does-not-hide-what-has-come-about
  (let [x (async/chan)
        closed (doto (async/chan) async/close!)
        ;; A closed channel answers each put; here, just after the take of x has come about.
        y (reify impl/WritePort
            (put! [_ v handler]
              (async/offer! x :v)
              (impl/put! closed v handler)))]
    (is (= [:v x] (a/alts!! [x [y 1]] :priority true)))))

(deftest a-port-that-answers-at-once-withdraws-the-others
  (let [x (async/chan)
        y (reify impl/ReadPort (take! [_ _] (volatile! :v)))]
    (is (= [:v y] (a/alts!! [x y] :priority true)))
    (is (nil? (async/offer! x 1)))))

(deftest two-transfers-are-locked-in-an-order
  (let [ids (repeatedly 3 #(impl/lock-id (handler/handler (handler/once) nil)))]
    (is (apply distinct? ids))
    (is (every? neg? ids) "apart from those of core.async")))

(deftest what-has-come-about-cannot-be-revoked
  (let [once (handler/once)]
    (impl/commit (handler/handler once identity))
    (is (= [false true] [(handler/revoke! once) (handler/committed? once)]))))

(deftest alternatives-of-ours-and-of-core-async-meet
  (let [n 2000, x (async/chan), y (async/chan)
        ours (t/future (dotimes [i n] (a/alts!! [[x i] [y i]])))
        theirs (t/future (dotimes [i n] (async/alts!! [[y i] [x i]])))
        got (t/future (dotimes [_ n] (a/alts!! [x y])))
        got-by-theirs (t/future (dotimes [_ n] (async/alts!! [y x])))]
    (is (= [nil nil nil nil] (map #(deref % 20000 :late) [ours theirs got got-by-theirs])))))

;; Where blocking is forbidden

(deftest a-wait-on-a-dispatch-thread-is-refused-where-core-async-refuses-it
  (with-redefs [dispatch/check-blocking-in-dispatch
                #(throw (IllegalStateException. "Invalid blocking call in dispatch thread"))]
    (let [ch (async/chan)]
      (is (thrown? IllegalStateException (a/<!! ch)))
      (is (thrown? IllegalStateException (a/>!! ch 1)))
      (is (zero? (queued ch))))))

;; Channel to reducible

(deftest a-reducible-that-is-only-looked-at-takes-nothing
  (let [ch (async/to-chan! (range 3))
        values (a/chan->reducible ch)]
    (is (not (sequential? values)))
    (is (not= [0 1 2] values))
    (is (= [values] (flatten [values])))
    (is (string? (pr-str values)))
    (is (= [0 1 2] (vec values)))
    (is (= [] (vec values)) "taken once")))

(deftest what-is-no-channel-is-not-reducible
  (doseq [wrong [nil 5 [1]]]
    (is (= :thrum/invalid
           (:type (ex-data (try
                             (a/chan->reducible wrong)
                             (catch Exception e e))))))))

(deftest a-channel-is-reduced-one-value-at-a-time
  (is (= [0 1 2] (into [] (a/chan->reducible (async/to-chan! (range 3))))))
  (is (= [] (into [] (a/chan->reducible (async/to-chan! [])))))
  (is (= 3 (reduce + (a/chan->reducible (async/to-chan! (range 3))))))
  (is (= 0 (reduce + (a/chan->reducible (async/to-chan! [])))))
  (is (= [[0 1 2] nil]
         [(seq (a/chan->reducible (async/to-chan! (range 3))))
          (seq (a/chan->reducible (async/to-chan! [])))]))
  (is (= [false 1] (into [] (a/chan->reducible (async/to-chan! [false 1])))))
  (testing "what is not asked for stays"
    (let [ch (async/to-chan! (range 5))]
      (is (= [0 1] (into [] (take 2) (a/chan->reducible ch))))
      (is (= 2 (first (a/chan->reducible ch))))
      (is (= 3 (a/<!! ch)))))
  (is (= [1 2 3] (t/pmap 2 inc (a/chan->reducible (async/to-chan! (range 3)))))))

(deftest a-channel-with-pmap-as-its-transducer-ends
  (let [end-of (fn [f]
                 (let [ch (async/chan 8 (t/pmap 2 f) (constantly :failed))]
                   (run! #(async/>!! ch %) [1 2])
                   (async/close! ch)
                   (gate/in-time 5000 #(vec (repeatedly 5 (fn [] (async/<!! ch)))))))]
    (is (= [2 3 nil nil nil] (end-of inc)))
    (is (= [nil nil] (drop 3 (end-of (fn [_] (throw (ex-info "no" {})))))))))

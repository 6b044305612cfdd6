(ns thrum.misuse-test
  "A wrong argument is answered at the call, in words and in data."
  (:require
   [clojure.main :as main]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.core :as t]
   [thrum.impl.options :as options]
   [thrum.impl.spelling :as spelling]
   [thrum.test-kit.gate :as gate]
   [thrum.throwing :refer [thrown]])
  (:import
   (clojure.lang IReduceInit)
   (java.util ArrayList)
   (java.util.concurrent CompletableFuture)))

(set! *warn-on-reflection* true)

(deftest wrong-limits-throw-at-the-call
  (are [form] (= {:type :thrum/invalid, :option :limit}
                 (select-keys (ex-data (thrown form)) [:type :option]))
    (t/pmap 0 inc [1])
    (t/pmap -1 inc [1])
    (t/pmap nil inc [1])
    (t/pmap 1.5 inc [1])
    (t/pmap "8" inc [1])
    (t/pmap inc [1])
    (t/pmap inc [1] [2])
    (t/pmap {} inc [1])
    (t/pmap {:limit 0} inc [1])
    (t/upmap 0 inc [1])
    (t/fmap 0 inc [1])
    (t/pmapv 0 inc [1])
    (t/prun! 0 inc [1])
    (t/pfor 0 [x [1]] x)
    (t/pmap 0 inc)))

(deftest the-alias-swap-is-told-what-comes-first
  (is (str/includes? (ex-message (thrown (t/pmap inc [1 2 3]))) "the limit comes first")))

(deftest unknown-options-name-the-nearest
  (let [e (thrown (t/pmap {:limit 4, :windw 8} inc [1]))]
    (is (str/includes? (ex-message e) "did you mean :window?"))
    (is (= :windw (:option (ex-data e))))
    (is (= [:limit :window :batch :item-timeout-ms :name :wrap :scoped-values]
           (:known (ex-data e)))))
  (is (= :window (spelling/nearest :widnow [:limit :window :name])))
  (is (str/includes? (ex-message (thrown (t/pmapv {:limit 2, :window 4} inc [1])))
                     "Unknown option :window")))

(defn- hint
  "Returns what the message for an unknown option suggests, without its last question mark, or nil."
  [options k]
  (let [rows (zipmap options (repeat {:doc ""}))
        message (ex-message (thrown (options/check rows {k 1} options)))]
    (second (re-find #"did you mean (.*)\? Known" message))))

(deftest a-key-is-suggested-where-it-is-spelled-alike-or-has-the-word
  (let [limiter (options/keys-of :limiter), pmap (options/keys-of :pmap)
        server [:host :port :ssl-port :ssl-context :keystore :max-queued :h2? :h2c?]]
    (are [options k suggested] (= suggested (hint options k))
      limiter :wait ":wait-ms"
      limiter :nmae ":name"
      limiter :max nil
      limiter :timeout nil
      pmap :timeout ":item-timeout-ms"
      pmap :time ":item-timeout-ms"
      pmap :limt ":limit"
      server :prot ":port"
      server :ssl? ":ssl-port or :ssl-context"
      server :max ":max-queued"
      server :h2 ":h2"
      server :h2d? ":h2? or :h2c"
      server :join? nil
      server :thread nil
      server :ip nil
      server :worker-pool nil
      server :p nil)))

(deftest no-message-ends-in-two-question-marks
  (is (not (str/includes? (ex-message (thrown (options/check {:h2c? {}} {:h2c 1} [:h2c?]))) "??"))))

(deftest an-option-without-a-sentence-is-named-with-what-it-accepts
  (is (str/ends-with? (ex-message (thrown (options/check {:status {:accepts "a status"}} {:x 1}
                                                         [:status])))
                      "Known here:\n:status (a status)")))

(deftest where-no-option-is-known-the-message-says-so
  (is (= "Unknown option :x. None is known here."
         (ex-message (thrown (options/check {} {:x 1} []))))))

(deftest many-known-options-are-named-on-few-lines
  (let [ks (mapv #(keyword (str "option-" %)) (range 40))
        e (thrown (options/check (zipmap ks (repeat {:doc "x"})) {:port 1} ks))]
    (is (= ks (:known (ex-data e))))
    (is (every? #(str/includes? (ex-message e) (str %)) ks))
    (is (str/includes? (ex-message e) "doc/reference/options.md"))
    (is (<= (count (str/split-lines (ex-message e))) 12))
    (is (every? #(<= (count %) 100) (str/split-lines (ex-message e))))))

(deftest values-are-checked
  (are [options option] (= [:thrum/invalid option]
                           ((juxt :type :option) (ex-data (thrown (t/pmap options inc [1])))))
    {:limit 4, :window 2}
    :window
    {:limit 4, :window 0}
    :window
    {:limit 4, :name ""}
    :name
    {:limit 4, :name :fetch}
    :name
    {:limit 4, :wrap 7}
    :wrap))

(deftest wrong-ms-are-answered-with-the-form-that-takes-them
  (are [form message] (= message (ex-message (thrown form)))
    (t/with-timeout "10" 1)
    "The ms that with-timeout takes first are \"10\"; they must be an integer, not negative"
    (t/with-timeout [nil :late] 1)
    "The ms that with-timeout takes first are nil; they must be an integer, not negative"
    (t/shield nil)
    "The ms that shield takes first are nil; they must be an integer, not negative"
    (t/value (t/future 1) "10" :late)
    "The ms that value takes after the task are \"10\"; they must be an integer, not negative"))

(deftest a-required-option-that-is-not-given-is-missing
  (are [form message] (= message (ex-message (thrown form)))
    (t/hedge {} 1 2)
    "The option :after-ms is missing; it must be an integer, not negative"
    (t/with-scope [s] (t/every! s {:fixed :delay} +))
    "The option :ms is missing; it must be a positive integer"
    (t/hedge {:after-ms nil} 1 2)
    "The option :after-ms is nil; it must be an integer, not negative"))

(deftest options-that-are-no-map-are-answered-with-the-form-that-takes-them
  (are [form message] (= message (ex-message (thrown form)))
    (t/hedge 1 2)
    "The options of hedge are a map, not 1"
    (t/future-call nil +)
    "The options of future-call are a map, not nil"
    (t/with-scope [_ 10] 1)
    "The options of with-scope are a map, not 10"
    (t/retry 3 1)
    "The options of retry are a map, not 3"
    (t/limiter 1 :queue)
    "The options of limiter are a map, not :queue"
    (t/race-call :limit [+])
    "The options of race are a map, not :limit"))

(deftest a-task-in-the-place-of-options-is-answered-with-how-to-wait-for-it
  (let [task (t/future 1), expected (promise), other (CompletableFuture.)]
    (are [form message] (re-matches message (ex-message (thrown form)))
      (t/all task task) #"The options of all are a map, not #<.*Task>. For its value, write @ .*"
      (t/any other other) #"The options of any are .* #<.*Future>. For its value, write @ .*"
      (t/race expected expected)
      #"The options of race are .* #<.*promise.*>. For its value, write @ before it")
    (is (= [1 1] (t/all @task @task)))))

(deftest options-without-braces-are-refused
  (is (= "The options of fork are a map, not :daemon?"
         (ex-message (thrown (t/with-scope [s] (t/fork s :daemon? true 1))))))
  (is (= :a (t/with-scope [s] @(t/fork s :a)))))

(deftest what-is-no-function-is-answered-with-the-form-that-takes-it
  (are [form message] (= message (ex-message (thrown form)))
    (t/future-call 3)
    "A function is expected by future-call, not 3"
    (t/with-scope [s] (t/fork-call s nil))
    "A function is expected by fork-call, not nil"
    (t/with-scope [s] (t/every! s {:ms 1} 3))
    "A function is expected by every!, not 3"
    (t/with-scope [s] (t/use! s 3 nil))
    "A function is expected by use!, not nil"
    (t/pcalls + 3)
    "A function is expected by pcalls, not 3"
    (t/all-call [+ 3])
    "A function is expected by all, not 3"
    (t/on-cancel [3] 1)
    "A function is expected by on-cancel, not 3"
    (t/abandon-on-interrupt nil 1)
    "A function is expected first by abandon-on-interrupt, not nil"
    (into [] (t/jitter 3 [1]))
    "A function is expected by jitter, not 3"))

(deftest options-alone-are-no-functions
  (are [form] (= [:thrum/invalid "a collection of functions"]
                 ((juxt :type :accepts) (ex-data (thrown form))))
    (t/all-call {:limit 1})
    (t/race-call {:timeout-ms 10})
    (t/settle-call {})
    (t/hedge-call {:after-ms 1} {:after-ms 1})))

(defn- blamed
  "Returns the function that a REPL names as where the error is."
  [e]
  (:clojure.error/symbol (main/ex-triage (Throwable->map e))))

(deftest a-repl-names-the-function-that-was-called
  (are [form called] (= called (blamed (thrown form)))
    (t/value 3)
    'thrum.core/value
    (t/pmap 0 inc [1])
    'thrum.core/pmap
    (t/pmapv 2 inc 3)
    'thrum.core/pmapv
    (t/pcalls 3)
    'thrum.core/pcalls
    (t/as-completed [3])
    'thrum.core/as-completed
    (t/fork 3 1)
    'thrum.core/fork-call
    (t/hedge 1 2)
    'thrum.core/hedge-call
    (t/with-timeout nil 1)
    'thrum.core/with-timeout-call
    (t/acquire! nil)
    'thrum.core/acquire!
    (t/limiter 0)
    'thrum.core/limiter
    (t/jitter 3 [1])
    'thrum.core/jitter
    (t/constant -1)
    'thrum.core/constant
    (t/exponential -1 2)
    'thrum.core/exponential
    (t/max-elapsed -1 [1])
    'thrum.core/max-elapsed
    (t/retry {:attempts 0} 1)
    'thrum.core/retry-call))

(deftest an-option-that-is-said-to-accept-nil-accepts-it
  (doseq [[k {:keys [check accepts]}] options/rows, :when (re-find #"\bor nil$" accepts)]
    (is (check nil) k)))

(deftest what-is-no-function-is-refused-at-the-call
  (are [form] (= :thrum/invalid (:type (ex-data (thrown form))))
    (t/pmap 2 3 [1])
    (t/pmap 2 3)
    (t/upmap 2 "f" [1])
    (t/map 3 [1])
    (t/pmapv 2 3 [1])
    (t/prun! 2 3 [1])
    (t/pcalls 3)
    (t/all-call 3)
    (t/race-call 3)
    (t/hedge-call {:after-ms 1} 3)
    (t/future-call 3)
    (t/future-call {:wrap (constantly nil)} (fn []))))

(deftest what-is-no-collection-is-refused-at-the-call
  (are [form] (= :thrum/invalid (:type (ex-data (thrown form))))
    (t/pmap 2 inc 3)
    (t/pmap 2 [1] inc)
    (t/pmap 2 + [1] 3)
    (t/upmap 2 inc :items)
    (t/pmap-tasks 2 inc 3)
    (t/map inc 3)
    (t/pmapv 2 inc 3)
    (t/pmapv 2 + [1] 3)
    (t/prun! 2 inc 3)))

(deftest what-can-be-a-seq-or-be-reduced-is-a-collection
  (let [numbers (reify IReduceInit
                  (reduce [_ f init] (f (f init 1) 2)))]
    (is (= [2 3] (t/pmapv 2 inc numbers)))
    (is (nil? (t/prun! 2 inc numbers))))
  (are [coll] (= [2 3] (t/pmap 2 inc coll) (t/pmapv 2 inc coll))
    (eduction (map inc) [0 1])
    (ArrayList. [1 2])
    (long-array [1 2]))
  (is (= [] (t/pmap 2 inc nil) (t/pmapv 2 inc nil))))

(defn- endless
  "Returns a lazy seq that has no end, but does not let itself be walked far."
  []
  (map #(if (< % 100) % (throw (AssertionError. "An endless seq was walked"))) (iterate inc 0)))

(deftest endless-arguments-are-answered-at-once-and-in-short
  (are [form] (let [e (gate/in-time 5000 (fn [] (thrown form)))]
                (and (= :thrum/invalid (:type (ex-data e)))
                     (<= (count (ex-message e)) 2000)
                     (<= (count (pr-str (dissoc (ex-data e) :known))) 1000)))
    (t/pmap 8 (endless) inc)
    (t/pmap 8 (endless))
    (t/pmap (endless) inc [1])
    (t/pmap {:limit (endless)} inc [1])
    (t/pmap {:limit 1, (endless) 1} inc [1])
    (t/pmap {:limit 1, :name (endless)} inc [1])
    (t/pmap {:limit 1, :scoped-values (endless)} inc [1])
    (t/pmap {:limit 1, :wrap (endless)} inc [1])
    (t/map (endless) inc)
    (t/pmapv 8 (endless) inc)
    (t/prun! 8 (endless) inc)
    (t/pcalls (endless))
    (t/pfor (endless) [x [1]] x)
    (t/future-call (endless) inc)
    (t/future-call (endless))
    (t/future-via [(endless)] 1)
    (t/all-call (endless))
    (t/race-call (endless))
    (t/with-scope [_ {:name (endless)}] 1)
    (t/with-scope [_ {:on-error (endless)}] 1)
    (t/with-scope [s] (t/every! s {:ms 1, :fixed (endless)} (fn [])))
    (t/with-executor [_ {:on-exit (endless)}] 1)
    (t/with-scope [s] (t/fork-call s (endless)))
    (t/with-scope [s] (t/use! s (endless)))
    (t/fork (endless) 1)
    (t/with-timeout (endless) 1)
    (t/with-deadline (endless) 1)
    (t/shield (endless) 1)
    (t/cancel! (endless))
    (t/cancelled? (endless))
    (t/limiter (endless))
    (t/limiter 1 (endless))
    (t/with-permit (endless) 1)
    (t/release! (endless))
    (t/retry (endless) 1)
    (t/retry {:attempts (endless)} 1)
    (t/retry {:schedule [(endless)]} (throw (Exception. "no")))
    (t/constant (endless))
    (t/max-elapsed (endless) [1])
    (t/abandon-on-interrupt (endless) 1)))

(deftest an-endless-reason-of-a-cancel-is-shown-in-short
  (let [task (t/future @(promise))
        _ (t/cancel! task (endless))
        cause (thrown @task)]
    (is (= :thrum/cancelled (:type (ex-data cause))))
    (is (<= (count (pr-str (ex-message cause) (ex-data cause))) 1000)))
  (let [task (t/future @(promise)), reason {:why [:late 1]}]
    (t/cancel! task reason)
    (is (identical? reason (:reason (ex-data (thrown @task)))))))

(deftest swapped-arguments-are-told-what-stands-where
  (is (=
        "A function is expected after the limit, as in (pmap 8 f coll), not #<clojure.lang.Iterate>"
        (ex-message (thrown (t/pmap 8 (range) inc)))))
  (is (= "A function is expected first, as in (map f coll), not #<clojure.lang.Iterate>"
         (ex-message (thrown (t/map (range) inc)))))
  (is (str/includes? (ex-message (thrown (t/pmap [1 2] inc 8)))
                     "The limit is [1 2]: the limit comes first")))

(defn- reported
  "Returns what goes to the uncaught exception handler of a thread on which (start! f) has f
  called."
  [start!]
  (let [uncaught (promise)
        handler (reify
                  Thread$UncaughtExceptionHandler
                  (uncaughtException [_ _ t] (deliver uncaught t)))]
    (start! #(.setUncaughtExceptionHandler (Thread/currentThread) handler))
    (deref uncaught 5000 (ex-info "nothing" {}))))

(deftest a-wrap-must-call-its-thunk-no-more-than-once
  (let [calls (atom 0), call #(swap! calls inc)
        twice (fn [thunk] #(do (thunk) (thunk)))]
    (binding [t/*wrap* twice]
      (are [form] (= [:thrum/invalid :wrap 1]
                    (do
                      (reset! calls 0)
                      (let [{:keys [type option]} (ex-data (thrown form))]
                        [type option @calls])))
        (t/value (t/future (call)))
        (t/value (t/future-call call))
        (t/with-scope [s] (t/fork s (call)))
        (doall (t/pmap 1 (fn [_] (call)) [1]))
        (t/pmapv {:limit 1, :batch 2} (fn [_] (call)) [1])
        (t/all (call))
        (t/abandon-on-interrupt (fn []) (call))
        (t/with-executor [e] (t/value (t/future-via [e] (call))))
        (throw (reported #(t/thread (%) (call))))
        (throw (reported #(t/with-executor [e] (.execute e (fn [] (%) (call))))))))))

(deftest a-wrap-must-be-a-function-that-returns-one
  (let [returns-42 (constantly 42)]
    (are [form] (= {:type :thrum/invalid, :option :wrap, :value 42}
                   (select-keys (ex-data (thrown form)) [:type :option :value]))
      (t/pmapv {:limit 1, :wrap returns-42} inc [1])
      (doall (t/pmap {:limit 1, :wrap returns-42} inc [1]))
      (into [] (t/pmap {:limit 1, :wrap returns-42} inc) [1])
      (t/future-call {:wrap returns-42} (fn []))
      (t/with-scope [s {:wrap returns-42}] (t/fork s 1))
      (binding [t/*wrap* returns-42] (t/all 1))
      (binding [t/*wrap* returns-42] (t/thread 1))
      (binding [t/*wrap* 42] (t/thread 1))
      (binding [t/*wrap* 42] (t/future 1))
      (binding [t/*wrap* 42] (t/with-executor [e] (t/future-via [e] 1)))
      (binding [t/*wrap* 42] (t/pmap 1 inc [1]))
      (binding [t/*wrap* 42] (t/pmapv 1 inc [1]))
      (binding [t/*wrap* 42] (into [] (t/pmap 1 inc) [1]))
      (binding [t/*wrap* 42] (t/for [x [1]] x))
      (binding [t/*wrap* 42] (t/race 1))
      (binding [t/*wrap* 42] (t/with-scope [s] (t/fork s 1)))))
  (is
    (=
      (str "The :wrap returned 42; it must return the thunk that the task runs, a function of no "
           "arguments")
      (ex-message (thrown (t/pmapv {:limit 1, :wrap (constantly 42)} inc [1])))))
  (is (= "The wrap of a task's body is \"x\"; it must be a function from thunk to thunk, or nil"
         (ex-message (thrown (binding [t/*wrap* "x"] (t/future 1)))))))

(deftest options-in-a-local-are-options
  (let [options {:name "poll"}
        wrong {:demon? true}
        no-map 7]
    (is (= "poll"
           (second (re-find #"/(poll)-0$"
                            (t/with-scope [s]
                              @(t/fork s options (.getName (Thread/currentThread))))))))
    (is (= :demon? (:option (ex-data (thrown (t/with-scope [s] (t/fork s wrong 1)))))))
    (is (= 7 (:value (ex-data (thrown (t/with-scope [s] (t/fork s no-map 1)))))))
    (is (= options (t/with-scope [s] @(t/fork s options))))
    (is (= 2 (t/with-scope [s] @(t/fork s (inc 0) (inc 1)))))
    (is (= {:a 1} (t/with-scope [s] @(t/fork s {:a 1}))))))

(deftest no-time-at-all-runs-nothing
  (let [ran (atom [])]
    (is (= :thrum/timeout (:type (ex-data (thrown (t/with-timeout 0 (swap! ran conj :timeout)))))))
    (is (= :thrum/timeout (:type (ex-data (thrown (t/shield 0 (swap! ran conj :shield)))))))
    (is (= :thrum/timeout
           (:type (ex-data (thrown (t/with-scope [_ {:timeout-ms 0}] (swap! ran conj :scope)))))))
    (is (= :late (t/with-timeout [0 :late] (swap! ran conj :fallback))))
    (is (= [] @ran))
    (is (= :value (t/shield 60000 :value)))))

(deftest a-macro-of-the-wrong-shape-says-so
  (are [form] (= :thrum/invalid (:type (ex-data (ex-cause (thrown (eval form))))))
    '(thrum.core/for [x [1 2 3] :when] x)
    '(thrum.core/for (x [1 2 3]) x)
    '(thrum.core/for x x)
    '(thrum.core/pfor 2 [x [1] y] x)
    '(thrum.core/pfor 2 (x [1]) x)
    '(thrum.core/plet [x] x)
    '(thrum.core/plet (x 1) x)
    '(thrum.core/with-permit [] 1)
    '(thrum.core/with-permit [l] 1)
    '(thrum.core/with-permit [l 1 2] 1)
    '(thrum.core/with-scope s 1)
    '(thrum.core/with-scope [] 1)
    '(thrum.core/with-scope [[s]] 1)
    '(thrum.core/with-scope ["s" {}] 1)
    '(thrum.core/with-scope [s {} 1] 1)
    '(thrum.core/with-executor [{:keys [e]}] 1)
    '(thrum.core/future-via exe 1)
    '(thrum.core/future-via [a b] 1)
    '(thrum.core/with-executor exe 1)
    '(thrum.core/with-executor [exe {} x] 1)
    '(thrum.core/retry {})
    '(thrum.core/retry (query))
    '(thrum.core/on-cancel f 1)
    '(thrum.core/on-cancel [] 1)
    '(thrum.core/on-cancel [f g] 1)))

(deftest the-largest-limit-is-a-limit
  (is (= [2] (t/pmap Long/MAX_VALUE inc [1]) (t/pmapv Long/MAX_VALUE inc [1]))))

(deftest map-without-a-collection-points-to-pmap
  (is (str/includes? (ex-message (thrown (t/map inc))) "(pmap limit f)")))

(deftest the-rows-write-their-documentation
  (is (= [":limit - how many tasks may run at once; required (a positive integer)"]
         (options/documented options/rows [:limit]))))

(defn- at-expansion
  "Returns what the expansion of a form of this namespace's throws, or nil."
  [form]
  (binding [*ns* (the-ns 'thrum.misuse-test)]
    (try
      (macroexpand form)
      nil
      (catch clojure.lang.Compiler$CompilerException e (ex-cause e)))))

(deftest a-form-behind-a-fallback-is-refused
  (doseq [form '[(t/with-timeout [50 :late :x] 1)
                 (t/with-timeout [] 1)
                 (t/with-deadline [at :late :x] 1)]
          :let [e (at-expansion form)]]
    (is (= :thrum/invalid (:type (ex-data e))))
    (is (str/includes? (str (ex-message e)) "fallback]")))
  (is (nil? (at-expansion '(t/with-timeout [50] 1)))))

(deftest options-that-future-and-thread-would-drop-are-refused
  (doseq [form '[(t/future {:name "x"} 1) (t/thread {:name "x"} 1)]
          :let [e (at-expansion form)]]
    (is (= :thrum/invalid (:type (ex-data e))))
    (is (str/includes? (str (ex-message e)) "future-call")))
  (doseq [form '[(t/future {:name "x"}) (t/future {:id 7} 1) (t/future {} 1) (t/future)]]
    (is (nil? (at-expansion form)) form)))

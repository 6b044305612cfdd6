(ns thrum.registry-test
  "What runs, as those see it who show it."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.registry :as registry]
   [thrum.spi :as spi]
   [thrum.spi.watch :as watch]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.lang.ref Reference WeakReference)
   (java.util Set)
   (thrum.impl.registry Entries Watch)))

(set! *warn-on-reflection* true)

(defn- watched [f]
  (let [change? (watch/watch! true)]
    (try (f) (finally (when change? (watch/watch! false))))))

(use-fixtures :each leak/no-leaks watched)

(defn- known
  "Returns the facts of what is known of that kind and runs, of this name."
  [kind prefix]
  (->> (watch/registered)
       (filter #(= kind (:kind %)))
       (map #(merge % (watch/facts (:thing %))))
       (filter #(and (.startsWith ^String (str (:name %)) prefix)
                     (not (#{:ended :done :failed} (:state %)))))))

(defn- names-of-children [{:keys [children]}]
  (map #(:name (watch/facts %)) children))

(defn- unwatched [f]
  (watch/watch! false)
  (try (f) (finally (watch/watch! true))))

(deftest a-scope-and-its-forks-are-known-while-they-run
  (let [gate (promise)]
    (t/with-scope [s {:name "outer"}]
      (t/fork s (deref gate 10000 nil))
      (let [[{:keys [thread deadline body-ended? running] :as scope} & more] (known :scope "outer")]
        (is (nil? more))
        (is (= [(Thread/currentThread) nil false 1] [thread deadline body-ended? running]))
        (is (= [(str (:name scope) "/0")] (names-of-children scope)))
        (is (= [:running true]
               (let [{:keys [state ^Thread thread]} (watch/facts (first (:children scope)))]
                 [state (.isVirtual thread)]))))
      (deliver gate :go))
    (is (= [] (known :scope "outer")))))

(deftest a-task-that-has-ended-is-no-child-before-the-others-have-ended
  (let [gate (promise), wait #(deref gate 10000 nil)
        children #(count (names-of-children (first (known %1 %2))))]
    (try
      (t/with-scope [s]
        (t/fork s (t/all 1 (wait)))
        (t/fork s (doall (t/pmap {:limit 2, :name "lazy"} #(when (= 0 %) (wait)) [0 1])))
        (is (gate/eventually 5000 #(= [1 1] [(children :joiner "all") (children :fan-out "lazy")])))
        (deliver gate :go))
      (finally (deliver gate :go)))))

(deftest a-scope-inside-a-scope-names-the-one-around-it
  (t/with-scope [_ {:name "outer"}]
    (t/with-timeout [60000]
      (let [[{:keys [parent deadline]}] (known :scope "timeout")]
        (is (int? deadline))
        (is (identical? (:group (first (known :scope "outer"))) parent))))))

(deftest a-limiter-has-a-title
  (is (= [{:kind :permit, :name "limiter"} {:kind :permit, :name "db"}]
         (map watch/title [(t/limiter 1) (t/limiter 1 {:name "db"})]))))

(deftest a-scope-names-the-task-that-opened-it
  (t/with-scope [s]
    (let [opener #(:opener (first (known :scope "inner")))
          task (t/fork s (t/with-scope [_ {:name "inner"}] (opener)))]
      (is (identical? task @task)))
    (is (nil? (t/with-scope [_ {:name "inner"}] (:opener (first (known :scope "inner"))))))))

(deftest what-belongs-to-no-scope-is-known
  (let [gate (promise), wait #(deref gate 10000 nil)]
    (try
      (let [results (t/pmap {:limit 2, :name "loose"} (fn [_] (wait)) [1 2])
            puller (t/future (dorun results))
            joined (t/future (t/all (wait) (wait)))]
        (is (gate/eventually 5000 #(= 2 (:running (first (known :fan-out "loose"))))))
        (is (gate/eventually 5000 #(= 2 (:running (first (known :joiner "all"))))))
        (is (= 2 (count (known :task "future"))))
        (t/with-executor [exe {:name "crew"}]
          (t/future-via [exe] (wait))
          (is (= 1 (:running (first (known :executor "crew")))))
          (deliver gate :go))
        @puller
        @joined)
      (finally (deliver gate :go)))))

(deftest a-task-that-was-cancelled-and-runs-on-is-known
  (let [gate (promise), began (promise)]
    (t/with-scope [s {:name "deaf"}]
      (let [fork (t/fork s (t/shield 20000 (deliver began true) (deref gate 10000 nil)))]
        @began
        (future-cancel fork)
        (let [{:keys [state thread]} (watch/facts fork)]
          (is (= :cancelled state))
          (is (some? thread)))
        (deliver gate :go)))))

(deftest tasks-are-counted-by-how-they-end
  (let [before (watch/ended), counted #(merge-with - (watch/ended) before)]
    (t/prun! 2 identity (range 3))
    (is (thrown? Exception @(t/future (throw (ex-info "x" {})))))
    (let [began (promise), task (t/future (deliver began true) @(promise))]
      @began
      (future-cancel task))
    (is (gate/eventually 5000 #(= {:done 3, :failed 1, :cancelled 1} (counted))) (counted))))

(defn- trail-of
  "Returns [event kind name state] for what an observer is called with while f runs, in order."
  [f]
  (let [trail (atom [])
        note! (fn [event kind thing]
                (let [{:keys [name state]} (watch/facts thing)]
                  (swap! trail conj [event kind name state (Thread/currentThread)])))]
    (try
      (watch/observe! (fn [kind thing] (note! :begins kind thing) #(note! :ends kind %)))
      (f)
      (finally (watch/observe! nil)))
    @trail))

(deftest an-observer-is-called-at-the-begin-and-the-end-on-the-threads-themselves
  (let [thread (promise), here (Thread/currentThread)
        fork #(t/fork % {:name "f"} (deliver thread (Thread/currentThread)))
        [[_ _ scope-name] :as trail] (trail-of #(t/with-scope [s {:name "s"}] (fork s) nil))
        fork-name (str scope-name "/f-0")]
    (is (= [[:begins :scope scope-name :open here] [:begins :task fork-name :running @thread]
            [:ends :task fork-name :done @thread] [:ends :scope scope-name :ended here]]
           trail)))
  (testing "also where they fail"
    (is (= [[:ends :task] [:ends :scope]]
           (->> (trail-of (fn []
                            (try
                              (t/with-scope [s] (t/fork s (throw (ex-info "no" {}))))
                              (catch Exception _))))
                (filter (comp #{:ends} first))
                (map #(subvec % 0 2)))))))

(deftest an-observer-that-returns-nil-is-not-called-at-the-end
  (let [called (atom [])]
    (watch/observe! (fn [kind _] (swap! called conj kind) nil))
    (try @(t/future nil) (finally (watch/observe! nil)))
    @(t/future nil)
    (is (= [:task] @called))))

(defn- days-ago [days]
  (- (System/nanoTime) (* (long days) 24 60 60 1000000000)))

(deftest a-task-knows-when-it-began
  (doseq [days [0 300 600]]
    (with-redefs [registry/base (days-ago days)]
      (watch/tick!)
      (let [before (System/nanoTime)]
        (watch/tick!)
        (let [since (:since (watch/facts (t/future nil)))]
          (is (<= before since (System/nanoTime)))
          (is (zero? (long (unwatched #(:since (watch/facts (t/future nil))))))))))))

(deftest a-detached-task-that-has-ended-is-kept-no-more
  (let [task (t/future :value)]
    (is (= :value @task))
    (is (gate/eventually 5000
          (fn [] (not-any? #(identical? task (:thing %)) (watch/registered)))))))

(deftest nothing-that-comes-and-goes-is-kept-where-none-watches
  (unwatched
    #(t/with-scope [_ {:name "unseen"}]
       (t/with-executor [_ {:name "unseen"}]
         (is (= [] (known :scope "unseen") (known :executor "unseen")))
         (is (nil? (watch/ended)))))))

(deftest what-began-unwatched-may-end-watched
  (unwatched
    #(is (= [:fork :body]
            (t/with-scope [s]
              (let [gate (promise), fork (t/fork s (deref gate 5000 :late))]
                (t/with-executor [_]
                  (watch/watch! true)
                  (deliver gate :fork)
                  [@fork :body])))))))

(deftest who-watches-already-changes-nothing
  (t/with-scope [_ {:name "seen"}]
    (is (false? (watch/watch! true)))
    (is (= 1 (count (known :scope "seen")))))
  (unwatched #(is (false? (watch/watch! false)))))

(deftest what-began-watched-is-known-no-more-where-none-watches
  (t/with-scope [_ {:name "forgotten"}]
    (is (= [] (unwatched #(known :scope "forgotten"))))))

(deftest a-limiter-is-known-with-those-who-hold-and-wait
  (let [limiter (unwatched #(t/limiter 1 {:name "db"})), gate (promise), held (promise)
        holder (t/future (t/with-permit limiter
                           (deliver held (Thread/currentThread))
                           (deref gate 10000 nil)))
        _ (deref held 5000 nil)
        waiter (t/future (t/with-permit limiter nil))
        facts #(watch/facts limiter)]
    (is (gate/eventually 5000 #(= 1 (:waiting (facts)))))
    (is (= {@held 1} (:owners (facts))))
    (is (= [(:thread (watch/facts waiter))] (:askers (facts))))
    (is (= 1 (:granted (facts))))
    (is (some #(identical? limiter (:thing %)) (watch/registered)))
    (deliver gate :go)
    @holder
    @waiter
    (is (= [{} 2] ((juxt :owners :granted) (facts))))))

(deftest who-asked-for-a-permit-is-known-until-it-is-returned-also-by-another-thread
  (let [limiter (t/limiter 5), me (Thread/currentThread), owners #(:owners (watch/facts limiter))
        lent (t/acquire! limiter), more (t/try-acquire! limiter 2)]
    (is (= {me 3} (owners)))
    (t/with-permit limiter
      (is (= {me 4} (owners))))
    @(t/future (t/release! more))
    (is (= {me 1} (owners)))
    (testing "one that waited for it is named when it has it"
      (let [rest-of-them (t/acquire! limiter 4)
            waiter (t/future (t/acquire! limiter) (Thread/currentThread))]
        (is (gate/eventually 5000 #(= 1 (:waiting (watch/facts limiter)))))
        (is (= {me 5} (owners)))
        (t/release! lent)
        (is (= {me 4, @waiter 1} (owners)))
        (t/release! rest-of-them)))
    (testing "one that gave up is not"
      (let [rest-of-them (t/acquire! limiter 4), before (owners)
            waiter (t/future (t/acquire! limiter))]
        (is (gate/eventually 5000 #(= 1 (:waiting (watch/facts limiter)))))
        (t/cancel! waiter)
        (is (gate/eventually 5000 #(= 0 (:waiting (watch/facts limiter)))))
        (is (= before (owners)))
        (t/release! rest-of-them)))))

(deftest a-rate-limiter-is-shown-with-those-who-wait
  (let [rate (unwatched #(t/rate-limiter 1 {:per-ms 3600000, :name "api"}))
        shown #(first (for [{:keys [thing describe]} (watch/registered)
                            :when (identical? rate thing)]
                        (describe thing)))]
    (t/acquire! rate)
    (is (= {:name "api", :state :open, :permits 1, :waiting 0}
           (select-keys (shown) [:name :state :permits :waiting])))
    (let [waiter (t/future (t/acquire! rate))]
      (is (gate/eventually 5000 #(= [:crowded 1] ((juxt :state :waiting) (shown)))))
      (t/cancel! waiter)
      (is (gate/eventually 5000 #(= 0 (:waiting (shown))))))))

(defn- registered? [kind]
  (boolean (some #(= kind (:kind %)) (watch/registered))))

(defn- register-and-drop! [kind]
  (spi/register! kind (Object.) (constantly {:name "dropped"})))

(deftest a-registration-ends-with-its-thing-or-before
  (let [before (System/nanoTime), pool (Object.)
        registration (spi/register! ::pool pool (constantly {:name "pool"}))
        [{:keys [since describe]} & more] (filter #(= ::pool (:kind %)) (watch/registered))]
    (is (= {:name "pool"} (describe pool)))
    (is (<= before since (System/nanoTime)))
    (is (nil? more))
    (is (nil? (spi/unregister! registration)))
    (is (not (registered? ::pool)))
    (Reference/reachabilityFence pool))
  (register-and-drop! ::dropped)
  (is (gate/eventually 20000 #(do (System/gc) (not (registered? ::dropped))))))

(defn- limiter-of-a-thread
  "Returns a weak reference to a limiter that only the ended thread's function refers to."
  []
  (let [made (object-array 1)]
    (.join (Thread/startVirtualThread (fn [] (aset made 0 (t/limiter 1)))))
    (WeakReference. (aget made 0))))

(deftest a-thing-is-not-kept-by-the-thread-that-made-it
  (let [^WeakReference limiter (limiter-of-a-thread)]
    (is (gate/eventually 20000 #(do (System/gc) (nil? (.get limiter)))))))

(deftest what-is-dropped-is-not-kept-by-many-others
  (dotimes [_ 5000] (t/pmap 1 identity [1]))
  (is (gate/eventually 20000 #(do (System/gc) (empty? (known :fan-out "pmap")))))
  (is (every? :kind (watch/registered)))
  (is (= [] (watch/leaked!)) "what is no task is no leak"))

(defn- count-kept []
  (let [entries (.-entries ^Watch @#'registry/watch)]
    (.size ^Set (.-all ^Entries entries))))

(deftest what-is-dropped-takes-no-memory-for-ever
  (let [most (+ 5000 (count-kept))]
    (dotimes [_ 5000] (t/pmap 1 identity [1]))
    (is (gate/eventually 20000 #(do
                                  (System/gc)
                                  (dotimes [_ 500] (t/pmap 1 identity [1]))
                                  (< (count-kept) most))))))

(deftest a-crowd-that-lives-is-looked-through-seldom
  (let [looks (atom 0), forget! @#'registry/forget-collected!
        things (vec (repeatedly 5000 #(Object.)))]
    (with-redefs [registry/forget-collected! #(do (swap! looks inc) (forget! %))]
      (run! (partial registry/keep! ::thing) things)
      (is (<= (long @looks) 3)))
    (Reference/reachabilityFence things)))

(defn- keep-and-drop!
  "Returns a weak reference to what is kept as a task of that name."
  [name]
  (let [task (Object.)]
    (registry/keep-task! (registry/entry-ref) task name)
    (WeakReference. task)))

(deftest a-task-that-was-collected-is-told-once-also-among-many
  (let [^WeakReference task (keep-and-drop! "alone"), told #(map :name (watch/leaked!))]
    (is (gate/eventually 20000 #(do (System/gc) (nil? (.get task)))))
    (dotimes [_ 5000] (t/pmap 1 identity [1]))
    (is (= ["alone"] (told)))
    (is (= [] (told)))))

(deftest a-task-that-the-jdk-keeps-is-no-leak
  (let [gate (promise), task (t/future (deref gate 10000 nil))]
    (System/gc)
    (is (= [] (watch/leaked!)))
    (deliver gate :go)
    @task
    (is (= [] (watch/leaked!)))))

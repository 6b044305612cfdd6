(ns thrum.watch.micrometer-test
  "What a watch sees, as meters of a registry of Micrometer's."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.watch :as watch]
   [thrum.watch.impl.meters :as meters]
   [thrum.watch.impl.prometheus :as prometheus]
   [thrum.watch.impl.rules :as rules]
   [thrum.watch.impl.sampler :as sampler]
   [thrum.watch.impl.snapshot :as snapshot]
   [thrum.watch.micrometer :as micrometer])
  (:import
   (io.micrometer.core.instrument Meter MeterRegistry Tag Timer)
   (io.micrometer.core.instrument.binder MeterBinder)
   (io.micrometer.core.instrument.distribution ValueAtPercentile)
   (io.micrometer.core.instrument.simple SimpleMeterRegistry)
   (java.lang AutoCloseable)
   (java.util.concurrent ConcurrentHashMap TimeUnit)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.function Consumer)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- tags [^Meter meter]
  (into {}
        (map (fn [^Tag tag] [(keyword (.getKey tag)) (.getValue tag)]))
        (.getTags (.getId meter))))

(defn- meter-of ^Meter [^MeterRegistry registry name wanted]
  (first (filter #(and (= name (.getName (.getId ^Meter %))) (= wanted (tags %)))
                 (.getMeters registry))))

(defn- value
  "Returns the value of a gauge or counter, nil where there is none."
  ([registry name] (value registry name {}))
  ([registry name tags]
   (some-> (meter-of registry name tags) .measure first
           (as-> measurement (.getValue ^io.micrometer.core.instrument.Measurement measurement)))))

(defmacro ^:private with-registry [[registry] & body]
  `(with-open [watch# ^AutoCloseable (watch/start! {:port 0})
               binder# ^AutoCloseable (micrometer/binder watch#)]
     (let [~registry (SimpleMeterRegistry.)]
       (.bindTo ^MeterBinder binder# ~registry)
       ~@body)))

(defn- permits [limiter n gate]
  (mapv (fn [_] (t/future (t/with-permit limiter (deref gate 20000 nil)))) (range n)))

(deftest what-is-no-watch-is-refused-at-the-call
  (is (= :thrum/invalid
         (:type (ex-data (try (micrometer/binder nil) (catch Exception e e)))))))

(deftest tasks-and-limiters-are-meters
  (with-registry [registry]
    (let [gate (promise), db (str (gensym "db-")), limiter (t/limiter 2 {:name db})
          read (fn [name] (value registry (str "thrum.limiter." name) {:limiter db}))
          ended #(value registry "thrum.tasks.ended" {:how %})
          tasks (permits limiter 5 gate)]
      (is (gate/eventually 5000 #(= [2.0 2.0 3.0] (map read ["permits" "in.use" "waiting"]))))
      (is (= 5.0 (value registry "thrum.tasks.alive")))
      (is (gate/eventually 5000 #(= 1.0 (value registry "thrum.lints" {:rule "crowded"}))))
      (is (= 0.0 (value registry "thrum.lints" {:rule "starved"})))
      (let [done (ended "done"), failed (ended "failed")]
        (deliver gate :go)
        (run! deref tasks)
        (t/settle (throw (ex-info "x" {})))
        (is (gate/eventually 5000 #(= [(+ 5.0 done) (+ 1.0 failed)]
                                      [(ended "done") (ended "failed")])))
        (is (gate/eventually 5000 #(= 0.0 (value registry "thrum.tasks.alive"))))))))

(defn- percentiles [^Timer timer]
  (mapv #(.percentile ^ValueAtPercentile %) (.percentileValues (.takeSnapshot timer))))

(defn- get! [s]
  (second (gate/start "client" #(slurp (str "http://127.0.0.1:" (server/port s) "/")))))

(deftest requests-and-their-wait-for-a-permit-are-timed
  (with-registry [registry]
    (let [gate (promise), entered (promise)
          s (server/run-server (fn [_] (deliver entered true) @gate {:status 200, :body "x"})
              {:port 0, :max-concurrent 1, :max-queued 5, :queue-timeout-ms 20000})
          all ^Timer (meter-of registry "thrum.requests" {})
          queue ^Timer (meter-of registry "thrum.requests.queue" {})]
      (try
        (let [one (get! s)]
          @entered
          (let [two (get! s), queued? #(= 1 (:queued (server/status s)))]
            (is (gate/eventually 5000 queued?))
            (let [start (System/nanoTime)]
              (is (gate/eventually 5000 #(< 20e6 (- (System/nanoTime) start)))))
            (deliver gate :go)
            (is (= ["x" "x"] (map #(:value (deref % 5000 :late)) [one two])))))
        (is (gate/eventually 5000 #(= 2 (.count all) (.count queue))))
        (is (< 19.0 (.max queue TimeUnit/MILLISECONDS)) "the second waited for the first")
        (is (<= (.max queue TimeUnit/MILLISECONDS) (.max all TimeUnit/MILLISECONDS)))
        (is (= [0.5 0.99] (percentiles all) (percentiles queue)))
        (let [ended #(value registry "thrum.requests.ended" {:status "200"})]
          (is (gate/eventually 5000 #(<= 2.0 (or (ended) 0.0)))))
        (finally (server/stop! s))))))

(deftest what-is-unbound-listens-no-more
  (snapshot/watch-requests!)
  (let [listeners (atom #{})
        sampler (reify sampler/Sampling
                  (latest [_])
                  (lints [_] [])
                  (listen! [_ f] (swap! listeners conj f) #(swap! listeners disj f)))
        observers #(set (exchanges/observers))
        before (observers)
        registry (SimpleMeterRegistry.)
        unbind! (meters/bind! sampler registry)]
    (is (= [1 1] [(count @listeners) (- (count (observers)) (count before))]))
    (is (Double/isNaN (value registry "thrum.scheduler.late")) "there is no sample yet")
    (unbind!)
    (is (= [#{} before] [@listeners (observers)]))))

(defn- rules-of-the-guide []
  (let [[_ table] (str/split (slurp (first (filter #(.exists (io/file %))
                                             ["doc/guides/watch.md" "../../doc/guides/watch.md"])))
                             #"## The rules")]
    (mapv (comp keyword second) (re-seq #"(?m)^\| `:([a-z-]+)`" table))))

(deftest every-rule-has-a-meter-and-is-in-the-guide
  (is (= rules/all (rules-of-the-guide)))
  (with-registry [registry]
    (doseq [rule rules/all]
      (is (value registry "thrum.lints" {:rule (name rule)}) rule))))

(deftest what-was-bound-is-taken-out
  (let [registry (SimpleMeterRegistry.), sampler (sampler/start! (fn [_]))]
    (try
      (let [unbind! (meters/bind! sampler registry)]
        (is (meter-of registry "thrum.tasks.alive" {}))
        (unbind!)
        (is (empty? (.getMeters registry))))
      (finally (sampler/stop! sampler)))))

(defn- limiters-of [& named]
  {:nodes (mapv (fn [limiter] {:kind :limiter, :name limiter, :permits 1}) named), :requests {}})

(deftest what-appears-while-a-binder-is-closed-is-taken-out-too
  (let [registry (SimpleMeterRegistry.), see! (promise), unbind! (promise)
        sampler (reify sampler/Sampling
                  (lints [_] [])
                  (latest [_] nil)
                  (listen! [_ f] (deliver see! f) (fn [])))]
    (deliver unbind! (meters/bind! sampler registry))
    (.onMeterAdded (.config registry)
                   (reify Consumer
                     (accept [_ meter] (when (= {:limiter "late"} (tags meter)) (@unbind!)))))
    (@see! (limiters-of "late"))
    (is (empty? (.getMeters registry)))))

(defn- late-name
  "Returns what is \"late\" as text; the first to ask for that waits at the gate."
  [asked gate]
  (reify Object
    (toString [_]
      (when (deliver asked true) (deref gate 20000 nil))
      "late")))

(deftest what-appears-while-a-binder-is-closed-takes-no-meter-from-the-next
  (let [registry (SimpleMeterRegistry.), asked (promise), gate (promise)
        bound! #(let [see! (promise)
                      sampler (reify sampler/Sampling
                                (lints [_] [])
                                (latest [_] nil)
                                (listen! [_ f] (deliver see! f) (fn [])))]
                  [(meters/bind! sampler registry) @see!])
        [unbind! see!] (bound!)
        [_ seen] (gate/start "sampler" #(see! (limiters-of (late-name asked gate))))
        _ (deref asked 20000 nil)
        next! #(do (unbind!) ((second (bound!)) (limiters-of "late")))
        [^Thread thread bound] (gate/start "next" next!)]
    (gate/eventually 20000 #(or (realized? bound) (= Thread$State/BLOCKED (.getState thread))))
    (deliver gate :go)
    (is (= [{:value nil} {:value nil}] (mapv #(deref % 20000 :late) [seen bound])))
    (is (meter-of registry "thrum.limiter.permits" {:limiter "late"}))))

(deftest a-counter-never-falls
  (let [read (#'meters/rising :n)]
    (is (= [0 3 3 4] (map #(read {:n %}) [nil 3 2 4])))))

(deftest the-refusals-of-limiters-that-are-gone-are-counted-on
  (let [read (#'meters/summed identity)]
    (is (= [0 10 12 17 17 18] (mapv read [{} {1 10} {1 10, 2 2} {2 7} {} {3 1}])))))

(deftest the-meters-of-a-limiter-end-when-it-is-gone
  (let [registry (SimpleMeterRegistry.)
        meters {:registry registry, :known (ConcurrentHashMap.)}
        there? #(some? (meter-of registry "thrum.limiter.permits" {:limiter %}))]
    (#'meters/bind-new! meters (limiters-of "a" "b"))
    (is (= [true true] (map there? ["a" "b"])))
    (#'meters/bind-new! meters (limiters-of "b"))
    (is (= [false true] (map there? ["a" "b"])))
    (#'meters/bind-new! meters (limiters-of "a"))
    (is (= [true false] (map there? ["a" "b"])))))

;; A name that counts how often it is compared.
(deftype Named [^String text ^AtomicLong compared]
  Object
  (toString [_] text)
  (hashCode [_] (.hashCode text))
  (equals [_ other]
    (.incrementAndGet compared)
    (and (instance? Named other) (= text (.-text ^Named other)))))

(deftest the-meters-of-many-limiters-are-read-without-a-look-at-all-of-them-for-each
  (let [registry (SimpleMeterRegistry.), compared (AtomicLong.), n 200
        snapshot (apply limiters-of (map #(Named. (str "l" %) compared) (range n)))
        unbind! (meters/bind! (reify sampler/Sampling
                                (lints [_] [])
                                (latest [_] snapshot)
                                (listen! [_ _] (fn [])))
                              registry)]
    (.set compared 0)
    (is (= (double n)
           (reduce + (map #(value registry "thrum.limiter.permits" {:limiter (str "l" %)})
                          (range n)))))
    (is (< (.get compared) (* 10 n)))
    (unbind!)))

(deftest limiters-without-a-bound-that-share-a-name-are-added-up
  (let [registry (SimpleMeterRegistry.)
        unbounded (fn [id] {:kind :limiter, :id id, :name "max-streams", :permits Long/MAX_VALUE})
        snapshot {:nodes [(unbounded 1) (unbounded 2)], :requests {}}
        unbind! (meters/bind! (reify sampler/Sampling
                                (lints [_] [])
                                (latest [_] snapshot)
                                (listen! [_ _] (fn [])))
                              registry)]
    (is (= (* 2.0 Long/MAX_VALUE)
           (value registry "thrum.limiter.permits" {:limiter "max-streams"})))
    (unbind!)))

(deftest the-text-has-the-names-of-prometheus
  (let [sampler (sampler/start! (fn [_]))]
    (try
      (let [{:keys [text close]} (prometheus/exporter sampler), text (text)]
        (doseq [line ["# TYPE thrum_tasks_started_total counter"
                      "thrum_tasks_ended_total{how=\"done\"}"
                      "thrum_lints{rule=\"pinned\"}"
                      "thrum_requests_seconds{quantile=\"0.99\"}"]]
          (is (str/includes? text line)))
        (close))
      (finally (sampler/stop! sampler)))))

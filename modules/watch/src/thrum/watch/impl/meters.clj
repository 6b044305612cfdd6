(ns thrum.watch.impl.meters
  "The figures of a sampler as meters of a registry of Micrometer's. Loaded only where Micrometer is
  on the class path."
  {:no-doc true}
  (:require
   [thrum.watch.impl.figures :as figures]
   [thrum.watch.impl.rules :as rules]
   [thrum.watch.impl.sampler :as sampler]
   [thrum.watch.impl.snapshot :as snapshot])
  (:import
   (io.micrometer.core.instrument FunctionCounter Gauge Meter MeterRegistry Timer)
   (java.util.concurrent ConcurrentHashMap TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean)
   (java.util.function Supplier ToDoubleFunction)))

(set! *warn-on-reflection* true)

;; meters: {:registry; :sampler; :known - a ConcurrentHashMap from [name tags] to a Meter;
;; :figures - as thrum.watch.impl.figures/remembering; :by-name - as by-name}

(defn- current
  "Returns the figures of the last snapshot; nil before the first."
  [{:keys [sampler figures]}]
  (when-some [snapshot (sampler/latest sampler)]
    (figures snapshot (sampler/lints sampler))))

(defn- value [meters read]
  (double (or (some-> (current meters) read) ##NaN)))

(defn- once!
  "Returns the meter of that name and these tags; where there is none, registers what (make) makes."
  [{:keys [^ConcurrentHashMap known]} name tags make]
  (or (.get known [name tags])
      (let [meter (make)]
        (.put known [name tags] meter)
        meter)))

(defn- tags-array ^"[Ljava.lang.String;" [tags]
  (into-array String (mapcat (fn [[k v]] [(name k) (str v)]) tags)))

(defn- gauge!
  "Registers a gauge of what read returns for figures; NaN for nil."
  [{:keys [^MeterRegistry registry] :as meters} name help tags read]
  (once! meters name tags
    #(-> (Gauge/builder ^String name ^Supplier (reify Supplier (get [_] (value meters read))))
         (.description help)
         (.tags (tags-array tags))
         (.register registry))))

(defn- rising
  "Returns a function of figures that never falls: two parts of a snapshot are not of one moment."
  [read]
  (let [most (atom 0)]
    (fn [figures] (swap! most max (or (read figures) 0)))))

(defn- summed
  "Returns a function of figures to the sum of the counts that read returns for them, by id, and of
  those that have been there before: an id that is gone is counted on."
  [read]
  (let [seen (atom {})]
    (fn [figures]
      (let [now (read figures)
            {:keys [gone counts]}
            (swap! seen (fn [{:keys [gone counts]}]
                          {:gone (reduce + (or gone 0) (vals (reduce dissoc counts (keys now))))
                           :counts (merge-with max (select-keys counts (keys now)) now)}))]
        (reduce + gone (vals counts))))))

(defn- counter!
  "Registers a counter of what read, which never falls, returns for figures."
  [{:keys [^MeterRegistry registry] :as meters} name help tags read]
  (let [f (reify ToDoubleFunction
            (applyAsDouble [_ meters] (double (or (some-> (current meters) read) 0))))]
    (once! meters name tags
      #(-> (FunctionCounter/builder ^String name meters ^ToDoubleFunction f)
           (.description help)
           (.tags (tags-array tags))
           (.register registry)))))

(def ^:private states [:runnable :parked :timed-parked :blocked])

(defn- bind-tasks! [meters]
  (gauge! meters "thrum.tasks.alive" "Tasks whose thread has not ended." {} :tasks-alive)
  (counter! meters "thrum.tasks.started" "Tasks started." {} (rising :tasks-started))
  (doseq [how [:done :failed :cancelled]]
    (counter! meters "thrum.tasks.ended" "Tasks ended." {:how (name how)}
      (rising #(get-in % [:tasks-ended how]))))
  (doseq [state states]
    (gauge! meters "thrum.threads" "Threads of tasks and scopes." {:state (name state)}
      #(get-in % [:threads (name state)] 0))))

(defn- bind-scheduler! [meters]
  (doseq [[k help] {:parallelism "Carriers, at most."
                    :mounted "Virtual threads on carriers; JDK 24 and newer."
                    :queued "Virtual threads that wait for a carrier; JDK 24 and newer."}]
    (gauge! meters (str "thrum.scheduler." (name k)) help {} #(get-in % [:scheduler k])))
  (gauge! meters "thrum.scheduler.late" "For how many ms no virtual thread has started." {}
    :late-ms)
  (doseq [rule rules/all]
    (gauge! meters "thrum.lints" "Lints." {:rule (name rule)} #(get-in % [:lints (name rule)] 0))))

(defn- by-name
  "Returns a function of figures that returns their limiters by name. Those of the last figures are
  kept: each limiter has meters, and each of them asks."
  []
  (comp (figures/of-last #(group-by :name %)) :limiters))

;; Limiters may share a name, and a meter has one value.
(defn- of-limiters [{:keys [by-name]} limiter k]
  (fn [figures]
    (into {} (map (fn [{:keys [id] :as facts}] [id (get facts k 0)])) ((by-name figures) limiter))))

(defn- sum-of-limiters [meters limiter k]
  (let [read (of-limiters meters limiter k)]
    ;; As doubles: two limiters without a bound are more than a long.
    #(some->> (vals (read %)) (reduce + 0.0))))

(defn- bind-limiter! [meters limiter]
  (let [tags {:limiter limiter}, sum #(sum-of-limiters meters limiter %)]
    (gauge! meters "thrum.limiter.permits" "Permits." tags (sum :permits))
    (gauge! meters "thrum.limiter.in.use" "Permits in use." tags (sum :in-use))
    (gauge! meters "thrum.limiter.waiting" "Waiters." tags (sum :waiting))
    (counter! meters "thrum.limiter.rejected" "Refused." tags
      (summed (of-limiters meters limiter :rejected)))))

(defn- remove-gone!
  "Takes out the meters of limiters of other names than these."
  [{:keys [^MeterRegistry registry ^ConcurrentHashMap known]} limiters]
  (doseq [[k meter] known
          :let [[_ {:keys [limiter]}] k]
          :when (and limiter (not (contains? limiters limiter)))]
    (.remove registry ^Meter meter)
    (.remove known k)))

(defn- bind-status! [meters status]
  (counter! meters "thrum.requests.ended" "Requests ended; status 0: without a whole response."
            {:status status}
            (rising #(get-in % [:requests status]))))

(defn- bind-new!
  "Registers the meters of what a snapshot is the first to have, and takes out those of limiters
  that are gone."
  [meters {:keys [nodes requests]}]
  (let [limiters (into #{} (comp (filter #(= :limiter (:kind %))) (map :name)) nodes)]
    (run! #(bind-status! meters %) (keys requests))
    (remove-gone! meters limiters)
    (run! #(bind-limiter! meters %) limiters)))

(defn- timer! ^Timer [{:keys [^MeterRegistry registry] :as meters} ^String name ^String help]
  (once! meters name {}
    #(-> (Timer/builder name)
         (.description help)
         (.publishPercentiles (double-array [0.5 0.99]))
         (.register registry))))

(defn- record! [^Timer timer nanos]
  (when nanos (.record timer (long nanos) TimeUnit/NANOSECONDS)))

(defn- time-requests!
  "Returns a function that ends this."
  [meters]
  (let [all (timer! meters "thrum.requests" "From a request's first line to its last byte.")
        queue (timer! meters "thrum.requests.queue" "How long requests waited for a permit.")]
    (snapshot/on-request-end!
      (fn [{:keys [nanos queued-nanos]}]
        (record! all nanos)
        (record! queue queued-nanos)))))

(defn- remove-all! [{:keys [^MeterRegistry registry ^ConcurrentHashMap known]}]
  (run! #(.remove registry ^Meter %) (.values known))
  (.clear known))

(defn bind!
  "Registers the meters of what the sampler sees, and those of what appears later. Returns a
  function that takes all of them out."
  [sampler registry]
  (let [meters {:sampler sampler, :registry registry, :known (ConcurrentHashMap.)
                :figures (figures/remembering), :by-name (by-name)}
        ended (AtomicBoolean.)
        end-timing! (time-requests! meters)]
    (bind-tasks! meters)
    (bind-scheduler! meters)
    (some->> (sampler/latest sampler) (bind-new! meters))
    (let [end-listening! (sampler/listen! sampler
                           ;; Locked: a meter that comes late would be taken from the next binder.
                           (fn [snapshot]
                             (locking ended
                               (try
                                 (when-not (.get ended) (bind-new! meters snapshot))
                                 ;; What registers may have ended this, on the same thread.
                                 (finally (when (.get ended) (remove-all! meters)))))))]
      (fn []
        (end-listening!)
        (end-timing!)
        (locking ended
          (.set ended true)
          (remove-all! meters))))))

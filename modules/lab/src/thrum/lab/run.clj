(ns thrum.lab.run
  "Runs a plan and returns its result: the plan, with samples in its rows. Emits events meanwhile.
  An exception of an experiment becomes a row that says so, and the run goes on."
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.lab.result :as result]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(def ^:private settle-ms
  "How long a sample that failed waits for the end of the run: Ctrl-C in a terminal reaches the
  lab's children too, maybe before the lab."
  100)

;; What there is to do

(defn- turns
  "Returns the index of a row for every sample of a part: row by row, or, :in-turns?, round by
  round. A row that is skipped has none."
  [{:keys [contenders in-turns?]}]
  (let [samples (for [[c row] (map-indexed vector contenders)
                      :when (not (:skipped row))
                      round (range (:repeat row))]
                  [round c])]
    (map second (if in-turns? (sort samples) samples))))

(defn- steps
  "Returns what there is to do in an experiment's plan: a path to a row for every sample."
  [parts]
  (for [[p part] (map-indexed vector parts)
        :when (not (:skipped part))
        c (turns part)]
    [p c]))

;; Samples

(defn- without-cause
  "Returns a sample that was interrupted, though the run is not over, as the failure that it is."
  [sample]
  (-> (dissoc sample :interrupted?)
      (assoc :error
             {:class "InterruptedException", :message "it was interrupted, and not by the user"})))

(defn- over-within?
  "True if the run is over, or is so within ms."
  [over ms]
  (try
    (deref over ms false)
    (catch InterruptedException _ (realized? over))))

(defn- settled
  "Returns a sample with what is known of it once it has ended: it was interrupted if the run is
  over."
  [sample over]
  (cond (not (map? sample))
        (recur {:error {:class "sample", :message "the experiment returned none"}} over)
        (over-within? over (if (or (:error sample) (:interrupted? sample)) settle-ms 0))
        (-> sample
            (dissoc :error)
            (assoc :interrupted? true))
        (:interrupted? sample) (without-cause sample)
        :else sample))

(defn- take-sample!
  "Returns a sample, of a failure too. Leaves no interrupt behind."
  [experiment env part row {:keys [emit! over]}]
  (let [sample (try
                 ((:sample! experiment) env part row #(emit! {:event :items, :count %}))
                 (catch Throwable t (trouble/sample t)))]
    (Thread/interrupted)
    (settled sample over)))

(defn- add-sample
  "Returns the plan with a sample in one of its rows; with its failure, if it cannot be summarized."
  [plan [p c] sample]
  (let [add (fn [sample] (update-in plan [:parts p :contenders c] result/add-sample sample))]
    (try
      (add sample)
      (catch Throwable t (add {:error (trouble/error t)})))))

(defn- do-step!
  "Takes one sample and returns the plan with it. Returns the plan reduced when the run is over."
  [experiment env {:keys [emit! over note!], :as run} plan [p c :as path]]
  (if (realized? over)
    (reduced plan)
    (let [part (get-in plan [:parts p])
          row (get-in part [:contenders c])]
      (note! (add-sample plan path {:interrupted? true}))
      (emit! {:event :sample-starts, :part part, :row row})
      (let [sample (take-sample! experiment env part row run)
            plan (add-sample plan path sample)]
        (note! plan)
        (emit! {:event :sample-ends
                :part part
                :row (get-in plan [:parts p :contenders c])
                :sample sample})
        plan))))

;; Experiments

(defn- skip
  "Returns the plan of an experiment with its parts skipped for a reason."
  [plan reason emit!]
  (emit! {:event :experiment-skipped, :plan plan, :reason reason})
  (update plan :parts (partial mapv #(update % :skipped (fn [known] (or known reason))))))

(defn- fail
  "Returns the plan with an error in every row that was to run and has no sample."
  [plan error]
  (reduce (fn [plan path]
            (cond-> plan
              (empty? (get-in plan [:parts (first path) :contenders (second path) :samples]))
              (add-sample path {:error error})))
          plan
          (distinct (steps (:parts plan)))))

(defn- with-row
  "Returns the plan with one more row in its last part that ran, of something beside the contenders
  that failed."
  [plan name error]
  (let [p (last (map first (steps (:parts plan))))]
    (update-in plan
               [:parts p :contenders]
               conj
               (result/add-sample {:contender :lab, :name name, :thrum? false, :repeat 0}
                                  {:error error}))))

(defn- open! [{:keys [open!]} plan]
  (try
    (open! plan)
    (catch Throwable t
      (if (trouble/usage? t)
        (throw t)
        {:failed (trouble/error t)}))))

(defn- close
  "Returns the plan, with one row more if what the experiment started cannot be closed."
  [plan {:keys [close!]}]
  (try
    (when close! (close!))
    plan
    (catch Throwable t (with-row plan "the end of the experiment" (trouble/error t)))))

(defn- run-experiment!
  [experiment plan {:keys [emit! over] :as run}]
  (emit! {:event :experiment-starts, :plan plan})
  (let [{:keys [skipped failed] :as env} (open! experiment plan)]
    (Thread/interrupted)
    (close (cond
             (realized? over) plan
             skipped (skip plan skipped emit!)
             failed (fail plan failed)
             :else (reduce #(do-step! experiment env run %1 %2) plan (steps (:parts plan))))
           env)))

(defn- attempt!
  "Runs one experiment, unless all of it is skipped, and returns its plan."
  [experiment plan run]
  (if (empty? (steps (:parts plan)))
    plan
    (run-experiment! experiment plan run)))

;; The run

(defn- not-run
  "Returns the plan of an experiment with the verdict that its rows have before any sample."
  [plan]
  (update plan
          :parts
          (partial mapv (fn [part] (update part :contenders (partial mapv result/summarize))))))

(defn- cut-short [plans i]
  (cond-> plans (contains? plans i) (update i assoc :interrupted? true)))

(defn- safely
  "Returns emit!, which may fail: a line that cannot be shown is no reason to lose a run."
  [emit!]
  (fn [event]
    (try
      (emit! event)
      (catch Throwable _))))

(defn- run-next!
  "Runs the experiment at i of the journal."
  [experiments i {:keys [journal over] :as run}]
  (let [plan (dissoc (@journal i) :interrupted?)
        note! #(swap! journal assoc i (assoc % :interrupted? true))
        done (attempt! (experiments (:experiment plan)) plan (assoc run :note! note!))]
    (if (realized? over)
      (note! done)
      (swap! journal #(cut-short (assoc % i done) (inc i))))))

(defn run!
  "Runs the experiments of a plan one after the other and returns them, with samples. experiments
  are by keyword; emit! is called with events, on any thread. over, a promise, is the run's end
  before its time: no sample and no experiment is started after it, but an interrupt has to wake the
  one that runs. An interrupt alone ends a sample, and not the run. journal is an atom: it holds at
  any moment what the result is, should the run end there."
  ([experiments plans emit!] (run! experiments plans emit! {:over (promise), :journal (atom nil)}))
  ([experiments plans emit! {:keys [over journal] :as ending}]
   (reset! journal (cut-short (mapv not-run plans) 0))
   (doseq [i (range (count plans)) :while (not (realized? over))]
     (run-next! experiments i (assoc ending :emit! (safely emit!))))
   (Thread/interrupted)
   @journal))

(ns thrum.lab.run
  "Runs a plan and returns its result: the plan, with samples in its rows. Tells what happens while it does."
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.lab.experiment :as experiment]
   [thrum.lab.result :as result]))

(set! *warn-on-reflection* true)

(defn- turns
  "Returns the index of a row for every sample of a part: row by row, or, :in-turns?, round by round. A row that is skipped has none."
  [{:keys [contenders in-turns?]}]
  (let [samples (for [[c row] (map-indexed vector contenders) :when (not (:skipped row)), round (range (:repeat row))] [round c])]
    (map second (if in-turns? (sort samples) samples))))

(defn- steps
  "Returns what there is to do in an experiment's plan: a path to a row for every sample."
  [parts]
  (for [[p part] (map-indexed vector parts)
        :when (not (:skipped part))
        c (turns part)]
    [p c]))

(defn- do-step!
  "Takes one sample and returns the plan with it. Returns it reduced when the sample was interrupted."
  [experiment env emit! plan [p c]]
  (let [part (get-in plan [:parts p]), row (get-in part [:contenders c])]
    (emit! {:event :sample-starts, :part part, :row row})
    (let [sample (experiment/sample! experiment env part row #(emit! {:event :items, :count %}))
          plan (update-in plan [:parts p :contenders c] result/add-sample sample)]
      (emit! {:event :sample-ends, :part part, :row (get-in plan [:parts p :contenders c]), :sample sample})
      (if (:interrupted? sample)
        (reduced (assoc plan :interrupted? true))
        plan))))

(defn- skip
  "Returns the plan of an experiment with its parts skipped for a reason."
  [plan reason emit!]
  (emit! {:event :experiment-skipped, :plan plan, :reason reason})
  (update plan :parts (partial mapv #(assoc % :skipped reason))))

(defn- run-experiment!
  [experiment plan emit!]
  (emit! {:event :experiment-starts, :plan plan})
  (let [{:keys [skipped close!] :as env} (experiment/open! experiment)]
    (try
      (if skipped
        (skip plan skipped emit!)
        (reduce #(do-step! experiment env emit! %1 %2) plan (steps (:parts plan))))
      (finally (close!)))))

(defn- attempt!
  "Runs one experiment; an interrupt outside of a sample leaves the plan as it is, marked."
  [experiment plan emit!]
  (try
    (run-experiment! experiment plan emit!)
    (catch InterruptedException _ (assoc plan :interrupted? true))))

(defn- not-run
  "Returns the plan of an experiment with the verdict that its rows have before any sample."
  [plan]
  (update plan :parts (partial mapv (fn [part] (update part :contenders (partial mapv result/summarize))))))

(defn run!
  "Runs the experiments of a plan one after the other and returns them, with samples; stops after one that was interrupted.
  experiments are by keyword; emit! is called with events, on any thread."
  [experiments plans emit!]
  (reduce (fn [done plan]
            (if (:interrupted? (peek done))
              (conj done plan)
              (conj done (attempt! (experiments (:experiment plan)) plan emit!))))
          [] (map not-run plans)))

(ns thrum.lab.experiment
  "What the lab knows of an experiment: a map. A plan, a sample and a result are plain EDN; only the
  environment is not.

  An experiment:
    :name     a keyword
    :doc      what it is, for a line of help
    :parts    [[part question] …], everything that it may ask
    :left-out the parts that the quick form leaves out, if any
    :toured   the parts whose figures were published, if any
    :options  its rows of tools.cli, if any
    :facts    (facts) returns a map of what its plan must know of this machine, if anything
    :plan     (plan options facts) returns its plan. Pure. options are those of the command line,
              with the :form of thrum.lab.plan/form; facts have all :facts, :cpus, and :checkout,
              the folder of the checkout of Thrum that this is, nil outside of one.
    :open!    (open! plan) starts what the samples need, a server say, and returns the environment,
              a map with :close!, a function of no arguments, if there is something to close; with
              :skipped, the reason, if only now it turned out that the experiment cannot run
    :sample!  (sample! env part row on-end) runs one contender once and returns its sample. Calls
              on-end with how many items have just ended, on any thread. An interrupt ends it early,
              with :interrupted? in the sample. What it throws becomes the sample's :error.
  and how it is shown, none of which it must have:
    :conditions (conditions part) returns what a part ran under, in a sentence or two
    :columns    the columns of its tables, see thrum.lab.columns, or a function from a part to them
    :rows       (rows part) returns the rows of a table; its contenders unless given
    :label      (label row) returns the words at the end of a row's bar, nil for the usual ones
    :figures    (figures part) returns the figures that a part is judged by; see thrum.lab.goals
    :headline   (headline rows) returns the sentence that a page opens with, or nil; rows are a
                function from a part to its rows by contender
    :meaning    (meaning part busy?) returns sentences about what the figures of a part mean
    :complaints (complaints rows machine) returns sentences about what cannot be, see
                thrum.lab.sanity; rows as of :headline

  A plan: {:experiment kw :title :about :start-ms :not-counted :parts [part …]}, :start-ms being
    what open! usually takes, :not-counted in words what no estimate can have
  A part, one question: {:part kw :title :about :scaled :n :contenders [row …]}
    :skipped with the reason if it cannot run, :in-turns? if every row is run once before any is
    run again, and :headline where a figure was published
  The :headline of a part, what reports open on and the tour runs:
    {:system :figure :pairs :beside :because :tour}
    :figure is :ms, :per-second or :threads; :pairs [[slow fast] …] are contenders, the first pair
    with figures counts; :beside [contender words] is one more figure; :because says why;
    :tour [contender …] are those that the tour runs
  A row: {:contender kw :name :limit-line-ms :estimate-ms :repeat n :published {…} :expect :breaks},
    see thrum.lab.contender/plan; :skipped with the reason if it cannot run;
    :limit-line-per-second where requests are counted; :limit-points [[n ms] …], limit lines, where
    the row is a curve
  A sample: see thrum.lab.measure/sample, or thrum.lab.server-sample/sample"
  (:require
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(defn- unplanned
  "Returns the plan of an experiment that has none of its own, since that failed."
  [{experiment :name} error]
  (let [title (name experiment)
        row {:contender :lab
             :name "the plan"
             :repeat 0
             :estimate-ms 0
             :samples [{:error error}]}]
    {:experiment experiment
     :title title
     :about "Its plan failed."
     :unplanned? true
     :parts [{:part experiment, :title title, :contenders [row]}]}))

(defn planned
  "Returns the experiment's plan; one whose only row says what happened where that fails."
  [{:keys [plan] :as experiment} options facts]
  (try
    (plan options facts)
    (catch Throwable t (unplanned experiment (trouble/error t)))))

(defn estimate-ms
  "Returns how long an experiment's plan takes, from its start to its last row, in ms; nil if that
  of a row is not known."
  [{:keys [parts start-ms]}]
  (let [rows (remove :skipped (mapcat :contenders (remove :skipped parts)))
        estimates (map :estimate-ms rows)]
    (when (every? some? estimates)
      (reduce + (or start-ms 0) estimates))))

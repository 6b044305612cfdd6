(ns thrum.lab.experiment
  "What the lab asks of an experiment. A plan, a sample and a result are plain EDN; only the environment is not.

  An experiment's plan: {:experiment kw :title :about :start-ms :not-counted :parts [part …]}, :start-ms being what open! usually takes,
    :not-counted in words what no estimate can have
  A part, one question: {:part kw :title :about :scaled :n :contenders [row …]}
    :skipped with the reason if it cannot run, :in-turns? if every row is run once before any is
    run again, and :headline where a figure was published
  A headline, what reports open on and the tour runs: {:system :figure :pairs :beside :because :tour}
    :figure is :ms, :per-second or :threads; :pairs [[slow fast] …] are contenders, the first pair
    with figures counts; :beside [contender words] is one more figure; :because says why;
    :tour [contender …] are those that the tour runs
  A row: {:contender kw :name :limit-line-ms :estimate-ms :repeat n :published {…} :expect :breaks}, see thrum.lab.contender/plan;
    :skipped with the reason if it cannot run;
    :limit-line-per-second where requests are counted; :limit-points [[n ms] …], limit lines, where the row is a curve
  A sample: see thrum.lab.measure/sample, or thrum.lab.visit/sample")

(set! *warn-on-reflection* true)

(defprotocol Experiment
  (about [this]
    "Returns {:name kw :doc sentence :parts [[kw question] …]}, what it is called and asks.")
  (plan [this options facts]
    "Returns the experiment's plan. Pure.
    options are those of the command line, with the :form of thrum.lab.plan/form.
    facts are {:cpus n :hard-file-limit? bool :engines #{kw} :spring-boot {…} :ab? bool :channels {…}}, the engines on the class path, what
    thrum.lab.spring-boot/facts returns, whether ab is installed, and what thrum.lab.channels/facts returns.")
  (open! [this]
    "Starts what the experiment needs, a server say, and returns the environment, a map with :close!, a function of no arguments;
    with :skipped, the reason, if only now it turned out that the experiment cannot run.")
  (sample! [this env part row on-end]
    "Runs one contender once and returns its sample. Calls on-end with how many items have just ended, on any thread.
    An interrupt ends it early, with :interrupted? in the sample."))

(defn estimate-ms
  "Returns how long an experiment's plan takes, from its start to its last row, in ms; nil if that of a row is not known."
  [{:keys [parts start-ms]}]
  (let [estimates (map :estimate-ms (remove :skipped (mapcat :contenders (remove :skipped parts))))]
    (when (every? some? estimates)
      (reduce + (or start-ms 0) estimates))))

(ns thrum.lab.experiment
  "What the lab asks of an experiment. A plan, a sample and a result are plain EDN; only the
  environment is not.

  An experiment's plan: {:experiment kw :title :about :start-ms :not-counted :parts [part …]},
  :start-ms being what open! usually takes,
    :not-counted in words what no estimate can have
  A part, one question: {:part kw :title :about :scaled :n :contenders [row …]}
    :skipped with the reason if it cannot run, :in-turns? if every row is run once before any is
    run again, and :headline where a figure was published
  A headline, what reports open on and the tour runs: {:system :figure :pairs :beside :because
  :tour}
    :figure is :ms, :per-second or :threads; :pairs [[slow fast] …] are contenders, the first pair
    with figures counts; :beside [contender words] is one more figure; :because says why;
    :tour [contender …] are those that the tour runs
  A row: {:contender kw :name :limit-line-ms :estimate-ms :repeat n :published {…} :expect :breaks},
  see thrum.lab.contender/plan;
    :skipped with the reason if it cannot run;
    :limit-line-per-second where requests are counted; :limit-points [[n ms] …], limit lines, where
    the row is a curve
  A sample: see thrum.lab.measure/sample, or thrum.lab.visit/sample"
  (:require
   [thrum.lab.text :as text]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(defprotocol Experiment
  (about [this]
    "Returns {:name kw :doc sentence :parts [[kw question] …]}, what it is called and asks.")
  (plan [this options facts]
    "Returns the experiment's plan. Pure. options are those of the command line, with the :form of
    thrum.lab.plan/form. facts are {:cpus n :hard-file-limit? bool :engines #{kw} :checkout path
    :spring-boot {…} :ab? bool :channels {…}}, the engines on the class path, the checkout that the
    lab runs in, what thrum.lab.spring-boot/facts returns, whether ab is installed, and what
    thrum.lab.channels/facts returns.")
  (open! [this]
    "Starts what the experiment needs, a server say, and returns the environment, a map with
    :close!, a function of no arguments, nil where nothing is to close; with :skipped, the reason,
    if only now it turned out that the experiment cannot run.")
  (sample! [this env part row on-end]
    "Runs one contender once and returns its sample. Calls on-end with how many items have just
    ended, on any thread. An interrupt ends it early, with :interrupted? in the sample. What it
    throws becomes the sample's :error."))

(defn- name-of [experiment]
  (try
    (:name (about experiment))
    (catch Throwable _ (keyword (text/class-word experiment)))))

(defn- unplanned
  "Returns the plan of an experiment that has none of its own, since that failed."
  [experiment error]
  (let [name (name-of experiment)]
    {:experiment name
     :title (clojure.core/name name)
     :about "Its plan failed."
     :unplanned? true
     :parts [{:part name
              :title (clojure.core/name name)
              :contenders [{:contender :lab
                            :name "the plan"
                            :repeat 0
                            :estimate-ms 0
                            :samples [{:error error}]}]}]}))

(defn planned
  "Returns the experiment's plan; one whose only row says what happened where plan throws."
  [experiment options facts]
  (try
    (plan experiment options facts)
    (catch Throwable t (unplanned experiment (trouble/error t)))))

(defn estimate-ms
  "Returns how long an experiment's plan takes, from its start to its last row, in ms; nil if that
  of a row is not known."
  [{:keys [parts start-ms]}]
  (let [estimates (map :estimate-ms (remove :skipped (mapcat :contenders (remove :skipped parts))))]
    (when (every? some? estimates)
      (reduce + (or start-ms 0) estimates))))

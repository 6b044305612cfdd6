(ns thrum.lab.experiments
  "The lab's experiments. A new one stands in one of these lists, and is named nowhere else."
  (:require
   [thrum.lab.checkout :as checkout]
   [thrum.lab.machine :as machine]))

(set! *warn-on-reflection* true)

(defn- load-all
  "Returns the experiments that these symbols name: of one, or of a vector of several."
  [symbols]
  (into [] (mapcat #(let [found @(requiring-resolve %)] (if (map? found) [found] found))) symbols))

(def all
  "What the lab measures, in the order of a run."
  (load-all '[thrum.lab.experiments.fan-out.experiment/experiment
              thrum.lab.experiments.scope.experiment/experiment
              thrum.lab.experiments.jdbc.experiment/experiment
              thrum.lab.experiments.ring.experiment/experiments
              thrum.lab.experiments.spring-tomcat.experiment/experiment
              thrum.lab.experiments.go-blocks.experiment/experiment
              thrum.lab.experiments.pipelines.experiment/experiment
              thrum.lab.experiments.cluster.experiment/experiment]))

(def own
  "What runs the user's own work."
  (load-all '[thrum.lab.experiments.own.urls/experiment
              thrum.lab.experiments.own.calls/experiment
              thrum.lab.experiments.own.handler/experiment]))

(def benchmarks
  "What Thrum itself costs, in the order of a run. A delay, since they take longer to load than all
  else together, and most runs need none of them."
  (delay
    (load-all '[thrum.lab.benchmarks.overhead.experiment/experiment
                thrum.lab.benchmarks.scopes.experiment/experiment
                thrum.lab.benchmarks.sleeps.experiment/experiment
                thrum.lab.benchmarks.parked.experiment/experiment
                thrum.lab.benchmarks.cancel.experiment/experiment
                thrum.lab.benchmarks.limiter.experiment/experiment
                thrum.lab.benchmarks.overload.experiment/experiment
                thrum.lab.benchmarks.laziness.experiment/experiment
                thrum.lab.benchmarks.stream.experiment/experiment
                thrum.lab.benchmarks.pipelines.experiment/experiment
                thrum.lab.benchmarks.statement.experiment/experiment
                thrum.lab.benchmarks.context.experiment/experiment
                thrum.lab.benchmarks.servers.experiment/experiment
                thrum.lab.benchmarks.faults.experiment/experiment])))

(defn- indexed [experiments]
  (into {} (map (juxt :name identity)) experiments))

(def ^:private experiments-by-name (indexed (concat all own)))

(def ^:private benchmarks-by-name (delay (indexed @benchmarks)))

(defn by-name
  "Returns the experiment or benchmark of that name, or nil."
  [named]
  (if (= "bench" (some-> named namespace))
    (@benchmarks-by-name named)
    (experiments-by-name named)))

(def toured
  "The parts whose figures were published, in the order of a run."
  (into [] (mapcat :toured) all))

(defn owners
  "Returns the name of the experiment that each name, of an experiment or of one of its parts,
  belongs to."
  [experiments]
  (into {}
        (for [{owner :name, parts :parts} experiments, named (cons owner (map first parts))]
          [named owner])))

(defn chosen
  "Returns the experiments that the options ask for."
  [{:keys [urls call handler bench only]}]
  (cond
    bench (if only (mapv by-name only) (remove :only-by-name? @benchmarks))
    urls [(by-name :urls)]
    call [(by-name :calls)]
    handler [(by-name :handler)]
    :else all))

(defn facts
  "Returns what the plans of experiments must know of this machine. Runs small commands."
  [experiments]
  (into {:cpus (machine/cpus), :checkout (checkout/folder)}
        (map #(%))
        (distinct (keep :facts experiments))))

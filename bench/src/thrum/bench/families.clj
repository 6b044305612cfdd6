(ns thrum.bench.families
  "Everything that the benchmark measures, by name. A family is a map:
    :title, :about  for the table
    :jvm-opts       the flags of its JVMs
    :jobs           from :full or :quick to its jobs, maps of EDN; each gets JVMs of its own
    :measure        in a child JVM: from a job to its raw figures, EDN
    :rows           from [{:job, :runs}] to the rows of the table; the ratios are taken here
    :columns        see thrum.bench.table; or a function from rows to them"
  (:require
   [thrum.bench.family.cancel :as cancel]
   [thrum.bench.family.laziness :as laziness]
   [thrum.bench.family.limiter :as limiter]
   [thrum.bench.family.overhead :as overhead]
   [thrum.bench.family.parked :as parked]
   [thrum.bench.family.pipelines :as pipelines]
   [thrum.bench.family.scopes :as scopes]
   [thrum.bench.family.servers :as servers]
   [thrum.bench.family.sleeps :as sleeps]
   [thrum.bench.family.stream :as stream]))

(set! *warn-on-reflection* true)

(def order
  "The names, in the order of the report."
  [:overhead :scopes :sleeps :parked :cancel :limiter :laziness :stream :pipelines :servers])

(def by-name
  {:overhead overhead/family, :scopes scopes/family, :sleeps sleeps/family, :parked parked/family
   :cancel cancel/family, :limiter limiter/family, :laziness laziness/family, :stream stream/family
   :pipelines pipelines/family
   :servers servers/family})

(defn jvm-opts
  "Returns the flags of a family's JVMs. The quick form measures nothing, and does without the
  optimising compiler."
  [family size]
  (cond-> (:jvm-opts (by-name family))
    (= :quick size) (conj "-XX:TieredStopAtLevel=1")))

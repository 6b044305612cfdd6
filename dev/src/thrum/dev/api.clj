(ns thrum.dev.api
  "What users may call, as data: doc/reference/api.edn. Written by ./cljw -M:api; a test compares it
  with the code, so that no name, arity or option changes unseen."
  (:require
   [clojure.edn :as edn]
   [clojure.pprint :as pprint]
   [thrum.dev.options :as options]))

(set! *warn-on-reflection* true)

(def path
  "Where the file is."
  "doc/reference/api.edn")

(def ^:private namespaces
  "The namespaces that doc/reference/stability.md speaks of."
  '[thrum.core thrum.adaptive thrum.async thrum.async.executor thrum.jdbc thrum.cluster
    thrum.context.mdc thrum.context.otel
    thrum.server thrum.server.tck thrum.server.tck.assertions thrum.watch thrum.watch.micrometer
    thrum.spi thrum.spi.fan-out thrum.spi.options thrum.spi.watch thrum.server.spi
    thrum.server.spi.exchanges thrum.cluster.spi])

(defn- arity
  "Returns how many arguments a list takes: 2, or [:from 2]."
  [arglist]
  (let [fixed (count (take-while #(not= '& %) arglist))]
    (if (= fixed (count arglist)) fixed [:from fixed])))

(defn- face [v]
  (let [{:keys [arglists macro dynamic protocol deprecated]} (meta v)]
    (cond-> {}
      arglists (assoc :arities (mapv arity arglists))
      macro (assoc :macro true)
      dynamic (assoc :dynamic true)
      protocol (assoc :of (:name (meta protocol)))
      deprecated (assoc :deprecated deprecated))))

(defn- publics [ns-sym]
  (require ns-sym)
  (into (sorted-map)
        (for [[sym v] (ns-publics ns-sym)
              :let [{:keys [line no-doc]} (meta v)]
              :when (and line (not no-doc))]
          [sym (face v)])))

(defn- option-rows
  "Returns section -> {option default}."
  []
  (into (sorted-map)
        (for [[section file definition rows] options/places]
          [section (into (sorted-map)
                         (for [k (options/listed (slurp file) definition)]
                           [k (str (:default (rows k)))]))])))

(defn found
  "Returns what the code offers: {:namespaces {ns {name face}}, :options {section {option
  default}}}."
  []
  {:namespaces (into (sorted-map) (map (juxt identity publics)) namespaces)
   :options (option-rows)})

(defn written
  "Returns what the file says."
  []
  (edn/read-string (slurp path)))

(defn -main
  "Writes the file from the code."
  [& _]
  (spit path
        (str ";; What users may call. Written by ./cljw -M:api; "
             "a change asks for a line in CHANGELOG.md.\n"
             (with-out-str (pprint/pprint (found))))))

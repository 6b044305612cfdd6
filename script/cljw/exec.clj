(ns cljw.exec
  "Calls a function with a map, as -X and -T of the Clojure CLI do: exec.clj [fn] [kpath v ...]
  [map]."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]))

(set! *warn-on-reflection* true)

(defn argmap
  "Returns the :argmap of the basis that the property clojure.basis names."
  []
  (:argmap (edn/read-string {:default tagged-literal}
                            (slurp (System/getProperty "clojure.basis")))))

(defn read-arg
  "Returns the EDN form in s; what is no EDN is refused with a sentence."
  [s]
  (try (edn/read-string {:default tagged-literal} s)
       (catch Exception e
         (throw (ex-info (str "Not readable as EDN: " s) {:arg s} e)))))

(defn parse
  "Returns {:fn symbol-or-nil, :args map} for the forms of the command line. A key path is a key or
  a vector of keys; a trailing map is merged last."
  [forms exec-args]
  (let [named? (symbol? (first forms))
        pairs (cond-> forms named? rest)
        trailing (when (odd? (count pairs)) (last pairs))]
    (when-not (or (nil? trailing) (map? trailing))
      (throw (ex-info (str "Key is missing value: " (pr-str trailing)) {:key trailing})))
    {:fn (when named? (first forms))
     :args (merge (reduce (fn [m [k v]] (if (vector? k) (assoc-in m k v) (assoc m k v)))
                          exec-args
                          (map vec (partition 2 pairs)))
                  trailing)}))

(defn qualify
  "Returns sym with its namespace: an alias of ns-aliases resolved, ns-default where it has none."
  [sym {:keys [ns-default ns-aliases]}]
  (cond (nil? sym) (throw (ex-info "No function found on the command line or in :exec-fn" {}))
        (namespace sym) (symbol (str (get ns-aliases (symbol (namespace sym)) (namespace sym)))
                                (name sym))
        ns-default (symbol (str ns-default) (name sym))
        :else (throw (ex-info (str "Unqualified function can't be resolved: " sym) {:fn sym}))))

(defn- there?
  "True if the namespace is loaded, or on the class path."
  [ns-name]
  (let [path (.replace ^String (namespace-munge ns-name) \. \/)]
    (or (find-ns ns-name)
        (some #(io/resource (str path %)) [".clj" ".cljc" "__init.class"]))))

(defn function
  "Returns the var that sym names; one that is not there is refused with a sentence."
  [sym]
  (or (when (there? (symbol (namespace sym))) (requiring-resolve sym))
      (throw (ex-info (str "There is no function " sym) {:fn sym}))))

(defn -main
  "Calls what the arguments and the basis name; a mistake in them is one line on stderr and exit
  code 1."
  [& args]
  (let [{:keys [exec-fn exec-args] :as argmap} (argmap)
        [f m] (try
                (let [{sym :fn, m :args} (parse (map read-arg args) exec-args)]
                  [(function (qualify (or sym exec-fn) argmap)) m])
                (catch clojure.lang.ExceptionInfo e
                  (binding [*out* *err*] (println (ex-message e)))
                  (System/exit 1)))]
    (f m)))

(apply -main *command-line-args*)

(ns thrum.cluster.impl.function
  "Functions travel as the names of vars, with a fingerprint of the source that they come from. A
  member runs only what its allow-list names."
  {:no-doc true}
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.spi :as spi])
  (:import
   (clojure.lang Var)
   (java.security MessageDigest)
   (java.util HexFormat)
   (java.util.concurrent ConcurrentHashMap)))

(set! *warn-on-reflection* true)

;; The fingerprint

(defn- source [ns-name]
  (let [path (str/replace (namespace-munge ns-name) "." "/")]
    (some #(io/resource (str path %)) [".clj" ".cljc"])))

(defn- hash-of [url]
  (with-open [in (io/input-stream url)]
    (.formatHex (HexFormat/of)
                (.digest (MessageDigest/getInstance "SHA-256") (.readAllBytes in))
                0 8)))

;; A source may change on disk while the code that was loaded from it runs. So it is read once, and
;; again when a function of the namespace is another object than it was then, and still of a class
;; named after its var: the namespace has been loaded anew. What with-redefs or a tracer puts in a
;; function's place is of another class.

(def ^:private ^ConcurrentHashMap loaded
  "By namespace name: {:ns namespace, :code hash, :functions {var f}}."
  (ConcurrentHashMap.))

(defn- own-function
  "Returns [var function] if the var holds what a defn of its name made; nil otherwise."
  [^Var v]
  (let [f (.getRawRoot v)]
    (when (= (some-> (class f) .getName)
             (str (namespace-munge (ns-name (.ns v))) "$" (munge (name (.sym v)))))
      [v f])))

(defn- read-now [ns]
  {:ns ns
   :code (or (some-> (source (ns-name ns)) hash-of) "")
   :functions (into {} (keep own-function) (vals (ns-publics ns)))})

(defn- replaced?
  "True if the var has got another function of its own than f."
  [^Var v f]
  (and (not (identical? f (.getRawRoot v)))
       (some? (own-function v))))

(defn- current? [{:keys [ns functions]} ^Var v]
  (and (identical? ns (.ns v))
       (not-any? (fn [[v f]] (replaced? v f)) functions)
       (or (contains? functions v) (nil? (own-function v)))))

(defn remember!
  "Reads the source of the namespace, which was loaded just now, unless it is known."
  [ns]
  (.computeIfAbsent loaded (ns-name ns) (fn [_] (read-now ns))))

(defn fingerprint
  "Returns a short hash of the source of the var's namespace, or \"\" where there is no source to
  read: as it was when it was read first since the namespace was loaded."
  [^Var v]
  (let [ns (.ns v), known (.get loaded (ns-name ns))]
    (:code (if (current? known v)
             known
             (.compute loaded
                       (ns-name ns)
                       (fn [_ known] (if (current? known v) known (read-now ns))))))))

(defn- public-function? [v]
  (and (var? v) (fn? @v) (not (:macro (meta v))) (not (:private (meta v)))))

;; On the caller

(defn reference
  "Returns {:function name, :code fingerprint} for a var that holds a function. Throws
  :thrum/invalid for anything else."
  [v]
  (when-not (public-function? v)
    (throw (spi/invalid (str "What runs on a cluster is a var that holds a function, as in"
                          " (cluster/pmap c 8 #'my.ns/f coll); not " (spi/text v)
                          (when (fn? v) ": a function alone cannot travel")
                          (when (and (var? v) (:private (meta v))) ": it is private"))
             {:value v, :accepts "a public var that holds a function"})))
  {:function (str (symbol v)), :code (fingerprint v)})

;; On the member

(defn- refused [node function reason message]
  (ex-info message
           {:type :thrum/refused, :reason reason, :member node, :function (symbol function)}))

(defn refused-version
  "Returns the answer to a request in another version of the protocol."
  [node theirs ours]
  (ex-info (str "The member " node " speaks version " ours
                " of the cluster's protocol, the caller version " theirs)
           {:type :thrum/refused, :reason :version, :member node}))

(defn refused-secret
  "Returns the answer to a node with another secret."
  [node]
  (ex-info (str "The member " node " has another secret than this node, or one of them has none")
           {:type :thrum/refused, :reason :secret, :member node}))

(defn- load! [ns-name]
  (try
    (require ns-name)
    (catch Exception e
      (throw (ex-info (str "The namespace " ns-name " of :allow cannot be loaded: " (ex-message e))
                      {:type :thrum/invalid, :option :allow, :value ns-name}
                      e)))))

(defn registry
  "Returns what a member may run: the namespaces of the set, which are loaded here and now. Throws
  :thrum/invalid where one cannot be loaded."
  [node allow]
  (run! load! allow)
  (run! #(some-> (find-ns %) remember!) allow)
  {:node node, :allowed (into #{} (map str) allow)})

(defn- check-allowed! [{:keys [node allowed]} function ns-name]
  (when-not (contains? allowed ns-name)
    (throw (refused node function :not-allowed
                    (str "The member " node " does not run " function
                         ": its namespace is not among the allowed: "
                         (str/join ", " (sort allowed)))))))

(defn- look-up [{:keys [node] :as registry} function]
  (let [sym (symbol function)
        v (do (check-allowed! registry function (namespace sym)) (find-var sym))]
    (when-not (public-function? v)
      (throw (refused node function :missing
                      (str "The member " node " has no public function " function
                           ": it runs other code than the caller"))))
    v))

(defn- check-code! [{:keys [node]} function code v]
  (let [ours (fingerprint v)]
    (when-not (or (= code ours) (= "" code) (= "" ours))
      (throw (refused node function :differs
                      (str "The member " node " has another version of " function
                           ": the source of its namespace is " ours ", the caller's " code))))))

(defn resolve!
  "Returns the var of that name. Throws :thrum/refused, which names the member, where it is not
  allowed, not there, or comes from another source."
  [registry function code]
  (doto (look-up registry function)
    (->> (check-code! registry function code))))

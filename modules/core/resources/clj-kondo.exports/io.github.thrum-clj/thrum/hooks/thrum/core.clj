(ns hooks.thrum.core
  "What clj-kondo sees instead of the macros of thrum.core that bind names. What a hook throws is
  reported at the call.")

(defn- refuse [message form]
  (throw (ex-info (str message ", not " (pr-str form)) {:level :error})))

(defmacro with-executor [binding & body]
  (when-not (and (vector? binding) (symbol? (first binding)) (<= (count binding) 2))
    (refuse "with-executor takes [name] or [name options]" binding))
  (let [[executor options] binding]
    `(thrum.core/with-executor-call ~(or options {}) (fn [~executor] ~@body))))

(defmacro with-scope [binding & body]
  (when-not (and (vector? binding) (symbol? (first binding)) (<= (count binding) 2))
    (refuse "with-scope takes [name] or [name options]" binding))
  (let [[scope options] binding]
    `(thrum.core/with-scope-call ~(or options {}) (fn [~scope] ~@body))))

(defmacro future-via [binding & body]
  (when-not (and (vector? binding) (= 1 (count binding)))
    (refuse "future-via takes [executor]" binding))
  `(thrum.core/future-via-call ~(first binding) (fn [] ~@body)))

(defmacro pfor [& [limit bindings body :as arguments]]
  (when-not (= 3 (count arguments))
    (refuse "pfor takes a limit, bindings and one body" arguments))
  `(thrum.core/pfor-call ~limit (clojure.core/for ~bindings (fn [] ~body))))

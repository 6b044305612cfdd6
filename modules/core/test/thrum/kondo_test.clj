(ns thrum.kondo-test
  "The configuration for clj-kondo that travels in the jar knows every macro of thrum.core, and its
  hooks are true."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is testing]]
   [thrum.core :as t])
  (:import
   (clojure.lang Compiler$CompilerException ExceptionInfo)))

(set! *warn-on-reflection* true)

(def ^:private folder "clj-kondo.exports/io.github.thrum-clj/thrum/")

(def ^:private need-nothing
  "The macros whose arguments are plain expressions."
  '#{thrum.core/thread thrum.core/future thrum.core/pvalues thrum.core/fork thrum.core/all
     thrum.core/hedge thrum.core/race thrum.core/any thrum.core/settle thrum.core/with-timeout
     thrum.core/with-deadline thrum.core/shield thrum.core/with-permit thrum.core/retry
     thrum.core/abandon-on-interrupt thrum.core/on-cancel})

(defn- config []
  (edn/read-string (slurp (io/resource (str folder "config.edn")))))

(defn- hook-of [config macro]
  (or (get-in config [:hooks :macroexpand macro]) (get-in config [:lint-as macro])))

(defn- configured [{:keys [lint-as hooks]}]
  (into (set (keys lint-as)) (mapcat keys) (vals hooks)))

(defn- public-macros []
  (into #{} (comp (filter #(:macro (meta %))) (map symbol)) (vals (ns-publics 'thrum.core))))

(defn- load-hooks! []
  (load-string (slurp (io/resource (str folder "hooks/thrum/core.clj")))))

(defn- seen-by-kondo
  "Returns the form as the hook of its macro expands it."
  [[macro & args]]
  (load-hooks!)
  (macroexpand-1 (cons (hook-of (config) macro) args)))

(deftest every-macro-is-configured-or-needs-nothing
  (is (= (public-macros) (into need-nothing (configured (config)))))
  (is (not-any? (configured (config)) need-nothing)))

(deftest the-configuration-names-what-exists
  (load-hooks!)
  (doseq [macro (configured (config))]
    (testing macro
      (is (:macro (meta (resolve macro))))
      (is (:macro (meta (resolve (hook-of (config) macro))))))))

(deftest what-the-hooks-expand-to-does-what-the-macros-do
  (doseq [[form value]
          '{(thrum.core/with-executor [exe] @(thrum.core/future-via [exe] 1 (+ 1 1))) 2
            (thrum.core/with-executor [exe {:on-exit :cancel}]
                                      (instance? java.util.concurrent.Executor exe))
            true
            (thrum.core/with-executor [exe]) nil
            (thrum.core/with-scope [s] @(thrum.core/fork s (+ 1 1))) 2
            (thrum.core/with-scope [s {:timeout-ms 60000}]) nil
            (thrum.core/plet [a 1 [b] [2]] [a b]) [1 2]
            (thrum.core/pfor 2 [a [1 2 3] :when (odd? a) :let [b (* a a)]] [a b]) ([1 1] [3 9])
            (thrum.core/pfor {:limit 2, :name "p"} [a [1 2] b [3 4] :while (< a 2)] (* a b)) (3 4)
            (thrum.core/for [a [1 2 3] :while (< a 3)] (inc a)) (2 3)}]
    (testing (pr-str form) (is (= value (eval form))) (is (= value (eval (seen-by-kondo form))))))
  (is (= 3
         (t/with-executor
           [exe]
           @((eval (list 'fn '[exe] (seen-by-kondo '(thrum.core/future-via [exe] (+ 1 2)))))
             exe)))))

(defn- refusal [form]
  (try
    (seen-by-kondo form)
    nil
    (catch Compiler$CompilerException e (ex-message (ex-cause e)))
    (catch ExceptionInfo e (ex-message e))))

(deftest a-wrong-shape-is-answered-in-a-sentence
  (doseq [[form message]
          '{(thrum.core/with-executor exe 1)
            "with-executor takes [name] or [name options], not exe"
            (thrum.core/with-executor []) "with-executor takes [name] or [name options], not []"
            (thrum.core/with-executor [a {} b])
            "with-executor takes [name] or [name options], not [a {} b]"
            (thrum.core/with-scope 1 2) "with-scope takes [name] or [name options], not 1"
            (thrum.core/future-via exe 1) "future-via takes [executor], not exe"
            (thrum.core/future-via [] 1) "future-via takes [executor], not []"
            (thrum.core/future-via [a b] 1) "future-via takes [executor], not [a b]"
            (thrum.core/pfor 2 [a xs]) "pfor takes a limit, bindings and one body, not (2 [a xs])"}]
    (is (= message (refusal form)))))

(ns thrum.server.impl.engines
  "The engines that there are, found by name when they are asked for."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.spi :as spi]))

(set! *warn-on-reflection* true)

(def ^:private homes
  "Where each engine is defined, and what to add for it."
  {:jdk ['thrum.server.engine.jdk "nothing: it is part of Thrum's server"]
   :jetty ['thrum.server.engine.jetty "io.github.thrum-clj/thrum-server-jetty"]
   :tomcat ['thrum.server.engine.tomcat "io.github.thrum-clj/thrum-server-tomcat"]
   :http-kit ['thrum.server.engine.http-kit
              "io.github.thrum-clj/thrum-server-http-kit, and http-kit/http-kit 2.9.0 or newer"]
   :helidon ['thrum.server.engine.helidon "io.github.thrum-clj/thrum-server-helidon"]})

(def names
  "The engines that there are."
  (vec (keys homes)))

(defn- missing [engine what cause]
  (ex-info (str "The engine " engine " is not on the classpath: add " what)
           {:type :thrum/invalid, :option :engine, :value engine, :accepts names}
           cause))

(defn- class-missing
  "Returns the exception for an engine of which a class is not found: the JDK's, where that lacks a
  module, or a library's. Without its cause, which a REPL would print in its place."
  [engine what ^String class-name]
  (ex-info (str "The engine " engine " needs the class " class-name ", which is not there: add "
                (if (re-find #"^(java|javax|jdk|sun|com\.sun)\." class-name)
                  "the JDK's module that has it, by --add-modules"
                  what))
           {:type :thrum/invalid, :option :engine, :value engine, :accepts names}))

(defn- class-not-found
  "Returns the ClassNotFoundException that e is, or that has stopped the compiler; or nil."
  [e]
  (let [root (last (take-while some? (iterate ex-cause e)))]
    (when (instance? ClassNotFoundException root) root)))

(defn- not-found?
  "True if the exception says no more than that the namespace itself is not there."
  [home e]
  (let [path (str/replace (munge (name home)) "." "/")]
    (str/includes? (str (ex-message e)) (str path "__init.class"))))

(defn named
  "Returns the engine of that name, loading its namespace. Throws :thrum/invalid when there is none,
  or it is not on the classpath."
  [engine]
  (let [[home what] (homes engine)]
    (when-not home
      (throw (spi/invalid (str "There is no engine " (spi/text engine) "; known are " names)
               {:option :engine, :value engine, :accepts names})))
    (try
      @(requiring-resolve (symbol (name home) "engine"))
      (catch java.io.FileNotFoundException e
        ;; A REPL prints the last cause in place of the sentence.
        (throw (missing engine what (when-not (not-found? home e) e))))
      (catch Exception e
        (throw (if-some [absent (class-not-found e)]
                 (class-missing engine what (ex-message absent))
                 e))))))

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

(def ^:private of-jdk
  "What the names of the JDK's classes begin with."
  #"^(java|jdk|sun|com\.sun|javax\.(management|naming|net|security|sql|xml))\.")

(defn- class-missing
  "Returns the exception for an engine of which a class is not found: the JDK's, where that lacks a
  module, or a library's. e is suppressed on it: a REPL would print a cause in its place."
  [engine what class-name e]
  (doto (ex-info (str "The engine " engine " needs the class " class-name
                      ", which is not there: add "
                      (if (re-find of-jdk class-name)
                        "the JDK's module that has it, by --add-modules"
                        what))
                 {:type :thrum/invalid, :option :engine, :value engine, :accepts names})
    (Throwable/.addSuppressed e)))

(defn- class-not-found
  "Returns the name of the class whose absence is the cause of e; nil where it has another."
  [e]
  (let [root (last (take-while some? (iterate ex-cause e)))]
    (when (or (instance? ClassNotFoundException root) (instance? NoClassDefFoundError root))
      ;; Other words: a class that is there and could not be initialized.
      (re-matches #"\S+" (str/replace (str (ex-message root)) "/" ".")))))

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
      (catch Throwable e
        (throw (if-some [absent (class-not-found e)]
                 (class-missing engine what absent e)
                 e))))))

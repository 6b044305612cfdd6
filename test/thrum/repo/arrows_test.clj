(ns thrum.repo.arrows-test
  "The picture of the design's first chapter as data, checked against every ns form."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [clojure.tools.namespace.parse :as parse]
   [thrum.repo.files :as files]))

(set! *warn-on-reflection* true)

(def arrows
  "What each module may use: modules below it, namespaces of libraries, and packages of Java. A
  module that is not here may not exist."
  {"core"
   {:modules #{}, :libraries #{}, :packages ["java." "javax." "clojure.lang." "jdk." "com.sun."]}
   "async" {:modules #{"core"}
            :libraries #{'clojure.core.async 'clojure.core.async.impl.channels
                         'clojure.core.async.impl.dispatch 'clojure.core.async.impl.protocols}
            :packages ["java." "clojure.lang." "clojure.core.async.impl."]}
   "java"
   {:modules #{"core"}, :libraries #{}, :packages ["java." "clojure.lang." "clojure.java.api."]}
   "lab" {:modules #{"core" "async" "server" "server-jetty" "server-tomcat" "server-helidon"}
          :libraries #{'clojure.tools.cli 'clojure.core.async 'clojure.data.json}
          :packages ["java." "javax." "clojure.lang." "jdk." "com.sun." "sun.misc."
                     "org.HdrHistogram." "org.eclipse.jetty." "jakarta.servlet."
                     "org.apache.catalina." "org.apache.coyote." "io.helidon."]}
   "server" {:modules #{"core"}
             :libraries #{}
             :packages ["java." "javax." "clojure.lang." "com.sun.net.httpserver."]}
   "server-tck" {:modules #{}, :libraries #{}, :packages ["java." "javax." "clojure.lang."]}
   "server-jetty" {:modules #{"core" "server"}
                   :libraries #{}
                   :packages ["java." "javax." "clojure.lang." "org.eclipse.jetty."]}
   "server-tomcat" {:modules #{"core" "server"}
                    :libraries #{}
                    :packages ["java." "javax." "clojure.lang." "jakarta.servlet."
                               "jakarta.websocket." "org.apache.coyote." "org.apache.tomcat."]}
   "server-http-kit"
   {:modules #{"core" "server"}, :libraries #{}, :packages ["java." "javax." "clojure.lang."]}
   "server-helidon" {:modules #{"core" "server"}
                     :libraries #{}
                     :packages ["java." "javax." "clojure.lang." "io.helidon."]}
   "test-kit" {:modules #{}
               :libraries #{'clojure.tools.namespace.find}
               :packages ["java." "javax." "clojure.lang." "jdk." "com.sun."]}})

(def clojure-itself
  "The namespaces inside Clojure's own jar that a library may need."
  '#{clojure.core.protocols clojure.data clojure.datafy clojure.edn clojure.inspector
     clojure.instant clojure.java.basis clojure.java.browse clojure.java.io clojure.java.process
     clojure.java.shell clojure.main clojure.math clojure.pprint clojure.repl clojure.set
     clojure.spec.alpha clojure.stacktrace clojure.string clojure.template clojure.test clojure.walk
     clojure.xml clojure.zip})

(defn- imports
  "Returns the names of the classes that a ns form imports."
  [ns-decl]
  (for [[key & specs] (filter seq? ns-decl) :when (= :import key)
        spec specs
        class (if (symbol? spec) [spec] (map #(str (first spec) "." %) (rest spec)))]
    (str class)))

(defn- namespace-of
  "Returns the namespace that would have made the class of this name: thrum.test-kit.x for
  thrum.test_kit.x.Y."
  [class-name]
  (symbol (str/replace (subs class-name 0 (str/last-index-of class-name ".")) "_" "-")))

(defn violations
  "Returns the names that the ns form of a module uses against its arrows; owner maps a namespace to
  its module."
  [module owner ns-decl]
  (let [{:keys [modules libraries packages]} (arrows module)
        below? #(or (= module (owner %)) (modules (owner %)))
        in-packages? (fn [class] (some #(str/starts-with? class %) packages))]
    (concat (remove (some-fn clojure-itself libraries below?) (parse/deps-from-ns-decl ns-decl))
            (remove (some-fn in-packages? (comp below? namespace-of)) (imports ns-decl)))))

(defn- decls-by-module
  []
  (into {} (map (juxt identity #(files/ns-decls (files/source-folder %)))) (files/modules)))

(defn- owners
  [decls]
  (into {} (for [[module ns-decls] decls, decl ns-decls] [(parse/name-from-ns-decl decl) module])))

(deftest every-module-is-in-the-picture
  (is (= (set (files/modules)) (set (keys arrows)))))

(deftest arrows-only-point-down
  (let [decls (decls-by-module)]
    (doseq [[module ns-decls] decls, decl ns-decls]
      (is (= [] (violations module (owners decls) decl)) (str (parse/name-from-ns-decl decl))))))

(defn- java-imports
  "Returns the names that a Java source imports."
  [source]
  (map second (re-seq #"(?m)^import (?:static )?([\w.*]+);" source)))

(defn java-violations
  "Returns what the Java source of a module imports against its arrows."
  [module source]
  (let [{:keys [packages]} (arrows module)]
    (remove (fn [class] (some #(str/starts-with? class %) packages)) (java-imports source))))

(deftest imports-of-java-only-point-down
  (let [paths (filter #(re-matches #"modules/[^/]+/src/.*\.java" %) (files/committed))]
    (is (= #{"java"} (into #{} (map #(second (str/split % #"/"))) paths)))
    (doseq [path paths]
      (is (= [] (java-violations (second (str/split path #"/")) (slurp (io/file path)))) path))
    (is (= ["org.eclipse.jetty.Server"]
           (java-violations
             "java"
             "package x;\nimport java.util.List;\nimport org.eclipse.jetty.Server;\n")))))

(deftest nobody-in-core-goes-through-the-front-door
  (doseq [decl (files/ns-decls (files/source-folder "core"))]
    (is (not (contains? (parse/deps-from-ns-decl decl) 'thrum.core))
        (str (parse/name-from-ns-decl decl)))))

(deftest only-the-labs-main-and-ending-exit
  (is (= #{"modules/lab/src/thrum/lab/ending.clj" "modules/lab/src/thrum/lab/main.clj"}
         (into #{}
               (filter #(and (re-matches #"modules/(core|lab)/src/.*\.clj" %)
                             (str/includes? (slurp %) "System/exit")))
               (files/committed)))))

(deftest an-arrow-that-points-up-is-seen
  (let [owner {'thrum.lab.plan "lab", 'thrum.impl.task "core"}]
    (is (= '[thrum.lab.plan]
           (violations "core"
                       owner
                       '(ns thrum.x
                          (:require [thrum.lab.plan :as p]
                                    [thrum.impl.task]
                                    [clojure.set])))))
    (is (= '[clojure.core.async]
           (violations "core"
                       owner
                       '(ns thrum.x
                          (:require [clojure.core.async :as a])))))
    (is (= ["org.eclipse.jetty.Server"]
           (violations "core"
                       owner
                       '(ns thrum.x
                          (:import (org.eclipse.jetty Server)
                                   java.io.File)))))
    (is (= ["thrum.lab.plan.Plan"]
           (violations "core"
                       owner
                       '(ns thrum.x
                          (:import (thrum.lab.plan Plan)
                                   (thrum.impl.task Task))))))
    (is (= []
           (violations "lab"
                       owner
                       '(ns thrum.lab.y
                          (:require [thrum.impl.task]
                                    [clojure.tools.cli :as cli])))))))

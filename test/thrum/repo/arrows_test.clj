(ns thrum.repo.arrows-test
  "The picture of promises §1 as data, checked against every ns form."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [clojure.tools.namespace.file :as ns-file]
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
   "adaptive"
   {:modules #{"core"}, :libraries #{}, :packages ["java." "com.netflix.concurrency.limits."]}
   "context"
   {:modules #{"core"}, :libraries #{}, :packages ["java." "org.slf4j." "io.opentelemetry."]}
   "jdbc" {:modules #{"core"}, :libraries #{}, :packages ["java." "javax.sql."]}
   "cluster" {:modules #{"core"}
              :libraries #{'clojure.data.fressian}
              :packages ["java." "javax.crypto." "clojure.lang." "org.fressian." "org.infinispan."
                         "org.jgroups."]}
   "cluster-hazelcast"
   {:modules #{"core" "cluster"}, :libraries #{}, :packages ["java." "com.hazelcast."]}
   "java"
   {:modules #{"core"}, :libraries #{}, :packages ["java." "clojure.lang." "clojure.java.api."]}
   "lab" {:modules #{"core" "adaptive" "async" "context" "jdbc" "server" "server-jetty"
                     "server-tomcat" "server-helidon" "watch"}
          :libraries #{'clojure.tools.cli 'clojure.core.async 'clojure.data.json}
          :packages ["java." "javax." "clojure.lang." "jdk." "com.sun." "sun.misc."
                     "com.zaxxer.hikari." "io.opentelemetry." "org.slf4j." "org.HdrHistogram."
                     "org.eclipse.jetty." "jakarta.servlet."
                     "org.apache.catalina." "org.apache.coyote." "io.helidon."
                     "io.micrometer." "clojure.asm."]}
   "server" {:modules #{"core"}
             :libraries #{}
             :packages ["java." "javax." "clojure.lang." "com.sun.net.httpserver."]}
   "server-tck" {:modules #{}, :libraries #{}, :packages ["java." "javax." "clojure.lang."]}
   "server-http1"
   {:modules #{"core" "server"}, :libraries #{}, :packages ["java." "javax." "clojure.lang."]}
   "server-jetty" {:modules #{"core" "server"}
                   :libraries #{}
                   :packages ["java." "javax." "clojure.lang." "org.eclipse.jetty."]}
   "server-tomcat" {:modules #{"core" "server"}
                    :libraries #{}
                    :packages ["java." "javax." "clojure.lang." "jakarta.servlet."
                               "jakarta.websocket." "org.apache.coyote." "org.apache.tomcat."]}
   "server-http-kit"
   {:modules #{"core" "server" "server-http1"}
    :libraries #{}
    :packages ["java." "javax." "clojure.lang."]}
   "server-helidon" {:modules #{"core" "server" "server-http1"}
                     :libraries #{}
                     :packages ["java." "javax." "clojure.lang." "io.helidon."]}
   "watch" {:modules #{"core" "server"}
            :libraries #{'clojure.data.json}
            :packages ["java." "javax." "clojure.lang." "com.sun." "jdk.jfr." "io.micrometer."]}
   "test-kit" {:modules #{}
               :libraries #{}
               :packages ["java." "javax." "clojure.lang." "jdk." "com.sun."]}})

;; Inner rooms, thrum.impl.* and the like, are for their own module alone. What siblings need stands
;; behind an spi.

(def spi-users
  "By spi: which namespaces outside of its module may use it. A name that ends in .* stands for all
  below it."
  '{thrum.spi
    #{thrum.adaptive
      thrum.async thrum.async.executor thrum.async.impl.* thrum.watch.impl.* thrum.jdbc.impl.*
      thrum.server thrum.server.spi.exchanges thrum.server.spi.flow thrum.server.impl.*
      thrum.server.http1 thrum.server.http1.* thrum.server.engine.*
      thrum.cluster.impl.* thrum.cluster.engine.hazelcast}
    thrum.spi.fan-out
    #{thrum.async.impl.mapped thrum.async.impl.pipeline}
    thrum.spi.watch
    #{thrum.watch thrum.watch.impl.*}
    thrum.server.spi.exchanges
    #{thrum.watch.impl.exchanges thrum.watch.impl.flight-requests}
    thrum.spi.options
    #{thrum.adaptive thrum.watch thrum.watch.micrometer thrum.jdbc thrum.context.otel
      thrum.async thrum.async.executor thrum.async.impl.settings
      thrum.server thrum.server.impl.events thrum.server.impl.options thrum.cluster.impl.*
      thrum.lab.cli thrum.lab.experiments.own.work}
    thrum.server.spi
    #{thrum.server.http1 thrum.server.http1.* thrum.server.engine.*}})

(def breaches
  "Which namespace goes through which wall all the same: tests and tools."
  '#{[thrum.async.pipeline-failures-test thrum.impl.jdk]
     [thrum.server.engine.jetty-test thrum.server.impl.handshake]
     [thrum.server.engine.jetty.http2-test thrum.server.impl.options]
     [thrum.bench.watch thrum.impl.registry]
     [thrum.dev.contract thrum.server.impl.engines]
     [thrum.lab.benchmarks.faults.child thrum.watch.impl.environment]
     [thrum.dev.options thrum.async.impl.settings]
     [thrum.dev.options thrum.cluster.impl.settings]
     [thrum.dev.options thrum.server.impl.engines]
     [thrum.dev.options thrum.server.impl.options]
     [thrum.repo.contract-doc-test thrum.server.impl.engines]
     [thrum.repo.plumbing-test thrum.watch.impl.frames]})

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

(defn- used
  "Returns the namespaces that a ns form requires, or imports a class of."
  [ns-decl]
  (into (set (parse/deps-from-ns-decl ns-decl)) (map namespace-of) (imports ns-decl)))

(defn through-walls
  "Returns [user room] for the inner rooms of other modules that the ns form of a module (nil: of
  none) uses; owner maps a namespace to its module."
  [module owner ns-decl]
  (for [room (used ns-decl)
        :when (and (re-find #"\.impl\." (str room)) (owner room) (not= module (owner room)))]
    [(parse/name-from-ns-decl ns-decl) room]))

(defn uses-of-spis
  "Returns [spi user] for the spis of other modules that the ns form of a module uses."
  [module owner ns-decl]
  (for [spi (used ns-decl) :when (and (spi-users spi) (not= module (owner spi)))]
    [spi (parse/name-from-ns-decl ns-decl)]))

(defn stands-for?
  "True if an entry of spi-users is the namespace's, or that of one above it."
  [entry namespace]
  (if-some [above (second (re-matches #"(.*\.)\*" (name entry)))]
    (str/starts-with? (name namespace) above)
    (= entry namespace)))

(defn- decls-by-module
  []
  (into {} (map (juxt identity #(files/ns-decls (files/source-folder %)))) (files/modules)))

(defn- owners
  [decls]
  (into {} (for [[module ns-decls] decls, decl ns-decls] [(parse/name-from-ns-decl decl) module])))

(defn- loaded-by
  "Returns the namespaces that are loaded before this one; requires: from a namespace to those that
  it requires."
  [requires namespace]
  (loop [loaded #{}, [more & others] (seq (requires namespace))]
    (cond
      (nil? more) loaded
      (loaded more) (recur loaded others)
      :else (recur (conj loaded more) (concat (requires more) others)))))

(defn imported-unmade
  "Returns [namespace maker] for each class of ours that a namespace imports, where nothing that it
  requires loads the namespace that makes the class."
  [decls]
  (let [requires (into {} (map (juxt parse/name-from-ns-decl parse/deps-from-ns-decl)) decls)]
    (for [decl decls
          :let [importer (parse/name-from-ns-decl decl), loaded (loaded-by requires importer)]
          maker (into (sorted-set) (map namespace-of) (imports decl))
          :when (and (requires maker) (not= maker importer) (not (loaded maker)))]
      [importer maker])))

(deftest what-is-imported-has-been-made
  (is (= [] (imported-unmade (mapcat val (decls-by-module)))))
  (is (= '[[a c]]
         (imported-unmade '[(ns a (:require [b]) (:import (b B) (c C))) (ns b) (ns c)]))))

(deftest every-module-is-in-the-picture
  (is (= (set (files/modules)) (set (keys arrows)))))

(deftest arrows-only-point-down
  (let [decls (decls-by-module)]
    (doseq [[module ns-decls] decls, decl ns-decls]
      (is (= [] (violations module (owners decls) decl)) (str (parse/name-from-ns-decl decl))))))

(defn- other-decls
  "Returns [module ns-form] for all that no jar holds: tests, soaks, benchmarks, tools."
  []
  (for [path (files/committed)
        :when (and (re-matches #".*\.clj" path) (not (re-matches #"modules/[^/]+/src/.*" path)))
        :let [decl (ns-file/read-file-ns-decl (io/file path))]
        :when decl]
    [(second (re-matches #"modules/([^/]+)/.*" path)) decl]))

(deftest nobody-else-goes-through-a-wall
  (let [decls (decls-by-module)
        sources (for [[module ns-decls] decls, decl ns-decls] [module decl])]
    (is (= breaches
           (into #{}
                 (mapcat (fn [[module decl]] (through-walls module (owners decls) decl)))
                 (concat sources (other-decls)))))))

(deftest the-users-of-an-spi-are-listed
  (let [decls (decls-by-module)
        uses (for [[module ns-decls] decls, decl ns-decls
                   use (uses-of-spis module (owners decls) decl)]
               use)
        entries (for [[spi entries] spi-users, entry entries] [spi entry])
        listed? (fn [[spi entry] [used user]] (and (= spi used) (stands-for? entry user)))]
    (is (= [] (remove (fn [use] (some #(listed? % use) entries)) uses)) "used, and not listed")
    (is (= [] (remove (fn [entry] (some #(listed? entry %) uses)) entries))
      "listed, and not used")))

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

(deftest what-goes-through-a-wall-is-seen
  (let [owner {'thrum.impl.task "core", 'thrum.spi "core", 'thrum.server.impl.sink "server"}
        through #(through-walls % owner '(ns thrum.x (:require [thrum.impl.task] [thrum.spi])))]
    (is (= [] (through "core")))
    (is (= '[[thrum.x thrum.impl.task]] (through "async") (through nil)))
    (is (= '[[thrum.x thrum.server.impl.sink]]
           (through-walls "core" owner '(ns thrum.x (:import (thrum.server.impl.sink Sink))))))
    (is (= '[[thrum.spi thrum.x]]
           (uses-of-spis "async" owner '(ns thrum.x (:require [thrum.spi :as spi])))))
    (is (stands-for? 'thrum.server.impl.* 'thrum.server.impl.sink))
    (is (not (stands-for? 'thrum.server 'thrum.server.impl.sink)))))

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

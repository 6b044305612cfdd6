(ns thrum.repo.reflection-test
  "No source reflects: all are loaded in a JVM of their own, together with a control that does."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.repo.files :as files]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.jvm :as jvm]))

(set! *warn-on-reflection* true)

(defn- folders
  []
  (->> (concat (map files/source-folder (files/modules))
               (map io/file
                    ["dev/src" "examples/checkout/src" "examples/orders/src"
                     "modules/test-kit/control"]))
       (filter #(.isDirectory ^java.io.File %))
       (mapv str)))

(deftest ^{:time-limit-ms 120000} only-the-control-reflects
  (let [{:keys [exit lines]}
        (jvm/quietly (jvm/command (jvm/this-home)
                                  jvm/exports
                                  (ahead/sources-alone (System/getProperty "java.class.path"))
                                  'thrum.dev.reflection
                                  (folders))
                     110000)
        warnings (filter #(re-find #"Reflection warning, (thrum|control|checkout|orders)/" %)
                         lines)]
    (is (= 0 exit) (str/join "\n" lines))
    (is (= [] (remove #(str/includes? % "control/reflects.clj") warnings)))
    (is (= 1 (count (filter #(str/includes? % "control/reflects.clj") warnings))))))

(ns thrum.repo.reflection-test
  "No source reflects: the compilation ahead has compiled all, and printed where one does."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.repo.files :as files]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(defn- folders
  []
  (->> (concat (map files/source-folder (files/modules))
               (map io/file ["dev/src" "examples/checkout/src" "examples/orders/src"]))
       (filter #(.isDirectory ^java.io.File %))))

(defn- reflecting [printed]
  (vec (re-seq #"Reflection warning, (?:thrum|control|checkout|orders)/.*" printed)))

(defn- compiled? [classes ns-sym]
  (let [file (str (str/replace (munge ns-sym) "." "/") "__init.class")]
    (some #(.isFile (io/file classes % file)) ["ours" "core" "tools"])))

(deftest no-source-reflects
  (let [classes (ahead/own-folder!)]
    (is (= [] (reflecting (slurp (io/file classes "printed")))))
    (is (= [] (remove #(compiled? classes %) (runner/find-namespaces (folders)))))))

(deftest the-control-reflects
  (let [printed (java.io.StringWriter.)]
    (binding [*err* printed, *warn-on-reflection* true]
      (require 'control.reflects :reload))
    (is (= 1 (count (reflecting (str printed)))) (str printed))))

(ns thrum.repo.names-test
  "No committed line names a package registry, except one constant, nor a path of a
  machine."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.repo.files :as files]))

(set! *warn-on-reflection* true)

;; Written in pieces: these lines are committed too.
(def ^:private registries
  (mapv #(str/join "." %)
        [["repo1" "maven" "org"] ["repo" "maven" "apache" "org"] ["sonatype" "com"]
         ["sonatype" "org"] ["clojars" "org"] ["npmjs" "org"] ["npmjs" "com"] ["pypi" "org"]
         ["pythonhosted" "org"] ["jitpack" "io"]]))

(def ^:private machine-path #"(?<![\w.~}])/(?:work|root|home)/\w|temurin-\d+-jdk")

(defn named
  "Returns the registries and machine paths in line."
  [line]
  (concat (filter #(str/includes? line %) registries)
          (re-seq machine-path line)))

(defn- text?
  [path]
  (not (re-find #"\.(?:png|jpg|gif|ico|jar|woff2?)$" path)))

(defn- findings
  []
  (for [path (files/committed) :when (text? path)
        [n line] (map-indexed vector (line-seq (io/reader path)))
        found (named line)]
    [path (inc n) found]))

(deftest one-constant-names-the-registry
  (let [[[path _ host] & more] (findings)]
    (is (= ["script/cljw/Bootstrap.java" (first registries)] [path host]))
    (is (empty? more))))

(deftest a-registry-or-a-machine-path-is-seen
  (is (= [(first registries)] (named (str "url = https://" (first registries) "/maven2"))))
  (is (= [(str "/ro" "ot/x")] (named (str "cd /ro" "ot/x1"))))
  (is (= [] (named "see ~/home/x, https://example.com/home/y and Contents/Home/z"))))

(ns thrum.jdk-test
  "A JDK that is too old, or lacks a module, is refused in a sentence, before a class is loaded that
  it lacks; so is a Clojure that is too old."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.test-kit.jvm :as jvm]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.io PushbackReader Reader)))

(set! *warn-on-reflection* true)

(defn- source ^Reader [path]
  (io/reader (io/resource path)))

(defn- load-as-on
  "Loads thrum.impl.jdk while the JDK says that it is of that version, up to where it throws."
  [version]
  (let [property "java.specification.version", own (System/getProperty property)]
    (System/setProperty property version)
    (try
      (with-open [in (source "thrum/impl/jdk.clj")] (load-reader in))
      (finally (System/setProperty property own)))))

(deftest a-jdk-before-21-is-refused-in-a-sentence
  (doseq [version ["1.8" "17" "20"] :let [e (ex-cause (thrown (load-as-on version)))]]
    (testing version
      (is (= [:thrum/invalid version "JDK 21 or newer"]
             ((juxt :type :value :accepts) (ex-data e))))
      (is (str/starts-with? (str (ex-message e)) "Thrum needs JDK 21 or newer; this is "))
      (is (str/includes? (str (ex-message e)) (System/getProperty "java.home"))))))

(deftest a-clojure-before-1-12-is-refused-in-a-sentence
  (let [e (ex-cause (thrown (binding [*clojure-version* {:major 1, :minor 11, :incremental 4}]
                              (with-open [in (source "thrum/impl/jdk.clj")] (load-reader in)))))]
    (is (= {:type :thrum/invalid, :value "1.11.4", :accepts "Clojure 1.12 or newer"} (ex-data e)))
    (is (= "Thrum needs Clojure 1.12 or newer; this is 1.11.4" (ex-message e)))))

(defn- run-with
  "Returns what a child JVM prints that loads thrum.core, runs a task and asks for fd-limit, and has
  only the given modules."
  [modules]
  (let [form '(try
                (require 'thrum.core)
                (println ((resolve 'thrum.core/pmapv) 2 inc [1]))
                ((resolve 'thrum.core/fd-limit))
                (catch Throwable t
                  (println (ex-message (last (take-while some? (iterate ex-cause t)))))))]
    ;; A JVM says so where it takes options from its environment.
    (remove #(re-find #"^(NOTE: )?Picked up " %)
      (:lines (jvm/quietly (-> (jvm/clojure-main (jvm/this-home) ["--limit-modules" modules]
                                 (System/getProperty "java.class.path"))
                             (conj "-e" (pr-str form)))
                280000
                jvm/quick)))))

(deftest what-lacks-a-module-of-the-jdks-says-so-in-a-sentence
  (doseq [[modules begun] {"java.base" ["Thrum needs the JDK's module java.management, "]
                           "java.base,java.management"
                           ["[2]" "Thrum needs the JDK's module jdk.management, "]}
          :let [lines (run-with modules)]]
    (is (= (count begun) (count lines)) (pr-str lines))
    (is (every? true? (map str/starts-with? lines begun)) (pr-str lines))))

(defn- ns-form [path]
  (with-open [in (PushbackReader. (source path))] (pr-str (read in))))

(deftest no-class-that-an-older-jdk-lacks-is-imported-before-the-version-is-checked
  (is (str/includes? (ns-form "thrum/impl/callers.clj") "thrum.impl.jdk"))
  (is (not (str/includes? (ns-form "thrum/impl/jdk.clj") "(java.lang"))))

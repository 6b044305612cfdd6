(ns thrum.repo.recipes-doc-test
  "The program of doc/recipes.md that ends at SIGTERM does so, in a JVM of its own."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.dev.doctest :as doctest]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.util List)))

(set! *warn-on-reflection* true)

(defn- program
  "Returns the text of the page's program, on a free port."
  []
  (let [[{:keys [text]} & more] (filter :reason (doctest/blocks (slurp "doc/recipes.md")))]
    (assert (and text (nil? more)))
    (str/replace text ":port 3000" ":port 0")))

(def ^:private around
  "What the program leaves open. A request is answered only when the server drains."
  '[(require '[thrum.core :as t] '[thrum.server :as server])
    ;; In one piece: println of two threads mixes their words.
    (defn say [& words] (.println System/out (apply str (interpose " " words))))
    (def started (promise))
    (alter-var-root #'server/join
                    (fn [join]
                      (fn [s] (deliver started s) (say "port" (server/port s)) (join s))))
    (defn new-pool [] (reify java.lang.AutoCloseable (close [_] (say "pool closed"))))
    (defn clean-up [_] (say "cleaned up"))
    (defn handler [_]
      (fn [_]
        (say "asked")
        (while (server/ready? @started) (Thread/sleep 2))
        (say "answers")
        {:status 200, :body "whole"}))])

(defn- start-program ^Process []
  (let [code (str (str/join "\n" (map pr-str around)) "\n" (program) "\n(-main)")
        ^List command (conj (jvm/clojure-main (jvm/this-home)
                                              ["-XX:TieredStopAtLevel=1"]
                                              (System/getProperty "java.class.path"))
                            "-e" code)]
    (.start (doto (ProcessBuilder. command) (.redirectErrorStream true)))))

(deftest the-program-ends-in-order
  (let [process (start-program)]
    (try
      (gate/in-time 120000
        #(with-open [out (io/reader (.getInputStream process))]
           (let [lines (line-seq out)
                 port (some (fn [line] (second (re-find #"^port (\d+)" line))) lines)
                 answer (future (slurp (str "http://127.0.0.1:" port "/")))]
             (some #{"asked"} lines)
             ;; That of Process closes its streams.
             (.destroy (.toHandle process))
             (is (= "whole" @answer))
             (is (= ["answers" "pool closed"] (filter #{"answers" "pool closed"} lines)))
             (is (empty? (filter (fn [line] (re-find #"(?i)exception|error" line)) lines)))
             (is (= 143 (.waitFor process))))))
      (finally (.destroyForcibly process)))))

(ns thrum.dev.lint
  "What -M:test:lint runs: finds names that are never used and docstrings that are missing.

  It stands in for clj-kondo where Clojars cannot be reached; where it can, run -M:kondo too."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.tools.namespace.find :as find]
   [thrum.dev.lint.docs :as docs]
   [thrum.dev.lint.locals :as locals]
   [thrum.dev.lint.names :as names]
   [thrum.dev.lint.source :as source]))

(set! *warn-on-reflection* true)

(def everywhere
  "The folders and files of the repository that have Clojure. It is loaded: all that it requires is
  on the class path of the aliases :test and :lint."
  ["build.clj" "dev" "examples" "modules" "script" "test"])

(def excluded
  "The files that are not read, and why."
  {"modules/core/lincheck/thrum/lincheck/checks.clj" "needs classes that -M:lincheck makes"
   "modules/core/lincheck/thrum/lincheck/operations.clj" "needs sources that -M:lincheck makes"
   "modules/core/resources/clj-kondo.exports/io.github.thrum-clj/thrum/hooks/thrum/core.clj"
   "needs clj-kondo, which loads it"
   "modules/test-kit/control/control/untidy.clj" "has the faults that the lint's test looks for"
   "modules/test-kit/samples/sample/does_not_load.clj" "throws when it is loaded"
   "script/cljw/exec.clj" "runs when it is loaded"
   "script/cljw/make-classpath2.clj" "runs when it is loaded"})

(defn- sources-in [folder]
  (let [file (io/file folder)]
    (when-not (.exists file)
      (throw (ex-info (str "There is no " folder) {:folder folder})))
    (find/find-sources-in-dir file)))

(defn sources
  "Returns the sources in folders that are linted, as files. Throws where there is no such folder."
  [folders]
  (into [] (comp (mapcat sources-in) (remove (comp excluded str))) folders))

(defn- published?
  [file]
  (boolean (re-find #"modules/core/src/" file)))

(defn lint-file
  "Returns the findings of a file: maps of :file, :line, :message. Public vars need docstrings where
  (public-docs? file)."
  [file public-docs?]
  (if-let [source (source/load-source file)]
    (sort-by :line
             (concat (names/findings source)
                     (locals/findings source)
                     (docs/findings source public-docs?)))
    [{:file (str file), :line 1, :message "no ns form: the file is not read"}]))

(defn lint
  "Returns the findings of all files in folders."
  [folders]
  (mapcat #(lint-file % published?) (sources folders)))

(defn- print-finding
  [{:keys [file line message]}]
  (println (str file ":" line ": " message)))

(defn -main
  "Lints folders, or all of the repository; ends the JVM with 1 if anything was found."
  [& folders]
  (let [findings (lint (or (seq folders) everywhere))]
    (run! print-finding findings)
    (println
      (str (count findings) " findings" (when (seq folders) (str " in " (str/join ", " folders)))))
    (flush)
    (System/exit (if (seq findings) 1 0))))

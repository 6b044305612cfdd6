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

(defn- usual-folders
  "Returns the source and test folders of all modules and of the repository."
  []
  (->> (.listFiles (io/file "modules"))
       (mapcat #(vector (io/file % "src") (io/file % "test")))
       (concat [(io/file "examples/checkout/src") (io/file "examples/orders/src")
                (io/file "dev/src") (io/file "dev/build") (io/file "test")])
       (filter #(.isDirectory ^java.io.File %))))

(defn- published?
  [file]
  (boolean (re-find #"modules/core/src/" file)))

(defn lint-file
  "Returns the findings of a file: maps of :file, :line, :message. Public vars need docstrings where
  (public-docs? file)."
  [file public-docs?]
  (when-let [source (source/load-source file)]
    (sort-by :line
             (concat (names/findings source)
                     (locals/findings source)
                     (docs/findings source public-docs?)))))

(defn lint
  "Returns the findings of all files under folders."
  [folders]
  (mapcat #(lint-file % published?) (mapcat #(find/find-sources-in-dir (io/file %)) folders)))

(defn- print-finding
  [{:keys [file line message]}]
  (println (str file ":" line ": " message)))

(defn -main
  "Lints folders, or all of the repository; ends the JVM with 1 if anything was found."
  [& folders]
  (let [findings (lint (or (seq folders) (usual-folders)))]
    (run! print-finding findings)
    (println
      (str (count findings) " findings" (when (seq folders) (str " in " (str/join ", " folders)))))
    (flush)
    (System/exit (if (seq findings) 1 0))))

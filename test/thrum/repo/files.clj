(ns thrum.repo.files
  "The repository's files, for the checks that read them. The working directory is the repository's
  root."
  (:require
   [clojure.java.io :as io]
   [clojure.java.shell :as shell]
   [clojure.string :as str]
   [clojure.tools.namespace.file :as ns-file]
   [clojure.tools.namespace.find :as ns-find])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn committed
  "Returns the paths of all files that git holds, or would after an add."
  []
  (let [{:keys [exit out err]} (shell/sh "git" "ls-files" "-zco" "--exclude-standard")]
    (when-not (zero? exit)
      (throw (ex-info (str "git ls-files: " err) {:exit exit})))
    (filter #(.isFile (io/file %)) (str/split out #"\x00"))))

(defn modules
  "Returns the names of the modules, sorted."
  []
  (sort (map #(.getName ^File %)
             (filter #(.isDirectory ^File %) (.listFiles (io/file "modules"))))))

(defn source-folder
  "Returns the src folder of a module."
  ^File [module]
  (io/file "modules" module "src"))

(defn ns-decls
  "Returns the ns forms of all sources under folder."
  [folder]
  (keep ns-file/read-file-ns-decl (ns-find/find-sources-in-dir folder)))

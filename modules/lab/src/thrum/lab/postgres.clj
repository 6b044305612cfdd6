(ns thrum.lab.postgres
  "A PostgreSQL of our own on loopback, in a folder of its own, for as long as it is needed. Uses
  the programs of an installation on this machine."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)
   (java.net ServerSocket)
   (java.sql DriverManager SQLException)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- executable? [^File folder program]
  (.canExecute (io/file folder program)))

(defn- complete? [folder]
  (and (executable? folder "initdb") (executable? folder "postgres")))

(defn- folders []
  (concat (some-> (System/getenv "THRUM_POSTGRES") io/file list)
          (map #(io/file % "bin") (reverse (sort (.listFiles (io/file "/usr/lib/postgresql")))))
          (map io/file (str/split (str (System/getenv "PATH")) (re-pattern File/pathSeparator)))))

(defn programs
  "Returns the folder of PostgreSQL's programs, initdb and postgres: the one that THRUM_POSTGRES
  names, Debian's newest, or one of PATH. nil where there is none."
  ^File []
  (first (filter complete? (folders))))

;; PostgreSQL refuses to run as root: another user does then, who owns the folder.

(def ^:private user (name 'nobody))
(def ^:private user-group "nogroup")

(defn- root? []
  (= "root" (System/getProperty "user.name")))

(defn- command [& words]
  (cond->> words
    (root?) (concat ["setpriv" (str "--reuid=" user) (str "--regid=" user-group)
                     "--clear-groups"])))

(defn- process-builder ^ProcessBuilder [words]
  (ProcessBuilder. ^java.util.List (mapv str words)))

(defn- start-process
  "Starts a program whose output goes to the file."
  ^Process [^File log words]
  (-> (process-builder words)
      (.directory (io/file "/"))
      (.redirectErrorStream true)
      (.redirectOutput (java.lang.ProcessBuilder$Redirect/appendTo log))
      (.start)))

(defn- run-to-end! [log words]
  (let [process (start-process log words)]
    (when-not (and (.waitFor process 60 TimeUnit/SECONDS) (zero? (.exitValue process)))
      (.destroyForcibly process)
      (throw (ex-info (str (first words) " failed: " (slurp log)) {:command words})))))

(defn- free-port []
  (with-open [socket (ServerSocket. 0)] (.getLocalPort socket)))

(defn- init! [programs folder log]
  (let [data (doto (io/file folder "data") .mkdir)]
    (when (root?) (run-to-end! log ["chown" (str user ":" user-group) folder data]))
    (run-to-end! log (command (io/file programs "initdb") "-D" data "-U" "thrum" "-A" "trust" "-N"
                       "--no-instructions" "-E" "UTF8" "--locale=C"))
    data))

(defn- serve [programs data log port]
  (start-process log
                 (command (io/file programs "postgres") "-D" data "-p" port
                          "-c" "listen_addresses=127.0.0.1" "-c" "unix_socket_directories="
                          "-c" "fsync=off" "-c" "max_connections=200")))

(defn- answers? [url]
  (try
    (with-open [_ (DriverManager/getConnection url)] true)
    (catch SQLException _ false)))

(defn- await-start! [^Process process url log]
  (let [end (+ (System/nanoTime) 30000000000)]
    (while (not (answers? url))
      (when (or (not (.isAlive process)) (neg? (- end (System/nanoTime))))
        (throw (ex-info (str "PostgreSQL did not start: " (slurp log)) {:url url})))
      (Thread/sleep 50))))

(defn- stop! [^Process process]
  ;; SIGINT ends it without waiting for its clients; destroy would wait.
  (.waitFor (.start (process-builder ["kill" "-INT" (.pid process)])))
  (when-not (.waitFor process 10 TimeUnit/SECONDS) (.destroyForcibly process)))

(defn- in-folder [programs folder f]
  (let [log (io/file folder "log"), data (init! programs folder log), port (free-port)
        url (str "jdbc:postgresql://127.0.0.1:" port "/postgres?user=thrum")
        process (serve programs data log port)
        hook (Thread. #(stop! process))]
    (.addShutdownHook (Runtime/getRuntime) hook)
    (try
      (await-start! process url log)
      (f url)
      (finally
        (stop! process)
        (try (.removeShutdownHook (Runtime/getRuntime) hook) (catch IllegalStateException _))))))

(defn call-with
  "Calls f with the JDBC URL of a new PostgreSQL whose programs are in the folder, and stops it
  afterwards. Its driver has to be on the class path. Throws what f throws, and ex-info where it
  does not start."
  [programs f]
  (let [folder (temporary/folder! "thrum-postgres")]
    (try
      (in-folder programs folder f)
      (finally (temporary/delete! folder)))))

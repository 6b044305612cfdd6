(ns thrum.lab.postgres
  "A PostgreSQL of our own on loopback, in a folder of its own, for as long as it is needed."
  (:require
   [clojure.java.io :as io]
   [thrum.lab.child :as child]
   [thrum.lab.ports :as ports]
   [thrum.lab.postgres.programs :as programs]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)
   (java.sql DriverManager SQLException)
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

;; PostgreSQL refuses to run as root: another user does then, who owns the folder.

(def ^:private user
  "The id of the user without rights, and of its group, whose name is not everywhere the same."
  "65534")

(defn- root? []
  (= "root" (System/getProperty "user.name")))

(defn- command [& words]
  (cond->> words
    (root?) (concat ["setpriv" (str "--reuid=" user) (str "--regid=" user)
                     "--clear-groups"])))

(defn- run-to-end! [words]
  (let [words (mapv str words), {:keys [exit output]} (child/run-to-end! words {:folder "/"} 60000)]
    (when-not (zero? exit)
      (throw (ex-info (str (first words) " failed: " output) {:command words})))))

(defn- init! [programs folder]
  (let [data (doto (io/file folder "data") .mkdir)]
    (when (root?) (run-to-end! ["chown" (str user ":" user) folder data]))
    (run-to-end! (command (io/file programs "initdb") "-D" data "-U" "thrum" "-A" "trust" "-N"
                   "--no-instructions" "-E" "UTF8" "--locale=C"))
    data))

(defn- serve
  "Starts PostgreSQL, whose output goes to the file."
  ^Process [programs data ^File log port]
  (let [^List words (mapv str
                          (command (io/file programs "postgres") "-D" data "-p" port
                                   "-c" "listen_addresses=127.0.0.1" "-c" "unix_socket_directories="
                                   "-c" "fsync=off" "-c" "max_connections=200"))]
    (-> (ProcessBuilder. words)
        (.directory (io/file "/"))
        (.redirectErrorStream true)
        (.redirectOutput log)
        (.start))))

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
  (let [^List command ["kill" "-INT" (str (.pid process))]]
    (.waitFor (.start (ProcessBuilder. command))))
  (when-not (.waitFor process 10 TimeUnit/SECONDS) (.destroyForcibly process)))

(defn- unhook! [^Thread hook]
  (try
    (.removeShutdownHook (Runtime/getRuntime) hook)
    ;; The process ends.
    (catch IllegalStateException _)))

(defn- start-in [programs folder]
  (let [log (io/file folder "log"), data (init! programs folder), [port] (ports/free 1)
        url (str "jdbc:postgresql://127.0.0.1:" port "/postgres?user=thrum")
        process (serve programs data log port)
        hook (Thread. #(stop! process))
        close! #(do (stop! process) (unhook! hook) (temporary/delete! folder))]
    (.addShutdownHook (Runtime/getRuntime) hook)
    (try
      (await-start! process url log)
      {:url url, :close! close!}
      (catch Throwable t
        (close!)
        (throw t)))))

(defn start!
  "Starts a new PostgreSQL, and returns {:url its JDBC URL, :close! a function that stops it and
  deletes what it has written}; nil where its programs are not to be had. Its driver has to be on
  the class path. Takes some seconds. Throws ex-info where it does not start."
  []
  (when-some [programs (programs/folder)]
    (let [folder (temporary/folder! "thrum-postgres")]
      (try
        (start-in programs folder)
        (catch Throwable t
          (temporary/delete! folder)
          (throw t))))))

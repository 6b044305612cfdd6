(ns thrum.server.engine.helidon.exhausted
  "A server of a process that has no file descriptor left: a child's, below a limit of its own."
  (:require
   [clojure.java.io :as io]
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io Closeable FileInputStream IOException)
   (java.lang Thread$State)
   (java.net InetAddress InetSocketAddress ServerSocket Socket)
   (java.nio.channels SocketChannel)))

(set! *warn-on-reflection* true)

(defn under-limit
  "Returns the command, which may open 400 files."
  [command]
  (into ["/bin/sh" "-c" "ulimit -n 400 && exec \"$0\" \"$@\""] command))

(defn- take-all!
  "Returns files, open until there was no descriptor for another one."
  []
  (let [file (io/file (System/getProperty "java.home") "release")]
    (loop [files []]
      (if-some [opened (try (FileInputStream. file) (catch IOException _))]
        (recur (conj files opened))
        files))))

(defn- ask!
  "Connects the channel, which has its descriptor already, and sends a request; returns the client."
  [port ^SocketChannel channel]
  (.connect channel (InetSocketAddress. (InetAddress/getLoopbackAddress) (int port)))
  (wire/send! (wire/client (.socket channel)) (wire/get "/")))

(defn- comes
  "Prints the statuses of three clients that come while no descriptor is left, and of one that comes
  later."
  [port]
  (let [channels (vec (repeatedly 5 #(SocketChannel/open)))
        status (comp (some-fn :status :ended) wire/response)]
    (status (ask! port (channels 0)))
    (let [files (take-all!)
          clients (mapv #(ask! port %) (subvec channels 1 4))]
      ;; Nothing comes while Helidon waits. Where it does not it has failed behind this answer.
      (wire/after (clients 0) wire/quiet-ms)
      (run! Closeable/.close files)
      (prn (mapv status clients) (status (ask! port (channels 4)))))))

(defn- reading
  "Starts a virtual thread that reads a byte; returns it and a promise of the byte, or of what was
  thrown."
  [^Socket socket]
  (let [read (promise)]
    [(Thread/startVirtualThread
       #(deliver read (try (.read (.getInputStream socket)) (catch Throwable t t))))
     read]))

(defn- waits
  "Prints what a virtual thread reads that began to wait while no descriptor was left."
  [_port]
  (with-open [listener (ServerSocket. 0), client (Socket. "localhost" (.getLocalPort listener))]
    (let [socket (.accept listener), out (.getOutputStream client)
          read-by (fn [byte early?]
                    (when early? (.write out (int byte)))
                    (let [[^Thread thread read] (reading socket)]
                      (gate/eventually 10000 #(#{Thread$State/WAITING Thread$State/TERMINATED}
                                               (.getState thread)))
                      (when-not early? (.write out (int byte)))
                      (deref read 10000 :late)))]
      (read-by 1 true)
      (let [files (take-all!), read (read-by 2 false)]
        (run! Closeable/.close files)
        (prn read)))))

(defn -main
  "What the child runs: starts a server, and plays the scene."
  [scene]
  (let [s (server/run-server (fn [_] {:status 200, :body "ok"})
                             {:engine :helidon, :port 0, :stop-on-shutdown? false})]
    (({"comes" comes, "waits" waits} scene) (server/port s))
    (server/stop! s))
  (System/exit 0))

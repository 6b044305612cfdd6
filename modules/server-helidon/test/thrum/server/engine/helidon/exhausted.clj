(ns thrum.server.engine.helidon.exhausted
  "A server of a process that has no file descriptor left: a child's, below a limit of its own."
  (:require
   [clojure.java.io :as io]
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io Closeable FileInputStream IOException)
   (java.net InetAddress InetSocketAddress)
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

(defn -main
  "What the child runs: prints the statuses of three clients that come while no descriptor is left,
  and of one that comes later."
  []
  (let [s (server/run-server (fn [_] {:status 200, :body "ok"})
                             {:engine :helidon, :port 0, :stop-on-shutdown? false})
        port (server/port s)
        channels (vec (repeatedly 5 #(SocketChannel/open)))
        status (comp (some-fn :status :ended) wire/response)]
    (status (ask! port (channels 0)))
    (let [files (take-all!)
          clients (mapv #(ask! port %) (subvec channels 1 4))]
      ;; Nothing comes while Helidon waits. Where it does not it has failed behind this answer.
      (wire/after (clients 0) wire/quiet-ms)
      (run! Closeable/.close files)
      (prn (mapv status clients) (status (ask! port (channels 4)))))
    (server/stop! s))
  (System/exit 0))

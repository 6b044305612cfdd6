(ns thrum.cluster.engine.detection
  "JGroups' detection of failures by connections between the nodes, FD_SOCK2, with what it has no
  option for: a limit to the messages to its port, and a thread that outlives a lack of file
  descriptors."
  {:no-doc true}
  (:require
   [thrum.cluster.engine.loops :as loops])
  (:import
   (java.io IOException)
   (java.net InetAddress)
   (org.jgroups.blocks.cs NioServer)
   (org.jgroups.conf ClassConfigurator)
   (org.jgroups.protocols FD_SOCK2)))

(set! *warn-on-reflection* true)

;; The server takes the memory for a message of any length, from any process that connects, TLS or
;; not; its own are some hundred bytes.
(def ^:private ^:const longest-message 100000)

(def ^:private ^:const pause-ms 100)

;; Where a connection cannot be accepted, the server's only thread throws a NullPointerException out
;; of its loop, and ends. The connection is accepted when there is a descriptor again. An interrupt
;; comes when the server stops: then the loop, begun once more, closes it and returns.
(defn- again-when-it-throws
  "Returns the loop as one that begins again, after a pause, until it returns."
  ^Runnable [^Runnable loop]
  (fn []
    (while (try
             (.run loop)
             false
             (catch Throwable _
               (try (Thread/sleep pause-ms) (catch InterruptedException _))
               true)))))

(defn- server
  "Returns the server on the port, or nil where that is taken."
  [^FD_SOCK2 protocol port]
  (try
    (doto (NioServer. (loops/threads (.getThreadFactory protocol) again-when-it-throws)
                      (.getSocketFactory protocol)
                      (.getBindAddress protocol)
                      (int port) (int port)
                      nil 0
                      0)
      (.setMaxLength longest-message))
    (catch IOException _ nil)))

(defn protocol
  "Returns the protocol for a node on the host. Its port is the node's plus offset, or the next that
  is free of three."
  ^FD_SOCK2 [host offset]
  (let [protocol (proxy [FD_SOCK2] []
                   (createServer [ports]
                     (or (some #(server this %) ports)
                         (throw (IOException. (str "None of these ports is free: "
                                                   (vec ports)))))))]
    (doto ^FD_SOCK2 protocol
      (.setId (ClassConfigurator/getProtocolId FD_SOCK2))
      (.setBindAddress (InetAddress/getByName host))
      (.setOffset (int offset)))))

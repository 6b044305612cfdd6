(ns thrum.cluster.jgroups-test
  "What a node changes in JGroups' own ways."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine.jgroups :as jgroups])
  (:import
   (java.net InetAddress ServerSocket)
   (java.time Duration)
   (org.infinispan.remoting.transport.jgroups JGroupsChannelConfigurator)
   (org.jgroups JChannel)
   (org.jgroups.blocks.cs TcpConnectionNonBlocking TcpServer)
   (org.jgroups.stack IpAddress)
   (org.jgroups.util DefaultSocketFactory Runner ThreadFactory)))

(set! *warn-on-reflection* true)

(def ^:private loopback (InetAddress/getByName "127.0.0.1"))

(defn- channel ^JChannel []
  (.createChannel ^JGroupsChannelConfigurator
                  (jgroups/configurator {:host "127.0.0.1", :seeds ["127.0.0.1:7800"]
                                         :heartbeat-ms 3000})
                  "closed"))

(defn- factory
  "Returns the thread factory of a node, which delivers the thread that sends."
  [^JChannel channel sender]
  (let [^ThreadFactory of-node (.getThreadFactory (.getTransport (.getProtocolStack channel)))]
    (reify ThreadFactory
      (newThread [_ loop name]
        (let [thread (.newThread of-node ^Runnable loop ^String name)]
          (when (instance? Runner loop) (deliver sender thread))
          thread)))))

(deftest the-sender-of-a-connection-that-is-closed-before-it-starts-ends
  (let [sender (promise)]
    (with-open [channel (channel)
                peer (ServerSocket. 0 1 loopback)
                server (TcpServer. (factory channel sender) (DefaultSocketFactory.)
                                   loopback 0 0 nil 0 0)]
      (let [address (IpAddress. ^InetAddress loopback (.getLocalPort peer))]
        (with-open [_ (doto (TcpConnectionNonBlocking. address server 16)
                        (.connect address)
                        .close
                        .start)]
          (is (true? (.join ^Thread @sender (Duration/ofSeconds 20)))))))))

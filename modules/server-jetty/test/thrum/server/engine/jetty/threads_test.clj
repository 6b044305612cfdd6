(ns thrum.server.engine.jetty.threads-test
  "Which threads a connection of Jetty's goes on on."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.threads :as threads])
  (:import
   (java.util.concurrent Executor)
   (org.eclipse.jetty.io ByteArrayEndPoint)
   (org.eclipse.jetty.server HttpConfiguration LocalConnector Server)
   (org.eclipse.jetty.server.internal HttpConnection)))

(set! *warn-on-reflection* true)

(defn- connection
  "Returns a connection that, when it goes on, delivers whether the thread is a virtual one."
  ^Runnable [on]
  (proxy [HttpConnection] [(HttpConfiguration.) (LocalConnector. (Server.)) (ByteArrayEndPoint.)]
    (run [] (deliver on (.isVirtual (Thread/currentThread))))))

(deftest a-connection-goes-on-on-a-virtual-thread
  (let [pool (reify Executor (execute [_ task] (.run ^Runnable task))), on (promise)]
    (.execute (threads/executor pool) (connection on))
    (is (true? (deref on 20000 :never)))))

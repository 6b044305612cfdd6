(ns thrum.server.engine.jetty.watch-test
  "What is held while a client is watched."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.watch :as watch])
  (:import
   (java.lang.reflect InvocationHandler Proxy)
   (java.util.concurrent.locks ReentrantLock)
   (org.eclipse.jetty.io AbstractEndPoint)
   (org.eclipse.jetty.server ConnectionMetaData Request)))

(set! *warn-on-reflection* true)

(defn- proxied
  "Returns an instance of the interface whose methods are these functions, by their names."
  [^Class type fs]
  (Proxy/newProxyInstance (.getClassLoader type)
                          (into-array Class [type])
                          (reify InvocationHandler
                            (invoke [_ _ method args] (apply (fs (.getName method)) args)))))

;; Before JDK 24 a thread that waits for a lock of Jetty's inside a monitor keeps its carrier.
(deftest a-request-is-watched-without-a-monitor
  (let [lookout (promise)
        held (atom [])
        meta-data (proxied ConnectionMetaData
                           {"getConnection" (fn []
                                              (swap! held conj (Thread/holdsLock @lookout))
                                              nil)})]
    (deliver lookout (watch/lookout (proxied Request {"getConnectionMetaData" (fn [] meta-data)
                                                      "addFailureListener" (fn [_])})))
    (watch/begin! @lookout (fn []))
    (watch/cease! @lookout)
    (is (= [false] @held))))

(deftest a-connection-is-watched-without-a-monitor
  (let [connection (promise)
        held (atom [])
        end-point (proxy [AbstractEndPoint] [nil]
                    (needsFillInterest [] (swap! held conj (Thread/holdsLock @connection)) nil))]
    (deliver connection (watch/->Http1Watch nil end-point (fn []) (ReentrantLock.) false))
    (is (true? (watch/arm! @connection)))
    (watch/end! @connection)
    (is (= [false] @held))))

(ns thrum.lab.subject.jdk
  "The JDK's own server, without Thrum: a handler as one writes it in Java, in the executor that is
  asked for."
  (:require
   [thrum.lab.subject.work :as work])
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.net InetAddress InetSocketAddress)))

(set! *warn-on-reflection* true)

(def ^:private handler
  (reify HttpHandler
    (handle [_ exchange]
      (work/do-it! (.getPath (.getRequestURI exchange)))
      (.set (.getResponseHeaders exchange) "Content-Type" work/content-type)
      (.sendResponseHeaders exchange 200 (alength ^bytes work/greeting-bytes))
      (with-open [out (.getResponseBody ^HttpExchange exchange)]
        (.write out ^bytes work/greeting-bytes)))))

(defn start!
  "Starts the server on a free port and returns that. Handlers run on a pool of platform threads,
  or, :pool nil, on virtual threads."
  [{:keys [pool backlog]}]
  (let [server (HttpServer/create (InetSocketAddress. (InetAddress/getLoopbackAddress) 0)
                                  (int backlog))]
    (doto server (.setExecutor (work/executor pool)) (.createContext "/" handler) (.start))
    (.getPort (.getAddress server))))

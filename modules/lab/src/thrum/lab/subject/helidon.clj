(ns thrum.lab.subject.helidon
  "Helidon, without Thrum: a handler of its own API, on its own virtual threads. It has no pool of
  platform threads."
  (:require
   [thrum.lab.subject.work :as work])
  (:import
   (io.helidon.http HeaderNames)
   (io.helidon.webserver WebServer)
   (io.helidon.webserver.http Handler HttpRouting)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def ^:private ^Logger logger
  "The logger, with its level set to warnings. Held, since java.util.logging forgets the level
  otherwise."
  (Logger/getLogger "io.helidon"))

(def ^:private ^Handler handler
  (reify
    Handler
    (handle [_ request response]
      (work/do-it! (.rawPath (.uriPath (.prologue request))))
      (.header response
               HeaderNames/CONTENT_TYPE
               ^"[Ljava.lang.String;" (into-array String [work/content-type]))
      (.send response ^bytes work/greeting-bytes))))

(defn start!
  "Starts the server on a free port and returns that."
  [{:keys [backlog]}]
  (.setLevel logger Level/WARNING)
  (.port ^WebServer
         (.start ^WebServer
                 (.build (doto (WebServer/builder)
                           (.host "127.0.0.1")
                           (.port 0)
                           (.backlog (int backlog))
                           (.maxTcpConnections -1)
                           (.routing (doto (HttpRouting/builder)
                                       (.any ^"[Lio.helidon.webserver.http.Handler;"
                                             (into-array Handler [handler])))))))))

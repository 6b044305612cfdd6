(ns thrum.lab.subject.http-kit
  "http-kit, without Thrum. It may not be on the class path, and is found by name. Its handlers are
  Ring's: it has no lower door."
  (:require
   [thrum.lab.subject.work :as work]))

(set! *warn-on-reflection* true)

(defn start!
  "Starts the server on a free port and returns that. Handlers run on a pool of platform threads,
  or, :pool nil, on virtual threads."
  [{:keys [pool backlog]}]
  (let [run-server (requiring-resolve 'org.httpkit.server/run-server)
        port (requiring-resolve 'org.httpkit.server/server-port)]
    (port (run-server work/ring-handler
                      {:ip "127.0.0.1"
                       :port 0
                       :worker-pool (work/executor pool)
                       :backlog backlog
                       :legacy-return-value? false}))))

(ns thrum.lab.servers
  "Web servers for the tests, in this process."
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.net InetAddress InetSocketAddress)
   (java.util.concurrent Executors)))

(set! *warn-on-reflection* true)

(defn answering
  "Starts a server that answers everything with a status, headers, and a body of n bytes."
  ^HttpServer [status headers n]
  (doto (HttpServer/create (InetSocketAddress. (InetAddress/getLoopbackAddress) 0) 100)
    (.setExecutor (Executors/newVirtualThreadPerTaskExecutor))
    (.createContext "/" (reify HttpHandler
                          (handle [_ exchange]
                            (with-open [^HttpExchange exchange exchange]
                              (doseq [[k v] headers] (.add (.getResponseHeaders exchange) k v))
                              (.sendResponseHeaders exchange status (if (zero? n) -1 n))
                              (.write (.getResponseBody exchange) (byte-array n))))))
    (.start)))

(defn url [^HttpServer server]
  (str "http://127.0.0.1:" (.getPort (.getAddress server))))

(defn stop! [^HttpServer server]
  (.stop server 0))

(defmacro with-server
  "Binds the symbol to the URL of a server, runs the body, and stops the server."
  [[symbol server] & body]
  `(let [server# ~server, ~symbol (url server#)]
     (try
       ~@body
       (finally (stop! server#)))))

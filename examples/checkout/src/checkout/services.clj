(ns checkout.services
  "The services that a checkout needs, on the loopback interface: web servers that are quick, slow,
  busy, or hang."
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.net InetAddress InetSocketAddress)
   (java.util.concurrent ExecutorService Executors)))

(set! *warn-on-reflection* true)

(def ^:private answers
  {:user {:name "Ada", :city "London"}, :stock {:item "teapot", :left 3}, :price {:euros 19}})

(defn moods
  "Returns a function that says in which mood a service answers the n-th request for an order. It
  depends on the seed and on nothing else: two runs see the same."
  [seed]
  (fn [service order n]
    (nth [:quick :quick :quick :quick :quick :slow :slow :busy :busy :hanging]
         (mod (hash [seed service order n]) 10))))

(defn- reply! [^HttpExchange exchange status answer]
  (let [body (.getBytes (pr-str answer))]
    (.sendResponseHeaders exchange status (alength body))
    (.write (.getResponseBody exchange) body)))

(defn- answer! [exchange mood service closing]
  (case mood
    :quick (reply! exchange 200 (answers service))
    :slow (do (Thread/sleep 100) (reply! exchange 200 (answers service)))
    :busy (reply! exchange 503 "busy")
    :hanging @closing))

(defn- order-of [^HttpExchange exchange]
  (parse-long (re-find #"\d+$" (.getPath (.getRequestURI exchange)))))

(defn- handler [service mood closing]
  (let [requests (atom {})]
    (reify HttpHandler
      (handle [_ exchange]
        (with-open [exchange exchange]
          (let [order (order-of exchange)
                n (get (swap! requests update order (fnil inc 0)) order)]
            (answer! exchange (mood service order n) service closing)))))))

(defn start!
  "Starts a service on a free port, with a virtual thread for each request, and returns it, with its
  :url."
  [service mood]
  (let [closing (promise), executor (Executors/newVirtualThreadPerTaskExecutor)
        server (HttpServer/create (InetSocketAddress. (InetAddress/getLoopbackAddress) 0) 0)]
    (doto server
      (.setExecutor executor)
      (.createContext "/" (handler service mood closing))
      (.start))
    {:server server, :executor executor, :closing closing
     :url (str "http://127.0.0.1:" (.getPort (.getAddress server)) "/")}))

(defn stop!
  "Stops a service; waits until none of its requests runs."
  [{:keys [^HttpServer server ^ExecutorService executor closing]}]
  (deliver closing :now)
  (.stop server 0)
  (.close executor))

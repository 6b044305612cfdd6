(ns thrum.server.tck.broken
  "Ways to break a server: Thrum's own, behind something that damages what goes in or comes out. A
  breakage is what tck/run takes: {:run-server f, …}."
  (:require
   [thrum.server :as server]
   [thrum.server.tck.naive :as naive]
   [thrum.server.tck.scene :as scene])
  (:import
   (java.io IOException InputStream OutputStream)
   (java.net InetAddress ServerSocket Socket)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

;; Around what is given to run-server

(defn options
  "A server that takes (f options) for its options."
  [f]
  {:run-server (fn [handler given] (server/run-server handler (f given)))})

(defn without
  "A server that ignores these options."
  [& ks]
  (options #(apply dissoc % ks)))

(defn setting
  "A server that takes this value for the option, where one is given."
  [k v]
  (options #(if (contains? % k) (assoc % k v) %)))

(defn callbacks
  "A server that wraps its options' functions in (f function)."
  [f]
  (options
    (fn [given]
      (cond-> (reduce #(if (fn? (%1 %2)) (update %1 %2 f) %1) given [:error-handler :on-overload])
        (:observer given) (update :observer update-vals f)))))

(defn handler
  "A server whose handler is (f handler)."
  [f]
  {:run-server (fn [handler options] (server/run-server (f handler) options))})

(defn- handle
  "Returns the handler that calls h with (before request), and answers (after request response)."
  [h before after]
  (if (ifn? h)
    (fn
      ([request] (after request (h (before request))))
      ([request respond raise] (h (before request) #(respond (after request %)) raise)))
    h))

(defn request
  "A server whose handlers get (f request)."
  [f]
  (handler #(handle % f (fn [_ response] response))))

(defn response
  "A server that sends (f response)."
  [f]
  (handler #(handle % identity (fn [_ response] (f response)))))

(defn exchange
  "A server that sends (f request response)."
  [f]
  (handler #(handle % identity f)))

;; Around the functions beside it

(defn tools
  "Thrum's server, with these functions in place of its own."
  [given]
  (merge {:run-server server/run-server
          :stop server/stop!
          :port server/port
          :status server/status
          :ready? server/ready?
          :sse server/sse
          :send! server/send!
          :ssl-port server/ssl-port
          :close! server/close!
          :open? server/open?}
         given))

(defn naive
  "The naive server, which breaks these rules."
  [& breaks]
  {:run-server (partial naive/run-server breaks)
   :stop naive/stop!
   :port naive/port
   :capabilities #{:http-1.0}})

;; On the wire

(defn- pump
  "Copies what comes, each piece as the text that (f text) makes of it, then the end, for which f
  gets an empty text. What f throws closes both."
  [^Socket from ^Socket to f]
  (try
    (let [^InputStream in (.getInputStream from)
          ^OutputStream out (.getOutputStream to)
          piece (byte-array 65536)]
      (loop []
        (let [n (.read in piece)]
          (if (neg? n)
            (do
              (f "")
              (.shutdownOutput to))
            (let [^String text (f (String. piece 0 n StandardCharsets/ISO_8859_1))]
              (.write out (.getBytes text StandardCharsets/ISO_8859_1))
              (recur))))))
    (catch IOException _ (.close from) (.close to))))

(defn- relay [^Socket client port up down]
  (let [upstream (Socket. (InetAddress/getByName "127.0.0.1") (int port))]
    (scene/thread #(pump client upstream up))
    (scene/thread #(pump upstream client down))))

(defn- proxy-of [port up down]
  (let [listener (ServerSocket. 0 200 (InetAddress/getByName "127.0.0.1"))]
    (scene/thread
      #(try (loop [] (relay (.accept listener) port up down) (recur))
            (catch IOException _ (.close listener))))
    listener))

(defn wire
  "Thrum's server behind a proxy that changes the text of requests by up and that of responses by
  down."
  [up down]
  (tools
    {:run-server (fn [handler options]
                   (let [s (server/run-server handler options)]
                     {:server s, :listener (proxy-of (server/port s) up down)}))
     :stop (fn [{:keys [server ^ServerSocket listener]}] (server/stop! server) (.close listener))
     :port (fn [{:keys [^ServerSocket listener]}] (.getLocalPort listener))
     :status (comp server/status :server)
     :ready? (comp server/ready? :server)}))

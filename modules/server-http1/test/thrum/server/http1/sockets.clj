(ns thrum.server.http1.sockets
  "Connections of a client that has sent something and nothing more."
  (:require
   [thrum.server.http1.connection :as connection])
  (:import
   (java.net InetAddress ServerSocket Socket)
   (java.nio.charset StandardCharsets)))

(set! *warn-on-reflection* true)

(def options
  "Those of a server that the tests need."
  {:header-timeout-ms 5000, :idle-timeout-ms 5000, :max-header-bytes 16384})

(defn send-and-finish!
  "Sends the text on a thread of its own, which does not matter behind the test, and then a FIN."
  [^Socket socket ^String text]
  (.start (Thread/ofVirtual)
          #(try
             (.write (.getOutputStream socket) (.getBytes text StandardCharsets/ISO_8859_1))
             (.shutdownOutput socket)
             (catch java.io.IOException _))))

(defn call-with-client
  "Calls (f connection client), of a client that has sent the text and a FIN; text nil: nothing."
  [text f]
  (with-open [listener (ServerSocket. 0 1 (InetAddress/getLoopbackAddress))
              client (Socket. (InetAddress/getLoopbackAddress) (.getLocalPort listener))
              socket (.accept listener)]
    (when text (send-and-finish! client text))
    (f (connection/connection socket socket options) client)))

(defmacro with-client
  "Runs the body with c, the connection of a client that has sent the text and a FIN."
  [[c text] & body]
  `(call-with-client ~text (fn [~c _#] ~@body)))

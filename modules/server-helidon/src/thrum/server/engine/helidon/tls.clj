(ns thrum.server.engine.helidon.tls
  "From the options to sockets of TLS."
  (:require
   [thrum.server.spi.tls :as spi-tls])
  (:import
   (java.io InputStream)
   (java.net Socket)
   (javax.net.ssl SSLPeerUnverifiedException SSLSocket SSLSocketFactory)))

(set! *warn-on-reflection* true)

(defn- layered
  "Returns a socket of TLS, its server's end, on top of a connected one, which it closes when it is
  closed."
  ^SSLSocket [^SSLSocketFactory factory ^Socket raw]
  (.createSocket factory raw ^InputStream (cast InputStream nil) true))

(defn securing
  "Returns a function from a connected socket to a SSLSocket on top of it, whose handshake has not
  begun. Throws what the key stores do where they cannot be loaded."
  [{:keys [client-auth] :as options}]
  (let [factory (.getSocketFactory (spi-tls/ssl-context options))]
    (fn [raw]
      (let [socket (layered factory raw)
            parameters (doto (.getSSLParameters socket)
                         (.setApplicationProtocols (into-array String ["http/1.1"])))]
        (case client-auth
          :need (.setNeedClientAuth parameters true)
          :want (.setWantClientAuth parameters true)
          nil)
        (doto socket
          (.setUseClientMode false)
          (.setSSLParameters parameters))))))

(defn certificate
  "Returns the client's certificate, or nil."
  [^SSLSocket socket]
  (try
    (aget ^"[Ljava.security.cert.Certificate;" (.getPeerCertificates (.getSession socket)) 0)
    (catch SSLPeerUnverifiedException _)))

(ns thrum.server.http1.tls
  "TLS on top of an accepted socket."
  (:require
   [thrum.server.spi.tls :as tls])
  (:import
   (java.io InputStream)
   (java.net Socket)
   (java.security.cert Certificate)
   (javax.net.ssl SSLPeerUnverifiedException SSLSocket SSLSocketFactory)))

(set! *warn-on-reflection* true)

(defn- layered
  "Returns a socket of TLS, its server's end, on top of a connected one, which it closes when it is
  closed."
  ^SSLSocket [^SSLSocketFactory factory ^Socket raw]
  (.createSocket factory raw ^InputStream (cast InputStream nil) true))

(defn securing
  "Returns a function from a connected socket to a SSLSocket on top of it, whose handshake has not
  begun. Throws as thrum.server.spi.tls/ssl-context does."
  [{:keys [client-auth] :as options}]
  (let [factory (.getSocketFactory (tls/ssl-context options))]
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
    (aget ^Certificate/1 (.getPeerCertificates (.getSession socket)) 0)
    (catch SSLPeerUnverifiedException _)))

(ns thrum.server.engine.helidon.tls
  "From the options to sockets of TLS."
  (:import
   (java.io File InputStream)
   (java.net Socket)
   (java.security KeyStore)
   (javax.net.ssl KeyManagerFactory SSLContext SSLPeerUnverifiedException SSLSocket SSLSocketFactory TrustManagerFactory)))

(set! *warn-on-reflection* true)

(defn- chars-of ^chars [^String password]
  (some-> password .toCharArray))

(defn- load-store ^KeyStore [store password]
  (cond
    (instance? KeyStore store) store
    (instance? File store) (KeyStore/getInstance ^File store (chars-of password))
    :else (recur (File. ^String store) password)))

(defn- key-managers ^"[Ljavax.net.ssl.KeyManager;" [{:keys [keystore key-password]}]
  (.getKeyManagers (doto (KeyManagerFactory/getInstance "PKIX")
                     (.init (load-store keystore key-password) (chars-of key-password)))))

(defn- trust-managers
  "Returns nil where the JVM's own certificates count."
  ^"[Ljavax.net.ssl.TrustManager;" [{:keys [truststore trust-password]}]
  (when truststore
    (.getTrustManagers (doto (TrustManagerFactory/getInstance "PKIX")
                         (.init (load-store truststore trust-password))))))

(defn- context ^SSLContext [{:keys [ssl-context] :as options}]
  (or ssl-context
      (doto (SSLContext/getInstance "TLS")
        (.init (key-managers options) (trust-managers options) nil))))

(defn- layered
  "Returns a socket of TLS, its server's end, on top of a connected one, which it closes when it is
  closed."
  ^SSLSocket [^SSLSocketFactory factory ^Socket raw]
  (.createSocket factory raw ^InputStream (cast InputStream nil) true))

(defn securing
  "Returns a function from a connected socket to a SSLSocket on top of it, whose handshake has not
  begun. Throws what the key stores do where they cannot be loaded."
  [{:keys [client-auth] :as options}]
  (let [factory (.getSocketFactory (context options))]
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

(ns thrum.server.engine.helidon.tls
  "From the options to Helidon's view of TLS."
  (:import
   (io.helidon.common.tls Tls TlsClientAuth)
   (java.io File)
   (java.security KeyStore)
   (javax.net.ssl KeyManagerFactory SSLContext TrustManagerFactory)))

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
    (.getTrustManagers (doto (TrustManagerFactory/getInstance "PKIX") (.init (load-store truststore trust-password))))))

(defn- context ^SSLContext [{:keys [ssl-context] :as options}]
  (or ssl-context
      (doto (SSLContext/getInstance "TLS")
        (.init (key-managers options) (trust-managers options) nil))))

(defn tls
  "Returns Helidon's TLS. Throws what the key stores do where they cannot be loaded."
  ^Tls [{:keys [client-auth] :as options}]
  (.build (doto (Tls/builder)
            (.sslContext (context options))
            (.clientAuth (case client-auth
                           :need TlsClientAuth/REQUIRED
                           :want TlsClientAuth/OPTIONAL
                           TlsClientAuth/NONE))
            ;; Otherwise a client's certificate would have to name its address.
            (.endpointIdentificationAlgorithm Tls/ENDPOINT_IDENTIFICATION_NONE))))

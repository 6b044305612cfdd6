(ns thrum.server.spi.tls
  "The SSLContext that a server's options ask for, for every engine."
  (:import
   (java.io File)
   (java.security KeyStore)
   (javax.net.ssl KeyManager KeyManagerFactory SSLContext TrustManager TrustManagerFactory)))

(set! *warn-on-reflection* true)

(defn- chars-of ^chars [^String password]
  (some-> password .toCharArray))

(defn- load-store ^KeyStore [store password]
  (cond
    (instance? KeyStore store) store
    (instance? File store) (KeyStore/getInstance ^File store (chars-of password))
    :else (recur (File. ^String store) password)))

(defn- key-managers ^KeyManager/1 [{:keys [keystore key-password]}]
  (.getKeyManagers (doto (KeyManagerFactory/getInstance "PKIX")
                     (.init (load-store keystore key-password) (chars-of key-password)))))

(defn- trust-managers
  "Returns nil where the JVM's own certificates count."
  ^TrustManager/1 [{:keys [truststore trust-password]}]
  (when truststore
    (.getTrustManagers (doto (TrustManagerFactory/getInstance "PKIX")
                         (.init (load-store truststore trust-password))))))

(defn ssl-context
  "Returns the options' :ssl-context, or one of :keystore, :key-password, :truststore and
  :trust-password; a store is a KeyStore, a File or a path. Throws IOException for a file that
  cannot be read, or not with its password."
  ^SSLContext [{:keys [ssl-context] :as options}]
  (or ssl-context
      (doto (SSLContext/getInstance "TLS")
        (.init (key-managers options) (trust-managers options) nil))))

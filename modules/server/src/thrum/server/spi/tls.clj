(ns thrum.server.spi.tls
  "The SSLContext that a server's options ask for, for every engine."
  (:import
   (java.io File)
   (java.security KeyStore KeyStoreException PrivateKey UnrecoverableKeyException)
   (javax.net.ssl KeyManager KeyManagerFactory SSLContext TrustManager TrustManagerFactory)))

(set! *warn-on-reflection* true)

(defn- chars-of ^chars [^String password]
  (some-> password .toCharArray))

(defn- load-store ^KeyStore [store password]
  (cond
    (instance? KeyStore store) store
    (instance? File store) (KeyStore/getInstance ^File store (chars-of password))
    :else (recur (File. ^String store) password)))

(defn- key?
  "True if the alias has a private key that the password opens, and a certificate: without a
  password a store may have the one and not the other."
  [^KeyStore store password alias]
  (try
    (and (instance? PrivateKey (.getKey store alias (chars-of password)))
         (pos? (count (.getCertificateChain store alias))))
    (catch Exception _ false)))

;; The factory reads a key at the first handshake only, and leaves out one that it cannot read.
(defn- checked-key ^KeyStore [^KeyStore store password]
  (when-not (some #(key? store password %) (enumeration-seq (.aliases store)))
    (throw (UnrecoverableKeyException.
             (str "The :keystore has no private key that "
                  (if password "the :key-password opens" "can be read without a :key-password")))))
  store)

(defn- key-managers ^KeyManager/1 [{:keys [keystore key-password]}]
  (.getKeyManagers (doto (KeyManagerFactory/getInstance "PKIX")
                     (.init (checked-key (load-store keystore key-password) key-password)
                            (chars-of key-password)))))

(defn- checked-certificate ^KeyStore [^KeyStore store password]
  (when-not (some #(.getCertificate store %) (enumeration-seq (.aliases store)))
    (throw (KeyStoreException.
             (str "The :truststore has no certificate"
                  (when-not password " that can be read without a :trust-password")))))
  store)

(defn- trust-managers
  "Returns nil where the JVM's own certificates count."
  ^TrustManager/1 [{:keys [truststore trust-password]}]
  (when truststore
    (.getTrustManagers (doto (TrustManagerFactory/getInstance "PKIX")
                         (.init (checked-certificate (load-store truststore trust-password)
                                                     trust-password))))))

(defn ssl-context
  "Returns the options' :ssl-context, or one of :keystore, :key-password, :truststore and
  :trust-password; a store is a KeyStore, a File or a path. Throws IOException for a file that
  cannot be read, or not with its password; UnrecoverableKeyException where :keystore has no private
  key that can be read, KeyStoreException where :truststore has no certificate."
  ^SSLContext [{:keys [ssl-context] :as options}]
  (or ssl-context
      (doto (SSLContext/getInstance "TLS")
        (.init (key-managers options) (trust-managers options) nil))))

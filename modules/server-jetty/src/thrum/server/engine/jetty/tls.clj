(ns thrum.server.engine.jetty.tls
  "From the options to Jetty's view of TLS."
  (:import
   (java.io File)
   (java.security KeyStore)
   (javax.net.ssl SSLContext)
   (org.eclipse.jetty.http2 HTTP2Cipher)
   (org.eclipse.jetty.util.ssl SslContextFactory$Server)))

(set! *warn-on-reflection* true)

(defn- path ^String [store]
  (str (.toPath (if (instance? File store) ^File store (File. ^String store)))))

(defn- set-keys! [^SslContextFactory$Server tls keystore ^String password]
  (if (instance? KeyStore keystore)
    (.setKeyStore tls keystore)
    (.setKeyStorePath tls (path keystore)))
  (.setKeyStorePassword tls password))

(defn- set-trust! [^SslContextFactory$Server tls truststore ^String password]
  (if (instance? KeyStore truststore)
    (.setTrustStore tls truststore)
    (.setTrustStorePath tls (path truststore)))
  (.setTrustStorePassword tls password))

(defn tls
  "Returns Jetty's factory of TLS connections."
  ^SslContextFactory$Server
  [{:keys [^SSLContext ssl-context keystore key-password truststore trust-password client-auth]}]
  (let [tls (doto (SslContextFactory$Server.) (.setCipherComparator HTTP2Cipher/COMPARATOR))]
    (when ssl-context (.setSslContext tls ssl-context))
    (when keystore (set-keys! tls keystore key-password))
    (when truststore (set-trust! tls truststore trust-password))
    (.setNeedClientAuth tls (= :need client-auth))
    (.setWantClientAuth tls (= :want client-auth))
    tls))

(ns thrum.server.engine.tomcat.tls
  "From the options to Tomcat's view of TLS."
  (:import
   (java.io File)
   (java.security KeyStore)
   (javax.net.ssl SSLContext)
   (org.apache.coyote.http11 Http11NioProtocol)
   (org.apache.tomcat.util.net SSLHostConfig SSLHostConfigCertificate SSLHostConfigCertificate$Type)))

(set! *warn-on-reflection* true)

(defn- loaded
  "Returns the key store, read from its file where it is one. Throws IOException for a wrong
  password."
  ^KeyStore [store ^String password]
  (if (instance? KeyStore store)
    store
    (let [^File file (if (instance? File store) store (File. ^String store))
          ^chars secret (when password (.toCharArray password))]
      (KeyStore/getInstance file secret))))

(defn- foreign
  "Returns the user's context as Tomcat has them."
  ^org.apache.tomcat.util.net.SSLContext [^SSLContext context]
  (reify org.apache.tomcat.util.net.SSLContext
    (init [_ _ _ _])
    (destroy [_])
    (getServerSessionContext [_] (.getServerSessionContext context))
    (createSSLEngine [_] (.createSSLEngine context))
    (getServerSocketFactory [_] (.getServerSocketFactory context))
    (getSupportedSSLParameters [_] (.getSupportedSSLParameters context))
    (getCertificateChain [_ _] nil)
    (getAcceptedIssuers [_] nil)))

(def ^:private verification {:need "required", :want "optional"})

(defn secure!
  "Has the protocol speak TLS."
  [^Http11NioProtocol protocol
   {:keys [ssl-context keystore key-password truststore trust-password client-auth]}]
  (let [host (SSLHostConfig.)
        certificate (SSLHostConfigCertificate. host SSLHostConfigCertificate$Type/UNDEFINED)]
    (when ssl-context (.setSslContext certificate (foreign ssl-context)))
    (when keystore
      (.setCertificateKeystore certificate (loaded keystore key-password))
      (.setCertificateKeystorePassword certificate (or key-password "")))
    (when truststore (.setTrustStore host (loaded truststore trust-password)))
    (.setCertificateVerification host (verification client-auth "none"))
    (.addCertificate host certificate)
    (doto protocol (.setSSLEnabled true) (.addSslHostConfig host))))

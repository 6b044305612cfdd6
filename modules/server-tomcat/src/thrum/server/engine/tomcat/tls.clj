(ns thrum.server.engine.tomcat.tls
  "From the options to Tomcat's view of TLS."
  (:require
   [thrum.server.spi.tls :as tls])
  (:import
   (javax.net.ssl SSLContext)
   (org.apache.coyote.http11 Http11NioProtocol)
   (org.apache.tomcat.util.net SSLHostConfig SSLHostConfigCertificate SSLHostConfigCertificate$Type)))

(set! *warn-on-reflection* true)

(defn- foreign
  "Returns the context as Tomcat has them."
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
  [^Http11NioProtocol protocol {:keys [client-auth] :as options}]
  (let [host (SSLHostConfig.)
        certificate (SSLHostConfigCertificate. host SSLHostConfigCertificate$Type/UNDEFINED)]
    (.setSslContext certificate (foreign (tls/ssl-context options)))
    (.setCertificateVerification host (verification client-auth "none"))
    (.addCertificate host certificate)
    (doto protocol (.setSSLEnabled true) (.addSslHostConfig host))))

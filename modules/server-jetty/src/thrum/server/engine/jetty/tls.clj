(ns thrum.server.engine.jetty.tls
  "From the options to Jetty's view of TLS."
  (:require
   [thrum.server.spi.tls :as tls])
  (:import
   (org.eclipse.jetty.http2 HTTP2Cipher)
   (org.eclipse.jetty.util.ssl SslContextFactory$Server)))

(set! *warn-on-reflection* true)

(defn factory
  "Returns Jetty's factory of TLS connections."
  ^SslContextFactory$Server [{:keys [client-auth] :as options}]
  (doto (SslContextFactory$Server.)
    (.setCipherComparator HTTP2Cipher/COMPARATOR)
    (.setSslContext (tls/ssl-context options))
    (.setNeedClientAuth (= :need client-auth))
    (.setWantClientAuth (= :want client-auth))))

(ns thrum.server.spi.tls-test
  "A store that would fail each handshake fails the start."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.server.spi.tls :as tls]
   [thrum.server.tck.tls :as keys])
  (:import
   (java.security KeyStore KeyStoreException UnrecoverableKeyException)
   (javax.net.ssl SSLContext)))

(set! *warn-on-reflection* true)

(defn- empty-store []
  (doto (KeyStore/getInstance "PKCS12") (.load nil nil)))

(defn- thrown [options]
  (try (tls/ssl-context (merge (keys/keystore) options)) nil (catch Exception e e)))

(deftest a-key-store-without-a-key-that-can-be-read-is-refused
  (are [options part] (let [e (thrown options)]
                        (and (instance? UnrecoverableKeyException e)
                             (str/includes? (ex-message e) part)))
    {:key-password nil}
    "without a :key-password"
    {:keystore (empty-store)}
    "no private key that the :key-password opens"))

(deftest a-trust-store-without-a-certificate-that-can-be-read-is-refused
  (are [options part] (let [e (thrown options)]
                        (and (instance? KeyStoreException e) (str/includes? (ex-message e) part)))
    {:truststore (:keystore (keys/keystore))}
    "without a :trust-password"
    {:truststore (empty-store), :trust-password "x"}
    "no certificate"))

(deftest stores-that-can-be-read-make-a-context
  (let [{:keys [keystore key-password]} (keys/keystore)
        options {:truststore keystore, :trust-password key-password}]
    (is (instance? SSLContext (tls/ssl-context (merge (keys/keystore) options))))))

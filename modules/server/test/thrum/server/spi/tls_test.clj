(ns thrum.server.spi.tls-test
  "A store that would fail each handshake fails the start."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.server.spi.tls :as tls]
   [thrum.server.tck.tls :as keys])
  (:import
   (java.io File FileOutputStream)
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

(defn- with-empty-password
  "Returns a file of a store whose password is empty."
  ^File []
  (let [{:keys [keystore key-password]} (keys/keystore)
        password (.toCharArray ^String key-password)
        full (KeyStore/getInstance (File. ^String keystore) password)
        none (char-array 0)
        alias (first (enumeration-seq (.aliases full)))
        store ^KeyStore (empty-store)
        file (doto (File/createTempFile "thrum" ".p12") .deleteOnExit)]
    (.setKeyEntry store alias (.getKey full alias password) none (.getCertificateChain full alias))
    (with-open [out (FileOutputStream. file)] (.store store out none))
    file))

(deftest a-key-store-whose-certificates-need-an-empty-password-is-refused-without-it
  (let [file (with-empty-password)]
    (is (instance? UnrecoverableKeyException (thrown {:keystore file, :key-password nil})))
    (is (nil? (thrown {:keystore file, :key-password ""})))))

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

(ns thrum.test-kit.keys
  "Keys and certificates for tests, made by the JDK's keytool in a folder that ends with the JVM."
  (:import
   (java.io File FileInputStream FileOutputStream)
   (java.net Socket)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.security KeyStore)
   (java.util.concurrent TimeUnit)
   (javax.net.ssl KeyManagerFactory SSLContext TrustManagerFactory)))

(set! *warn-on-reflection* true)

(def password
  "That of every store."
  "correct-horse")

(def ^:private ^File folder
  (delay (doto (.toFile (Files/createTempDirectory "thrum-keys" (into-array FileAttribute [])))
           (.deleteOnExit))))

(defn- file ^File [file-name]
  (doto (File. ^File @folder ^String file-name) (.deleteOnExit)))

(def ^:private few-iterations
  "10 000 iterations take tens of ms each time that a store is read."
  (for [what ["certPbe" "keyPbe" "mac"]]
    (str "-J-Dkeystore.pkcs12." what "IterationCount=1")))

(defn- keytool! [& args]
  (let [tool (str (File. (System/getProperty "java.home") "bin/keytool"))
        process (-> (ProcessBuilder. ^java.util.List (concat [tool] args few-iterations))
                    (.redirectErrorStream true)
                    (.redirectOutput (file "keytool.log"))
                    (.start))]
    (when-not (and (.waitFor process 120 TimeUnit/SECONDS) (zero? (.exitValue process)))
      (throw (ex-info "keytool failed" {:args args, :said (slurp (file "keytool.log"))})))))

(defn- make-key-store
  [owner]
  (let [store (file (str owner ".p12"))]
    (keytool! "-genkeypair"
              "-alias" owner
              "-keyalg" "EC"
              "-dname" (str "CN=" owner)
              "-ext" "san=dns:localhost,ip:127.0.0.1"
              "-validity" "2"
              "-storetype" "PKCS12"
              "-keystore" (str store)
              "-storepass" password)
    store))

(defn loaded
  "Returns the KeyStore in the file."
  ^KeyStore [store]
  (with-open [in (FileInputStream. ^File store)]
    (doto (KeyStore/getInstance "PKCS12") (.load in (.toCharArray ^String password)))))

(defn- make-trust-store [owner key-store]
  (let [store (file (str owner "-trust.p12"))
        trusted (doto (KeyStore/getInstance "PKCS12")
                  (.load nil nil)
                  (.setCertificateEntry owner (.getCertificate (loaded key-store) owner)))]
    (with-open [out (FileOutputStream. store)]
      (.store trusted out (.toCharArray ^String password)))
    store))

(def ^:private stores
  (delay (into {} (for [owner ["server" "client"] :let [store (make-key-store owner)]]
                    [owner {:keys store, :trust (make-trust-store owner store)}]))))

(defn key-store
  "Returns the file with the key of \"server\" or \"client\"."
  ^File [owner]
  (get-in @stores [owner :keys]))

(defn trust-store
  "Returns the file with the certificate of \"server\" or \"client\"."
  ^File [owner]
  (get-in @stores [owner :trust]))

(defn- key-managers [store]
  (.getKeyManagers (doto (KeyManagerFactory/getInstance (KeyManagerFactory/getDefaultAlgorithm))
                     (.init (loaded store) (.toCharArray ^String password)))))

(defn- trust-managers
  [store]
  (.getTrustManagers (doto (TrustManagerFactory/getInstance
                             (TrustManagerFactory/getDefaultAlgorithm))
                       (.init ^KeyStore (loaded store)))))

(defn context
  "Returns the SSLContext of one side, who trusts the other; own: \"server\", \"client\", or nil for
  who shows nothing."
  ^SSLContext [own trusted]
  (doto (SSLContext/getInstance "TLS")
    (.init (when own (key-managers (key-store own))) (trust-managers (trust-store trusted)) nil)))

(defn connect
  "Returns a TLS connection of a client without a certificate."
  ^Socket [port]
  (.createSocket (.getSocketFactory (context nil "server")) "localhost" (int port)))

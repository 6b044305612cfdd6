(ns thrum.server.tck.tls
  "Chapter: TLS and client certificates, with keys that the JDK's keytool makes."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.server.tck.clients :as clients]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.silence :as silence]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io File IOException)
   (java.net InetAddress Socket)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.security KeyStore SecureRandom)
   (java.security.cert X509Certificate)
   (javax.net.ssl KeyManager KeyManagerFactory SSLContext SSLSocket TrustManager X509ExtendedTrustManager)))

(set! *warn-on-reflection* true)

(def ^:private password "secret-7391")

;; Keys

(def ^:private few-iterations
  "A store is read with each context that is made, and 10 000 iterations take tens of ms each time."
  (for [what ["certPbe" "keyPbe" "mac"]]
    (str "-J-Dkeystore.pkcs12." what "IterationCount=1")))

(defn- keytool
  [& args]
  (let [tool (str (io/file (System/getProperty "java.home") "bin" "keytool"))
        command (concat [tool] args few-iterations)
        process (.start (doto (ProcessBuilder. ^java.util.List command)
                          (.redirectErrorStream true)))
        said (slurp (.getInputStream process))]
    (when-not (zero? (.waitFor process)) (scene/skip (str "keytool failed: " said)))))

(defn- make-store
  ^File [common-name]
  (let [folder (.toFile (Files/createTempDirectory "tck" (make-array FileAttribute 0)))
        file (io/file folder "keys.p12")]
    (run! #(File/.deleteOnExit %) [folder file])
    (keytool "-genkeypair"
             "-alias" "key"
             "-keyalg" "EC"
             "-dname" (str "CN=" common-name)
             "-ext" "san=dns:localhost,ip:127.0.0.1"
             "-validity" "2"
             "-storetype" "PKCS12"
             "-keystore" (str file)
             "-storepass" password)
    file))

(def ^:private server-file (delay (make-store "localhost")))
(def ^:private client-file (delay (make-store "tck-client")))

(defn- load-store ^KeyStore [file]
  (with-open [in (io/input-stream file)]
    (doto (KeyStore/getInstance "PKCS12") (.load in (String/.toCharArray password)))))

(defn- trusted
  "Returns a store that trusts the certificate of the client's."
  ^KeyStore []
  (doto (KeyStore/getInstance "PKCS12")
    (.load nil nil)
    (.setCertificateEntry "client" (.getCertificate (load-store @client-file) "key"))))

;; Clients

(def ^:private trusts-all
  (proxy [X509ExtendedTrustManager] []
    (checkServerTrusted ([_ _]) ([_ _ _]))
    (checkClientTrusted ([_ _]) ([_ _ _]))
    (getAcceptedIssuers [] (make-array X509Certificate 0))))

(defn- key-managers
  ^"[Ljavax.net.ssl.KeyManager;" [file]
  (when file
    (.getKeyManagers (doto (KeyManagerFactory/getInstance "PKIX")
                       (.init (load-store file) (String/.toCharArray password))))))

(defn context
  "Returns an SSLContext that trusts every server, with the key of which: :client, :server, or nil:
  with none."
  ^SSLContext [which]
  (let [file (case which :client @client-file, :server @server-file, nil)]
    (doto (SSLContext/getInstance "TLS")
      (.init ^"[Ljavax.net.ssl.KeyManager;" (or (key-managers file) (make-array KeyManager 0))
             (into-array TrustManager [trusts-all]) (SecureRandom.)))))

(defn keystore
  "Returns the options of a server with TLS."
  []
  {:ssl-port 0, :keystore (str @server-file), :key-password password})

(defn- shake-hands!
  "Has the JVM do its first handshake, which takes seconds on a busy machine."
  []
  (with-open [listener (.createServerSocket (.getServerSocketFactory (context :server))
                                            0
                                            1
                                            (InetAddress/getLoopbackAddress))
              client (.createSocket (.getSocketFactory (context :client))
                                    (InetAddress/getLoopbackAddress)
                                    (.getLocalPort listener))]
    (let [accepted (scene/start #(with-open [socket (.accept listener)]
                                   (.startHandshake ^SSLSocket socket)))]
      (.startHandshake ^SSLSocket client)
      (scene/within accepted "a handshake"))))

(def ^:private ready
  (delay (try
           (run! deref [server-file client-file])
           (shake-hands!)
           (catch Exception _))))

(defn make-keys!
  "Makes the keys, and does a handshake, which takes seconds, once a JVM and before a case needs
  them; each says itself where that fails."
  []
  @ready)

(defn- secure
  "Returns a client over TLS, which waits for so many ms; throws IOException."
  [env server which & [ms]]
  (let [socket (.createSocket (.getSocketFactory (context which))
                              "127.0.0.1"
                              (int (scene/tool env :ssl-port server)))]
    (scene/at-end env #(Socket/.close socket))
    (.setSoTimeout socket (or ms wire/patience-ms))
    (.startHandshake ^SSLSocket socket)
    (wire/client socket)))

(defn- client
  "Returns a client over TLS; fails where there is no handshake."
  [env server which]
  (try (secure env server which) (catch IOException e (scene/fail "a handshake" (str e)))))

(defn- seen-by-handler [env options which]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen r) (scene/ok r)) (merge (keystore) options))]
    (expect-status 200 (wire/ask! (client env server which) (wire/get "/")))
    @seen))

;; Cases

(def ^:private tls
  {:needs #{:tls}, :refuses {:ssl-port 0}, :uses #{:ssl-port}})

(def ^:private certificates
  {:needs #{:tls :client-certificates}, :refuses {:client-auth :need}, :uses #{:ssl-port}})

(defcase tls-serves "4.2"
  "Over TLS the scheme is :https, and a client that shows no certificate has none."
  tls
  [env]
  (expect= [:https nil] ((juxt :scheme :ssl-client-cert) (seen-by-handler env {} nil))))

(defcase tls-serves-any-host "4.2"
  "Over TLS a request is served with every Host, an address too: the client checks the certificate's
  name."
  tls
  [env]
  (let [server (scene/serve env scene/ok (keystore))]
    (doseq [host ["probe.internal" "10.1.2.3:8443" "[::1]"]]
      (expect-status 200
                     (wire/ask!
                       (client env server nil)
                       (str/replace (wire/get "/") "Host: localhost" (str "Host: " host)))))))

(defcase tls-by-context "4.10"
  "An SSLContext of one's own is served."
  tls
  [env]
  (let [server (scene/serve env scene/ok {:ssl-port 0, :ssl-context (context :server)})]
    (expect-status 200 (wire/ask! (client env server nil) (wire/get "/")))))

(defcase tls-alone "4.10"
  "With :port nil nothing but TLS is served."
  tls
  [env]
  (let [server (scene/serve env scene/ok (assoc (keystore) :port nil))]
    (expect-status 200 (wire/ask! (client env server nil) (wire/get "/")))
    (expect= nil (scene/port-of env server))))

(defn- start-error [env options]
  (try (scene/serve env scene/ok options) nil (catch Exception e e)))

(defn- texts [^Throwable t]
  (str/join " " (for [t (take-while some? (iterate ex-cause t))] (str t (ex-data t)))))

(defcase tls-wrong-password "4.10"
  "A wrong key store password, or none, throws :thrum/start-failed with a cause, and shows no
  password."
  tls
  [env]
  (doseq [options [(assoc (keystore) :key-password "wrong-4711") (dissoc (keystore) :key-password)]
          :let [e (start-error env options)]]
    (expect= :thrum/start-failed (:type (ex-data e)))
    (expect (ex-cause e) "a cause" e)
    (expect (not (re-find #"4711|7391" (texts e))) "no password" (texts e))))

(defcase tls-missing-store "4.10"
  "A key store that does not exist throws :thrum/start-failed with a cause."
  tls
  [env]
  (let [e (start-error env (assoc (keystore) :keystore "no-such-store.p12"))]
    (expect= :thrum/start-failed (:type (ex-data e)))
    (expect (ex-cause e) "a cause" e)))

(defcase tls-garbage-is-survived "4.4"
  "Clients that speak no TLS on the TLS port are cut off, and the others are served."
  tls
  [env]
  (let [server (scene/serve env scene/ok (keystore))]
    (doseq [garbage [(wire/get "/") "\u0016\u0003\u0001\u00ff\u00ffgarbage"
                     (wire/text-of (byte-array 5000))]]
      (let [c (wire/connect (scene/tool env :ssl-port server))]
        (scene/at-end env #(wire/close! c))
        (wire/try-send! c garbage)))
    (expect-status 200 (wire/ask! (client env server nil) (wire/get "/")))))

(defcase tls-trickled-headers-are-given-up "4.4"
  "Over TLS too a client that sends a byte of its headers now and then is closed."
  tls
  [env]
  (let [server (scene/serve env scene/ok (assoc (keystore) :header-timeout-ms 1000))
        ;; On a busy machine a handshake may be too slow itself.
        c (scene/eventually #(try (secure env server nil) (catch IOException _ nil)))]
    (expect c "a handshake" :none)
    (wire/try-send! c "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    (silence/expect-end-of-trickle c)))

(defcase tls-lost-connections-give-their-places-back "4.4"
  "Connections that end before their handshake, within it or at once behind it give their places of
  :max-connections back."
  tls
  [env]
  (let [server (scene/serve env scene/ok (assoc (keystore) :max-connections 3))
        port (scene/tool env :ssl-port server)]
    (clients/hit-often! port
      ["" "\u0016" "\u0016\u0003\u0001\u0002\u0000\u0001" "GET / HTTP/1.1\r\n\r\n"])
    (dotimes [_ 3]
      (try
        (wire/reset!! (secure env server nil))
        (catch IOException _)))
    (expect (scene/eventually (fn [] (clients/all-served? 3 #(secure env server nil 2000))))
            "room for three"
            :less)))

(defcase tls-failing-body-is-cut "4.3"
  "Over TLS a body that fails half-way never looks complete."
  tls
  [env]
  (let [body #(lazy-seq (cons "some" (lazy-seq (throw (ex-info "secret" {})))))
        server (scene/serve env (fn [_] {:status 200, :headers {}, :body (body)}) (keystore))]
    (scene/expect-cut (wire/ask! (client env server nil) (wire/get "/")))))

(defcase client-certificate-is-one "4.2"
  "The client's certificate reaches the handler, as one X509Certificate."
  certificates
  [env]
  (let [{:keys [ssl-client-cert]}
        (seen-by-handler env {:client-auth :need, :truststore (trusted)} :client)]
    (expect (instance? X509Certificate ssl-client-cert) "an X509Certificate" ssl-client-cert)
    (expect= "CN=tck-client"
             (str (X509Certificate/.getSubjectX500Principal ssl-client-cert)))))

(defcase client-certificate-is-needed "4.10"
  "With :client-auth :need a client without a certificate is not served."
  certificates
  [env]
  (let [entered (promise)
        server (scene/serve env (fn [r] (deliver entered true) (scene/ok r))
                            (assoc (keystore) :client-auth :need, :truststore (trusted)))
        answer (try (wire/ask! (secure env server nil) (wire/get "/")) (catch IOException _ nil))]
    (expect= nil (:status answer))
    (expect (not (realized? entered)) "that the handler is not called" :called)))

(defcase client-certificate-is-wanted "4.10"
  "With :client-auth :want a client without a certificate is served, and one that has it shows it."
  certificates
  [env]
  (let [shown? #(some? (:ssl-client-cert
                         (seen-by-handler env {:client-auth :want, :truststore (trusted)} %)))]
    (expect= [false true] (mapv shown? [nil :client]))))

(ns thrum.server.engine.jetty.tls-test
  "TLS by Jetty: key stores, contexts, the certificates of clients, and which HTTP is spoken."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.test-kit.keys :as keys]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.io IOException)
   (java.net InetAddress Socket SocketException SocketTimeoutException URI)
   (java.net.http HttpClient HttpClient$Version HttpRequest HttpRequest$BodyPublishers HttpResponse HttpResponse$BodyHandlers)
   (java.nio ByteBuffer)
   (java.security.cert X509Certificate)
   (java.time Duration)
   (java.util Arrays)
   (javax.net.ssl SSLContext)))

(set! *warn-on-reflection* true)

(def ^:dynamic *engine*
  "The engine that is tested; Tomcat's tests bind it."
  :jetty)

(use-fixtures :each leak/no-leaks)

(defn- seen
  "A handler that answers with what it sees of the connection."
  [{:keys [scheme protocol ssl-client-cert body]}]
  {:status 200
   :headers {"X-Seen" (pr-str {:scheme scheme
                               :protocol protocol
                               :owner (some-> ^X509Certificate ssl-client-cert
                                              .getSubjectX500Principal
                                              str)})}
   :body body})

(defn- ask
  "Posts over TLS as the owner of a key, or without a key; returns the answer."
  [port owner]
  (with-open [client (-> (HttpClient/newBuilder)
                         (.sslContext (keys/context owner "server"))
                         (.connectTimeout (Duration/ofSeconds 5))
                         (.build))]
    (let [^HttpResponse answer (.send client
                                      (-> (HttpRequest/newBuilder
                                            (URI. (str "https://127.0.0.1:" port "/")))
                                          (.timeout (Duration/ofSeconds 10))
                                          (.POST (HttpRequest$BodyPublishers/ofString "ping"))
                                          (.build))
                                      (HttpResponse$BodyHandlers/ofString))]
      (merge {:version (str (.version answer)), :body (.body answer)}
             (read-string (.get (.firstValue (.headers answer) "x-seen")))))))

(defn- with-keys []
  {:engine *engine*, :port nil, :ssl-port 0, :stop-on-shutdown? false, :key-password keys/password})

(defn- ask-server
  "As ask, of a server with these options."
  [options owner]
  (with-open [^java.lang.AutoCloseable s
              (server/run-server seen
                                 (merge (with-keys) {:keystore (keys/key-store "server")} options))]
    (ask (server/ssl-port s) owner)))

(deftest http-2-is-offered-over-tls
  (is (= {:version (str HttpClient$Version/HTTP_2)
          :protocol "HTTP/2.0"
          :scheme :https
          :body "ping"
          :owner nil}
         (ask-server {} nil))))

(deftest without-http-2-tls-carries-http-1-1
  (is (= {:version (str HttpClient$Version/HTTP_1_1)
          :protocol "HTTP/1.1"
          :scheme :https
          :body "ping"
          :owner nil}
         (ask-server {:h2? false} nil))))

(deftest a-client-shows-one-certificate
  (doseq [asked [:need :want]
          h2? [true false]]
    (is (= "CN=client"
           (:owner (ask-server {:client-auth asked
                                :h2? h2?
                                :truststore (keys/trust-store "client")
                                :trust-password keys/password}
                               "client"))))))

(deftest a-certificate-that-is-wanted-may-be-missing
  (is (nil? (:owner (ask-server {:client-auth :want
                                 :truststore (keys/trust-store "client")
                                 :trust-password keys/password}
                                nil)))))

(deftest a-certificate-that-is-needed-must-be-there
  (is (thrown? IOException
               (ask-server {:client-auth :need
                            :truststore (keys/trust-store "client")
                            :trust-password keys/password}
                           nil))))

(deftest stores-may-be-given-as-they-are
  (doseq [keystore [(str (keys/key-store "server")) (keys/loaded (keys/key-store "server"))]]
    (is (= "ping" (:body (ask-server {:keystore keystore} nil))))))

(deftest an-ssl-context-replaces-the-stores
  (is (= "CN=client"
         (:owner (ask-server {:keystore nil
                              :key-password nil
                              :ssl-context (keys/context "server" "client")
                              :client-auth :need}
                             "client")))))

(deftest http-and-https-are-served-together
  (with-open [^java.lang.AutoCloseable s (server/run-server
                                           seen
                                           (merge (with-keys)
                                                  {:port 0, :keystore (keys/key-store "server")}))]
    (is (= :https (:scheme (ask (server/ssl-port s) nil))))
    (is
      (re-find #":scheme :http,"
               (str (.getHeaderField (.openConnection
                                       (.toURL (URI. (str "http://127.0.0.1:" (server/port s)
                                                       "/"))))
                                     "x-seen"))))))

;; Clients that stop

(defn- first-flight
  "Returns the first bytes of a client's handshake."
  ^bytes [protocol]
  (let [engine (doto (.createSSLEngine ^SSLContext (keys/context nil "server"))
                 (.setUseClientMode true)
                 (.setEnabledProtocols (into-array String [protocol])))
        sent (ByteBuffer/allocate 65536)]
    (.wrap engine (ByteBuffer/allocate 0) sent)
    (Arrays/copyOf (.array sent) (.position sent))))

(defn- ends?
  "True if the server ends the connection of a client that sends these bytes and no more."
  [port ^bytes sent]
  (with-open [socket (Socket. (InetAddress/getByName "127.0.0.1") (int port))]
    (.setSoTimeout socket 5000)
    (.write (.getOutputStream socket) sent)
    (try
      (.readAllBytes (.getInputStream socket))
      true
      (catch SocketTimeoutException _ false)
      (catch SocketException _ true))))

(deftest a-client-that-stops-within-the-handshake-is-closed
  (doseq [h2? [true false]]
    (with-open [^java.lang.AutoCloseable s
                (server/run-server seen
                                   (assoc (with-keys)
                                     :keystore (keys/key-store "server")
                                     :h2? h2?
                                     :header-timeout-ms 300))]
      (doseq [protocol ["TLSv1.3" "TLSv1.2"]]
        (is (ends? (server/ssl-port s) (first-flight protocol)) (str protocol " " h2?))))))

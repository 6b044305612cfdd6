(ns thrum.cluster.infinispan-test
  "Nodes of Infinispan's in this JVM: how they join, with TLS, and what is refused."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.cluster :as cluster]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.work :as work])
  (:import
   (java.io File)
   (java.lang ProcessBuilder)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def ^:private quiet
  (mapv #(doto (Logger/getLogger %) (.setLevel Level/OFF)) ["org.infinispan" "org.jgroups"]))

(defn- join! [cluster port & {:as options}]
  (cluster/join! (merge {:cluster cluster, :port port, :seeds [(str "127.0.0.1:" port)]
                         :name "n", :drain-timeout-ms 1000, :allow #{'thrum.cluster.work}}
                        options)))

(defn- caller! [cluster port & {:as options}]
  (cluster/join! (merge {:cluster cluster, :seeds [(str "127.0.0.1:" port)], :name "c"
                         :members-timeout-ms 20000}
                        options)))

(defn- thrown [f]
  (try
    (with-open [^java.lang.AutoCloseable _ (f)] :nothing-was-thrown)
    (catch Exception e e)))

(deftest a-large-argument-and-result-travel
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! "large" port)
                ^java.lang.AutoCloseable c (caller! "large" port)]
      (let [[a b] (first (cluster/pmapv c 1 #'work/two [(byte-array 3000000 (byte 7))] [:x]))]
        (is (= [3000000 7 :x] [(alength ^bytes a) (aget ^bytes a 2999999) b]))))))

(deftest a-port-in-use-is-a-sentence-and-leaves-nothing
  (let [[port] (processes/free-ports 1)
        platform-threads #(count (filter (fn [^Thread t] (.contains (.getName t) "thrum-cluster"))
                                         (keys (Thread/getAllStackTraces))))]
    (with-open [^java.lang.AutoCloseable _ (join! "port" port)]
      (let [before (platform-threads), e (thrown #(join! "port" port))]
        (is (= {:type :thrum/not-joined, :host "127.0.0.1", :port port} (ex-data e)))
        (is (.contains ^String (ex-message e) "the port is in use"))
        (is (= before (platform-threads)))))))

(deftest another-secret-is-refused-at-the-join
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! "secret" port :secret "one")]
      (is (= [:thrum/refused :secret]
             ((juxt :type :reason) (ex-data (thrown #(caller! "secret" port :secret "two"))))))
      (with-open [^java.lang.AutoCloseable c (caller! "secret" port :secret "one")]
        (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1])))))))

;; TLS

(defn- keytool! [& arguments]
  (let [tool (str (io/file (System/getProperty "java.home") "bin" "keytool"))
        process (-> (ProcessBuilder. ^java.util.List (into [tool] arguments))
                    (.redirectErrorStream true)
                    .start)]
    (slurp (.getInputStream process))
    (is (zero? (.waitFor process)))))

(defn- keys-of
  "Returns the :tls of a node with a key of its own, and the file of its certificate."
  [^File folder name]
  (let [store (str (io/file folder (str name ".p12")))
        cert (str (io/file folder (str name ".crt")))]
    (keytool! "-genkeypair" "-alias" name "-keyalg" "EC" "-dname" (str "CN=" name) "-validity" "2"
              "-keystore" store "-storetype" "PKCS12" "-storepass" "secret1" "-keypass" "secret1")
    (keytool! "-exportcert" "-alias" name "-keystore" store "-storepass" "secret1" "-file" cert)
    {:store store, :cert cert}))

(defn- tls [folder own trusted]
  (let [trust (str (io/file folder (str (rand-int 1000000) ".p12")))]
    (doseq [[i {:keys [cert]}] (map-indexed vector trusted)]
      (keytool! "-importcert" "-noprompt" "-alias" (str i) "-file" cert "-keystore" trust
                "-storetype" "PKCS12" "-storepass" "secret1"))
    {:key-store (:store own)
     :key-password "secret1"
     :trust-store trust
     :trust-password "secret1"}))

(deftest ^{:time-limit-ms 240000} tls-lets-in-trusted-nodes-alone
  (let [folder (.toFile (Files/createTempDirectory "thrum-tls" (make-array FileAttribute 0)))
        [member caller stranger] (map #(keys-of folder %) ["member" "caller" "stranger"])
        [port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! "tls" port :secret "s"
                                                  :tls (tls folder member [member caller]))]
      (with-open [^java.lang.AutoCloseable c (caller! "tls" port :secret "s"
                                                      :tls (tls folder caller [member caller]))]
        (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1]))))
      (doseq [options [{:tls (tls folder stranger [member stranger])} {}]]
        (with-open [^java.lang.AutoCloseable c
                    (caller! "tls" port (assoc options :secret "s", :members-timeout-ms 2000))]
          (is (= [] (:members (cluster/status c))))
          (is (= :thrum/no-members
                 (try (cluster/pmapv c 1 #'work/times-ten [1])
                      (catch clojure.lang.ExceptionInfo e (:type (ex-data e)))))))))))

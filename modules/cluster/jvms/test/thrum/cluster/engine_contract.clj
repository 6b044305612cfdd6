(ns thrum.cluster.engine-contract
  "What every engine of a cluster does, as cases. An engine is {:start f, :gaps #{...}}; a gap is
  what it cannot do, and refuses."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.cluster :as cluster]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.spi :as engine]
   [thrum.cluster.work :as work]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io File IOException)
   (java.lang ProcessBuilder)
   (java.net InetAddress InetSocketAddress NetworkInterface Socket)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util Arrays)
   (java.util.concurrent CompletableFuture CountDownLatch ExecutionException TimeUnit TimeoutException)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def ^:private quiet (mapv #(Logger/getLogger %) ["org.infinispan" "org.jgroups" "com.hazelcast"]))

(run! #(.setLevel ^Logger % Level/OFF) quiet)

;; Engines alone: nodes that answer by a function of the test

(defn- start! [{:keys [start]} cluster ports node handler]
  (let [n (parse-long (re-find #"\d+" node))]
    (start {:cluster cluster, :node node, :handler handler, :host "127.0.0.1"
            :port (when (engine/worker? node) (nth ports n))
            :seeds (mapv #(str "127.0.0.1:" %) ports), :heartbeat-ms 3000})))

(defn- await! [pred]
  (is (gate/eventually 20000 pred)))

(defn- with-nodes
  "Calls f with engines of these names, that see each other; handle: from the node that serves a
  request to its handler."
  [contender names handle f]
  (let [ports (processes/free-ports 2)
        cluster (str "contract-" (first ports))
        nodes (mapv #(start! contender cluster ports % (handle %)) names)]
    (try
      (await! (fn [] (every? #(not-any? (partial engine/lost? %) names) nodes)))
      (apply f nodes)
      (finally (run! #(try (engine/close! %) (catch Exception _)) nodes)))))

(defn- answer [^CompletableFuture future]
  (.get future 20 TimeUnit/SECONDS))

(defn- fails? [future]
  (try (answer future) false (catch ExecutionException _ true)))

(defn- echo [node]
  (fn [^bytes request] (.getBytes (str node " " (String. request)))))

(defn- ask [from to ^String text]
  (String. ^bytes (answer (engine/invoke from to (.getBytes text)))))

(defn- members-work-and-callers-do-not [contender]
  (with-nodes contender ["m0" "m1" "~c2"] echo
    (fn [& nodes]
      (doseq [node nodes]
        (is (= #{"m0" "m1"} (set (engine/workers node))))
        (is (not (engine/lost? node "~c2")))
        (is (engine/lost? node "m9"))))))

(defn- a-request-has-its-answer-from-its-node [contender]
  (with-nodes contender ["m0" "m1" "~c2"] echo
    (fn [m0 _ c2]
      (is (= ["m0 a" "m1 b"] [(ask c2 "m0" "a") (ask c2 "m1" "b")]))
      (is (= ["m1 c" "~c2 d"] [(ask m0 "m1" "c") (ask m0 "~c2" "d")]) "members ask too")
      (is (fails? (engine/invoke c2 "m9" (byte-array 1)))))))

(defn- every-request-has-a-virtual-thread [contender]
  (let [n 300, all (CountDownLatch. n), virtual? (atom true)
        meet (fn [_]
               (fn [request]
                 (swap! virtual? #(and % (.isVirtual (Thread/currentThread))))
                 (.countDown all)
                 (.await all 20 TimeUnit/SECONDS)
                 request))]
    (with-nodes contender ["m0" "~c1"] meet
      (fn [_ c1]
        (let [futures (mapv #(engine/invoke c1 "m0" (byte-array [(mod % 100)])) (range n))]
          (is (= (map #(mod % 100) (range n)) (map #(first (answer %)) futures)))
          (is @virtual?))))))

;; A caller that is cancelled while it sends must not lose its cancel.
(defn- an-interrupt-is-left-to-the-sender [contender]
  (with-nodes contender ["m0" "~c1"] (constantly #(Arrays/copyOf ^bytes % 1))
    (fn [_ c1]
      (let [sent (mapv (fn [_]
                         (.interrupt (Thread/currentThread))
                         (let [future (engine/invoke c1 "m0" (byte-array 3000000))]
                           (is (Thread/interrupted))
                           future))
                       (range 8))]
        (is (= (repeat 8 1) (map #(alength ^bytes (answer %)) sent)))))))

(defn- what-is-waited-for-fails-when-either-end-leaves [contender]
  (doseq [leaves [0 1]]
    (let [started (promise), never (promise)]
      (with-nodes contender ["m0" "~c1"] (constantly (fn [_] (deliver started true) @never))
        (fn [& [m0 c1 :as nodes]]
          (let [future (engine/invoke c1 "m0" (byte-array 1))]
            (is (deref started 20000 false))
            (engine/close! (nth nodes leaves))
            (is (fails? future))
            (if (zero? (long leaves))
              (await! #(engine/lost? c1 "m0"))
              (await! #(engine/lost? m0 "~c1")))
            (deliver never (byte-array 0))))))))

(defn- ends? [future]
  (try (answer future) true (catch ExecutionException _ true) (catch TimeoutException _ false)))

(defn- a-request-to-a-node-that-still-starts-is-answered-or-fails [contender]
  (let [ports (processes/free-ports 2)
        start #(start! contender "starts" ports % (echo %))
        nodes (mapv start ["m0" "~c2"])
        c (peek nodes), sent (atom [])
        ask! #(when (some #{"m1"} (engine/workers c))
                (swap! sent conj (engine/invoke c "m1" (byte-array 1))))
        [_ m1] (gate/start "starts" #(start "m1"))]
    (try
      (await! #(do (ask!) (and (seq @sent) (realized? m1))))
      (is (true? (every? ends? @sent)))
      (is (= "m1 a" (ask c "m1" "a")))
      (finally (run! engine/close! (conj nodes (:value @m1)))))))

(defn- where-the-handler-throws-the-wait-fails [contender]
  (let [thrower (fn [node]
                  (fn [^bytes request]
                    (when (= 1 (aget request 0)) (work/unreadable nil))
                    (.getBytes ^String node)))]
    (with-nodes contender ["m0" "~c1"] thrower
      (fn [_ c1]
        (is (fails? (engine/invoke c1 "m0" (byte-array [1]))))
        (is (= "m0" (String. ^bytes (answer (engine/invoke c1 "m0" (byte-array [2]))))))))))

(defn- another-cluster-is-not-seen [contender]
  (let [ports (processes/free-ports 2)
        nodes (mapv #(start! contender %1 ports %2 (echo %2)) ["one" "two"] ["m0" "m1"])]
    (try
      (is (= [["m0"] ["m1"]] (mapv engine/workers nodes)))
      (finally (run! engine/close! nodes)))))

(defn- reached? [address port]
  (try
    (with-open [socket (Socket.)]
      (.connect socket (InetSocketAddress. ^java.net.InetAddress address (int port)) 500)
      true)
    (catch IOException _ false)))

(defn- loopback-alone-is-bound [contender]
  (let [ports (processes/free-ports 2)
        interfaces (enumeration-seq (NetworkInterface/getNetworkInterfaces))
        addresses (mapcat #(enumeration-seq (.getInetAddresses ^NetworkInterface %)) interfaces)
        node (start! contender "loopback" ports "m0" (echo "m0"))]
    (try
      (is (= ["127.0.0.1"] (for [^java.net.InetAddress address addresses
                                 :when (reached? address (first ports))]
                             (.getHostAddress address))))
      (finally (engine/close! node)))))

(defn- an-interrupted-start-leaves-nothing [contender]
  (let [ports (processes/free-ports 1)
        start #(try (start! contender "interrupted" ports "m0" (echo "m0")) (catch Exception _))
        engine (gate/in-time 60000 #(do (.interrupt (Thread/currentThread)) (start)))]
    (some-> engine engine/close!)
    (await! #(not (reached? (InetAddress/getLoopbackAddress) (first ports))))))

;; Through the front door

(defn- join! [{:keys [start]} cluster port & {:as options}]
  (cluster/join! (merge {:cluster cluster, :port port, :seeds [(str "127.0.0.1:" port)]
                         :engine start, :name "n", :drain-timeout-ms 1000
                         :allow #{'thrum.cluster.work}}
                        options)))

(defn- caller! [{:keys [start]} cluster port & {:as options}]
  (cluster/join! (merge {:cluster cluster, :seeds [(str "127.0.0.1:" port)], :name "c"
                         :engine start, :members-timeout-ms 20000}
                        options)))

(defn- thrown [f]
  (try
    (with-open [^java.lang.AutoCloseable _ (f)] :nothing-was-thrown)
    (catch Exception e e)))

(defn- a-large-argument-and-result-travel [contender]
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! contender "large" port)
                ^java.lang.AutoCloseable c (caller! contender "large" port)]
      (let [[a b] (first (cluster/pmapv c 1 #'work/two [(byte-array 3000000 (byte 7))] [:x]))]
        (is (= [3000000 7 :x] [(alength ^bytes a) (aget ^bytes a 2999999) b]))))))

(defn- a-cluster-is-on-an-address-of-ipv6 [contender]
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! contender "ipv6" port
                                                  {:host "::1", :seeds [(str "[::1]:" port)]})]
      (doseq [seed ["[::1]:" "::1:"]]
        (with-open [^java.lang.AutoCloseable c (caller! contender "ipv6" port
                                                        {:host "::1", :seeds [(str seed port)]
                                                         :members-timeout-ms 5000})]
          (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1])) seed))))))

(defn- platform-threads []
  (count (remove #(.isDaemon ^Thread %) (keys (Thread/getAllStackTraces)))))

(defn- a-port-in-use-is-a-sentence-and-leaves-nothing [contender]
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! contender "port" port)]
      (let [before (platform-threads), e (thrown #(join! contender "port" port))]
        (is (= {:type :thrum/not-joined, :host "127.0.0.1", :port port} (ex-data e)))
        (is (.contains ^String (ex-message e) "the port is in use"))
        (await! #(<= (long (platform-threads)) (long before)))))))

(defn- another-secret-is-refused-at-the-join [contender]
  (let [[port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! contender "secret" port :secret "one")]
      (is (= [:thrum/refused :secret]
             ((juxt :type :reason)
              (ex-data (thrown #(caller! contender "secret" port :secret "two"))))))
      (with-open [^java.lang.AutoCloseable c (caller! contender "secret" port :secret "one")]
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

(defn- trusted-nodes-alone-join! [contender]
  (let [folder (.toFile (Files/createTempDirectory "thrum-tls" (make-array FileAttribute 0)))
        [member caller stranger] (map #(keys-of folder %) ["member" "caller" "stranger"])
        [port] (processes/free-ports 1)]
    (with-open [^java.lang.AutoCloseable _ (join! contender "tls" port :secret "s"
                                                  :tls (tls folder member [member caller]))]
      (with-open [^java.lang.AutoCloseable c (caller! contender "tls" port :secret "s"
                                                      :tls (tls folder caller [member caller]))]
        (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1]))))
      (doseq [options [{:tls (tls folder stranger [member stranger])} {}]]
        (with-open [^java.lang.AutoCloseable c
                    (caller! contender "tls" port
                             (assoc options :secret "s", :members-timeout-ms 2000))]
          (is (= [] (:members (cluster/status c))))
          (is (= :thrum/no-members
                 (try (cluster/pmapv c 1 #'work/times-ten [1])
                      (catch clojure.lang.ExceptionInfo e (:type (ex-data e)))))))))))

(defn- refused [contender options]
  (let [{:keys [type option]} (ex-data (thrown #(join! contender "gap" 7800 options)))]
    [type option]))

(defn- tls-lets-in-trusted-nodes-alone [{:keys [gaps] :as contender}]
  (let [tls (zipmap [:key-store :key-password :trust-store :trust-password] (repeat "x"))]
    (if (contains? gaps :tls)
      (doseq [host ["127.0.0.1" "0.0.0.0"]]
        (is (= [:thrum/invalid :tls] (refused contender {:host host, :tls tls, :secret "s"}))))
      (trusted-nodes-alone-join! contender))))

(defn- a-name-in-dns-finds-members [{:keys [gaps] :as contender}]
  (let [[port] (processes/free-ports 1)]
    (if (contains? gaps :dns)
      (is (= [:thrum/invalid :dns] (refused contender {:dns "localhost"})))
      (with-open [^java.lang.AutoCloseable c (join! contender "dns" port {:dns "localhost"})]
        (is (= [10] (cluster/pmapv c 1 #'work/times-ten [1])))))))

;; The suite

(def cases
  "By the name of its test: a function of the engine."
  {'members-work-and-callers-do-not members-work-and-callers-do-not
   'a-request-has-its-answer-from-its-node a-request-has-its-answer-from-its-node
   'every-request-has-a-virtual-thread every-request-has-a-virtual-thread
   'an-interrupt-is-left-to-the-sender an-interrupt-is-left-to-the-sender
   'what-is-waited-for-fails-when-either-end-leaves what-is-waited-for-fails-when-either-end-leaves
   'a-request-to-a-node-that-still-starts-is-answered-or-fails
   a-request-to-a-node-that-still-starts-is-answered-or-fails
   'where-the-handler-throws-the-wait-fails where-the-handler-throws-the-wait-fails
   'another-cluster-is-not-seen another-cluster-is-not-seen
   'loopback-alone-is-bound loopback-alone-is-bound
   'an-interrupted-start-leaves-nothing an-interrupted-start-leaves-nothing
   'a-large-argument-and-result-travel a-large-argument-and-result-travel
   'a-cluster-is-on-an-address-of-ipv6 a-cluster-is-on-an-address-of-ipv6
   'a-port-in-use-is-a-sentence-and-leaves-nothing a-port-in-use-is-a-sentence-and-leaves-nothing
   'another-secret-is-refused-at-the-join another-secret-is-refused-at-the-join
   'tls-lets-in-trusted-nodes-alone tls-lets-in-trusted-nodes-alone
   'a-name-in-dns-finds-members a-name-in-dns-finds-members})

(defmacro deftests
  "Defines a test for each case, on the engine."
  [engine]
  `(do ~@(for [case (keys cases)]
           `(deftest ~(with-meta case {:time-limit-ms 240000}) ((cases '~case) ~engine)))))

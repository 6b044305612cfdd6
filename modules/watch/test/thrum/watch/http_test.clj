(ns thrum.watch.http-test
  "Who may read what, and that it answers while no virtual thread can run."
  (:require
   [clojure.data.json :as json]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.engine.jdk.fixed :as fixed]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.locale :as locale]
   [thrum.watch :as watch]
   [thrum.watch.impl.access :as access]
   [thrum.watch.impl.http :as http]
   [thrum.watch.registered :refer [call-registered]])
  (:import
   (clojure.lang ExceptionInfo)
   (java.lang AutoCloseable)
   (java.lang.management ManagementFactory)
   (java.net InetAddress InetSocketAddress Socket SocketException)
   (java.util.concurrent CountDownLatch)
   (javax.management ObjectName)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private secret "a-token-of-tests")

(defn- exchange
  "Returns [status head body] of a request that is written as given."
  [watch & lines]
  (with-open [socket (Socket. "127.0.0.1" (int (watch/port watch)))]
    (.setSoTimeout socket 20000)
    (doto (.getOutputStream socket)
      (.write (.getBytes (str (str/join "\r\n" lines) "\r\nConnection: close\r\n\r\n")))
      (.flush))
    (let [[head body] (str/split (slurp (.getInputStream socket)) #"\r\n\r\n" 2)]
      [(parse-long (second (str/split head #" "))) head body])))

(defn- request [watch path & headers]
  (apply exchange watch (str "GET " path " HTTP/1.1")
         (cond->> headers
           (not-any? #(str/starts-with? % "Host:") headers) (cons "Host: localhost"))))

(def ^:private bearer (str "Authorization: Bearer " secret))

(defn- read-json [watch path]
  (let [[status _ body] (request watch path bearer)]
    (is (= 200 status) path)
    (json/read-str body :key-fn keyword)))

(defmacro ^:private with-watch [[watch options] & body]
  `(with-open [~(vary-meta watch assoc :tag `AutoCloseable)
               (watch/start! (merge {:port 0, :token secret} ~options))]
     ~@body))

(deftest only-a-token-reads
  (with-watch [w {}]
    (are [headers status] (= status (first (apply request w "/tree" headers)))
      [bearer] 200
      [(str "Authorization: bearer  " secret)] 200
      [] 401
      ["Authorization: Bearer"] 401
      ["Authorization: Bearer wrong-token"] 401
      [(str "Authorization: Bearer " secret "x")] 401
      [(str "Authorization: Basic " secret)] 401
      [(str "Cookie: thrum-watch-" (watch/port w) "=" secret)] 401
      [bearer "Host: evil.example"] 403
      [bearer "Host: localhost.evil.example:80"] 403
      [bearer (str "Host: 127.0.0.1:" (watch/port w))] 200
      [bearer "Host: [::1]:9"] 200)
    (doseq [path ["/groups" "/lints" "/metrics" "/events" "/nothing"]]
      (is (= 401 (first (request w path))) path))))

(deftest the-address-that-a-server-is-reached-at-is-its-name
  (are [reached-at host known?]
    (= known? (boolean (access/known-host? #{"localhost"} (InetAddress/getByName reached-at)
                         {"Host" host})))
    "10.0.0.7" "10.0.0.7:7777" true
    "10.0.0.7" "10.0.0.8:7777" false
    "10.0.0.7" "evil.example" false
    "fd00::7" "[fd00::7]:7777" true
    "fd00::7" "[FD00:0::7]" true
    "fd00::7" "[fd00::8]:7777" false
    "fd00::7" "[::::]" false
    "10.0.0.7" "" false)
  (with-redefs [access/hosts (constantly #{})]
    (with-watch [w {:host "0.0.0.0"}]
      (is (= 200 (first (request w "/tree" bearer "Host: 127.0.0.1"))))
      (is (= 403 (first (request w "/tree" bearer "Host: 127.0.0.2")))))))

(deftest names-of-hosts-are-the-same-in-every-locale
  (is (locale/in-turkish #(access/known-host? (access/hosts "127.0.0.1" ["WIKI.example"])
                            (InetAddress/getLoopbackAddress)
                            {"Host" "wiki.example:7777"}))))

(deftest a-watch-keeps-no-program-alive
  (let [kept (fn [] (into #{} (remove #(.isDaemon ^Thread %)) (keys (Thread/getAllStackTraces))))
        before (kept), watch (promise)
        main (doto (Thread. ^Runnable #(deliver watch (watch/start! {:port 0})))
               (.setDaemon false)
               (.start))]
    (with-open [w ^AutoCloseable @watch]
      (.join main)
      (is (= 200 (first (request w "/health"))))
      (is (empty? (remove before (kept)))))))

(deftest a-watch-leaves-the-engine-jdk-what-it-needs-by-default
  (is (= (fixed/properties {:idle-timeout-ms 60000
                            :max-connections (spi/spare-descriptors 65536)})
         (http/properties))))

(deftest the-engine-jdk-is-refused-what-a-watch-has-set-for-the-jvm
  (with-watch [w {}]
    (let [options {:engine :jdk, :port 0, :max-connections 3, :stop-on-shutdown? false}]
      (is (= [:thrum/invalid :max-connections]
             (try (server/stop! (server/run-server (fn [_]) options))
                  (catch ExceptionInfo e ((juxt :type :option) (ex-data e)))))))))

(deftest what-registers-no-json-is-shown
  (with-watch [w {}]
    (doseq [[facts shown] [[{:loads [1.0 ##NaN {:a #{##Inf}}]}
                            {:loads [1.0 "NaN" {:a ["Infinity"]}]}]
                           [{:load ##-Inf} {:load "-Infinity"}]
                           ;; Throws at each walk: a lazy seq that has thrown once may be empty.
                           [{:x (iterate #(quot 1 (dec %)) 1)}
                            {:state "unknown", :error "class java.lang.ArithmeticException"}]]]
      (call-registered
        :pool
        facts
        (fn []
          (let [node (first (filter #(= "pool" (:kind %)) (read-json w "/tree")))]
            (is (= shown (select-keys node (keys shown))))))))))

(deftest health-needs-no-token-and-says-no-more-than-a-word
  (with-watch [w {}]
    (let [[status _ body] (request w "/health" "Host: 10.0.0.7:7777")]
      (is (= [200 "{\"status\":\"up\"}"] [status body])))))

(defn- half-request
  "Returns a socket on which these lines were written, and no more."
  ^Socket [watch & lines]
  (let [socket (Socket. "127.0.0.1" (int (watch/port watch)))]
    (doto (.getOutputStream socket)
      (.write (.getBytes ^String (str/join "\r\n" lines)))
      (.flush))
    socket))

(deftest slow-clients-hold-no-thread-for-long
  (with-watch [w {}]
    (let [slow (into (vec (repeatedly 150 #(half-request w "GET /health HTTP/1.1" "Host")))
                     (repeatedly 150 #(half-request w "POST /sign-in HTTP/1.1" "Host: localhost"
                                        "Content-Length: 99" "" "token")))]
      (try
        (is (= 200 (first (request w "/health"))))
        (finally (run! #(.close ^Socket %) slow))))))

(deftest a-body-that-is-not-read-closes-its-connection
  (let [failures (atom [])]
    (with-redefs [spi/uncaught! #(swap! failures conj %)]
      (with-watch [w {}]
        (doseq [body [["Transfer-Encoding: chunked" "" "ffffffff" ""]
                      ["Transfer-Encoding: chunked" "" "5" "token" "0" "" ""]
                      ["Content-Length: 9999" "" (str/join (repeat 9999 "x"))]]
                line ["POST /health HTTP/1.1" "POST /sign-in HTTP/1.1" "GET /tree HTTP/1.1"]]
          (with-open [socket ^Socket (apply half-request w line "Host: localhost" bearer body)]
            (.setSoTimeout socket 20000)
            (is (= "" (try
                        (slurp (.getInputStream socket))
                        ;; The server closes with bytes that it has not read.
                        (catch SocketException _ "")))
                [line body])))
        (is (= 405 (first (exchange w "POST /tree HTTP/1.1" "Host: localhost" bearer
                            "Content-Length: 5" "" "x"))))
        (is (= [] @failures))))))

(defn- connections-known
  "Returns how many connections the JDK's servers of this process refer to."
  []
  (let [histogram (.invoke (ManagementFactory/getPlatformMBeanServer)
                           (ObjectName. "com.sun.management:type=DiagnosticCommand")
                           "gcClassHistogram"
                           (object-array [(make-array String 0)])
                           (into-array String [(.getName (class (make-array String 0)))]))
        line #"(\d+) +\d+ +sun\.net\.httpserver\.HttpConnection\b"]
    (parse-long (get (re-find line histogram) 1 "0"))))

(deftest a-connection-that-has-ended-is-not-kept
  (with-watch [w {}]
    (let [before (connections-known)]
      (dotimes [_ 20]
        (.close (half-request w "POST /health HTTP/1.1" "Host: x" "Content-Length: 99" "" "x"))
        (.close (half-request w "POST /sign-in HTTP/1.1" "Host: x" "Content-Length: 99" "" "x"))
        (doto (half-request w "GET /health HTTP/1.1" "Host: x" "" "")
          (.setSoLinger true 0)
          (.close)))
      ;; The threads and the selector that had the last ones may refer to a few.
      (is (gate/eventually 20000 #(<= (connections-known) (+ before 10))) (connections-known)))))

(deftest few-readers-at-a-time-are-answered-at-length
  (let [gate (promise), begun (CountDownLatch. 4)
        slow (fn [_]
               (.countDown begun)
               @gate
               (http/as-json 200 []))]
    (with-redefs-fn {#'watch/routes (constantly {"/slow" slow})}
      #(with-watch [w {}]
         (let [readers (mapv (fn [_] (future (first (request w "/slow" bearer)))) (range 4))]
           (.await begun)
           (is (= 503 (first (request w "/slow" bearer))))
           (is (= 200 (first (request w "/health"))))
           (deliver gate :go)
           (is (= [200 200 200 200] (map deref readers))))))))

(deftest the-page-is-behind-a-sign-in
  (with-watch [w {}]
    (let [post #(exchange w "POST /sign-in HTTP/1.1" "Host: localhost"
                  (str "Content-Length: " (+ 6 (count %))) "" (str "token=" %))
          [status head _] (post secret)
          named (str "Set-cookie: (thrum-watch-" (watch/port w)
                     "=[0-9a-f]{32}); HttpOnly; SameSite")
          cookie (second (re-find (re-pattern named) head))]
      (is (= 401 (first (post "%zz"))))
      (is (= [401 nil] [(first (post "wrong-token")) (re-find #"Set-cookie" (second (post "x")))]))
      (is (= 303 status))
      (is (= 401 (first (request w "/"))))
      (is (str/includes? (peek (request w "/")) "<form"))
      (let [[status head body] (request w "/" (str "Cookie: other=1; " cookie))]
        (is (= 200 status))
        (is (str/includes? body "EventSource"))
        (doseq [header ["Content-security-policy: default-src 'none'" "X-frame-options: DENY"
                        "X-content-type-options: nosniff" "Cache-control: no-store"
                        "Referrer-policy: no-referrer"]]
          (is (str/includes? head header)))
        (is (not (re-find #"https?://" (str/replace body "http://www.w3.org/2000/svg" "")))
          "self-contained")))))

(deftest it-changes-nothing-and-says-what-there-is
  (with-watch [w {}]
    (is (= 405 (first (exchange w "DELETE /tree HTTP/1.1" "Host: localhost" bearer))))
    (let [[status _ body] (request w "/nope" bearer)]
      (is (= 404 status))
      (is (str/includes? body "/tree"))
      (is (not (str/includes? body "nope")) "nothing is echoed"))))

(deftest what-it-reads-is-json
  (with-watch [w {}]
    (let [gate (promise), script "</script><b>\"\u2028"
          named? #(str/starts-with? (str (:name %)) script)
          tasks (mapv (fn [_] (t/future-call {:name script} #(deref gate 20000 nil))) (range 12))]
      (is (gate/eventually 5000 #(= 12 (:count (first (read-json w "/groups"))))))
      (is (= [true 12] ((juxt named? :count) (first (filter :count (read-json w "/tree?fold"))))))
      (is (= 12 (count (filter named? (read-json w "/tree")))))
      (is (vector? (read-json w "/lints")))
      (is (gate/eventually 5000 #(str/includes? (peek (request w "/metrics" bearer))
                                   "thrum_tasks_alive 12")))
      (deliver gate :go)
      (run! deref tasks))))

(deftest json-is-what-the-library-writes
  (let [line "a\"</b>\u2028\u00e9 (a.clj:1)"
        data [{:name :a/b, :stack [line "x" line], :more {"k" [1 2.5 nil true], :stack []}}
              {:stack nil} {:stack "s"}]]
    (is (= (json/write-str data :key-fn name :escape-slash false)
           (:body (http/as-json 200 data)))))
  (is (= "{\"x\":\"NaN\",\"y\":\"java.lang.Object\"}"
         (:body (http/as-json 200 (array-map :x ##NaN :y (Object.))))) "no form: no failure"))

(deftest metrics-need-micrometer
  (with-redefs-fn {#'watch/new-exporter (constantly nil)}
    #(with-watch [w {}]
       (let [[status _ body] (request w "/metrics" bearer)]
         (is (= 501 status))
         (is (str/includes? body "io.micrometer/micrometer-registry-prometheus"))))))

(deftest events-come-each-second
  (with-watch [w {}]
    (with-open [socket (Socket. "127.0.0.1" (int (watch/port w)))]
      (.setSoTimeout socket 20000)
      (.write (.getOutputStream socket)
              (.getBytes (str "GET /events HTTP/1.1\r\nHost: localhost\r\n" bearer "\r\n\r\n")))
      (let [lines (line-seq (io/reader (.getInputStream socket)))
            [one two] (map #(json/read-str (subs % 6) :key-fn keyword)
                        (filter #(str/starts-with? % "data: ") lines))]
        (is (every? :tasks-ended [one two]))
        (is (every? vector? (map :sentences [one two])))))))

(defn- ask-for-events!
  "Connects the socket, and asks for events. Returns the socket."
  ^Socket [watch ^Socket socket]
  (.connect socket (InetSocketAddress. "127.0.0.1" (int (watch/port watch))))
  (.write (.getOutputStream socket)
          (.getBytes (str "GET /events HTTP/1.1\r\nHost: localhost\r\n" bearer "\r\n\r\n")))
  socket)

(defn- reader-of-events ^Socket [watch]
  (ask-for-events! watch (Socket.)))

(defn- silent-reader [watch]
  (ask-for-events! watch (doto (Socket.) (.setReceiveBufferSize 4096))))

(defn- events-read
  "Reads so many events. Returns how many there were."
  [n ^Socket socket]
  (count (take n (filter #(str/starts-with? % "data: ")
                   (line-seq (io/reader (.getInputStream socket)))))))

(defn- may-read-events? [watch]
  (with-open [socket (reader-of-events watch)]
    (= "HTTP/1.1 200 OK" (first (line-seq (io/reader (.getInputStream socket)))))))

(deftest a-reader-of-events-does-not-wait-for-those-that-read-nothing
  (let [all-there (promise), begun (CountDownLatch. 16), send-headers! @#'http/send-headers!
        ;; The first one is more than a socket buffers.
        texts (atom (cons (str/join (repeat 8000000 "x")) (repeat "x")))
        event (fn []
                (deref all-there 20000 nil)
                {:text (ffirst (swap-vals! texts rest))})]
    (with-redefs-fn {#'watch/event (constantly event)
                     #'http/send-headers! (fn [& args]
                                            (apply send-headers! args)
                                            (.countDown begun))}
      #(with-watch [w {}]
         (let [silent (vec (repeatedly 15 (fn [] (silent-reader w))))]
           (try
             (with-open [reader (reader-of-events w)]
               (.await begun)
               (deliver all-there true)
               ;; The silent ones are given up two seconds each after they were first written to.
               (is (= 2 (gate/in-time 20000 (fn [] (events-read 2 reader))))))
             (finally (run! (fn [socket] (.close ^Socket socket)) silent))))))))

(deftest no-more-than-sixteen-read-events
  (let [begun (CountDownLatch. 16), send-headers! @#'http/send-headers!]
    (with-redefs-fn {#'http/send-headers! (fn [& args]
                                            (apply send-headers! args)
                                            (.countDown begun))}
      #(with-watch [w {}]
         (let [readers (vec (repeatedly 16 (fn [] (reader-of-events w))))]
           (try
             (.await begun)
             (is (not (may-read-events? w)))
             (is (= [1 1] (map (partial events-read 1) (take 2 readers))))
             (finally (run! (fn [socket] (.close ^Socket socket)) readers)))
           (is (gate/eventually 20000 (fn [] (may-read-events? w)))
             "one that has left makes room"))))))

(deftest it-answers-while-no-virtual-thread-can-run
  (with-watch [w {}]
    (let [gate (promise)
          hogs (mapv (fn [_] (t/future (loop [] (when-not (realized? gate) (recur)))))
                     (range (.availableProcessors (Runtime/getRuntime))))]
      (is (gate/eventually 20000 #(= [503 "{\"status\":\"stuck\"}"]
                                     ((juxt first peek) (request w "/health")))))
      (is (gate/eventually 20000 #(some #{"starved"} (map :rule (read-json w "/lints")))))
      (deliver gate :go)
      (run! deref hogs)
      (is (gate/eventually 20000 #(= 200 (first (request w "/health"))))))))

(defn- queue-of-work
  "Starts tasks that keep all carriers busy for some 1.5 s, each for 5 ms."
  []
  (let [end #(+ (System/nanoTime) 5000000)
        spin #(let [end (end)] (loop [] (when (neg? (- (System/nanoTime) (long end))) (recur))))]
    (vec (repeatedly (* 300 (.availableProcessors (Runtime/getRuntime))) #(t/future (spin))))))

(deftest a-long-queue-that-moves-is-healthy
  (let [lints (atom #{})]
    (with-watch [w {:on-lint #(swap! lints conj (:rule %))}]
      (let [begun (System/nanoTime), tasks (queue-of-work), statuses (atom #{})]
        (is (gate/eventually 60000
              #(do (swap! statuses conj (first (request w "/health")))
                   (every? realized? tasks))))
        (is (< 1200000000 (- (System/nanoTime) begun)) "the probe waits for so long")
        (is (= #{200} @statuses))
        (is (not (@lints :starved)))))))

(deftest a-watch-ends-on-an-interrupted-thread
  (let [w (watch/start! {:port 0}), port (watch/port w)]
    (.interrupt (Thread/currentThread))
    (.close ^AutoCloseable w)
    (is (Thread/interrupted) "still")
    (with-open [again ^AutoCloseable (watch/start! {:port port})]
      (is (= port (watch/port again))))))

(defn- watch-threads []
  (filter #(str/starts-with? (.getName ^Thread %) "thrum-watch") (keys (Thread/getAllStackTraces))))

(deftest a-start-that-fails-leaves-nothing-behind
  (let [port (with-watch [watch {}] (watch/port watch))
        platform-thread spi/platform-thread
        fail! #(throw (OutOfMemoryError. "for the test"))]
    (doseq [[unlucky thread] {"thrum-watch-sampler" #(proxy [Thread] [] (start [] (fail!)))
                              "thrum-watch-events-1" fail!
                              "thrum-watch-events-2" fail!}
            :let [gate (promise)
                  ;; The first would start the second itself, had it time for that.
                  begin-when-started (fn [f] #(do (deref gate 20000 nil) (.run ^Runnable f)))]]
      (when-not (= "thrum-watch-events-2" unlucky) (deliver gate :go))
      (with-redefs [spi/platform-thread #(cond
                                           (= unlucky %1) (thread)
                                           (= "thrum-watch-events-1" %1)
                                           (platform-thread %1 (begin-when-started %2))
                                           :else (platform-thread %1 %2))]
        (is (thrown? OutOfMemoryError (watch/start! {:port port, :token secret}))))
      (deliver gate :go)
      (is (gate/eventually 10000 #(empty? (watch-threads))) unlucky))
    (with-watch [watch {:port port}]
      (is (= port (watch/port watch))))))

(deftest what-cannot-start-is-said-in-a-sentence
  (with-watch [w {}]
    (is (thrown-with-msg? ExceptionInfo #"port \d+: the port is in use"
          (watch/start! {:port (watch/port w)}))))
  (is (thrown-with-msg? ExceptionInfo #":token .*a variable that is not set"
        (watch/start! {:token nil})))
  (doseq [token ["short" "no header has it" "of a file\n"]]
    (is (thrown-with-msg? ExceptionInfo #"8 characters of ASCII, without spaces \("
          (watch/start! {:token token}))))
  (is (thrown-with-msg? ExceptionInfo #":prot.*:port" (watch/start! {:prot 1})))
  (is (not (str/includes? (ex-message (try (watch/start! {:token "short"})
                                        (catch Exception e e)))
                          "short"))))

(ns thrum.server.engine.jdk-test
  "What stands in the place of the JDK's own server is refused; what a start that fails leaves
  behind; how a request ends whose thread waits for another that blocks on the connection."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server :as server]
   [thrum.server.engine.jdk :as jdk]
   [thrum.server.engine.jdk.patience :as patience]
   [thrum.server.spi :as engine]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.server.tck.wire :as wire]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang ExceptionInfo)
   (com.sun.management UnixOperatingSystemMXBean)
   (com.sun.net.httpserver HttpServer)
   (com.sun.net.httpserver.spi HttpServerProvider)
   (java.io IOException InputStream)
   (java.lang.management ManagementFactory)
   (java.net InetAddress ServerSocket Socket)
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.server.engine.jdk JdkServer)
   (thrum.server.engine.jdk.patience Keeper)))

(set! *warn-on-reflection* true)

(def ^:private check-provider! @#'jdk/check-provider!)

(deftest the-jdks-own-server-is-taken
  (is (nil? (check-provider! (HttpServerProvider/provider)))))

(deftest another-in-its-place-is-refused
  (let [another (proxy [HttpServerProvider] [])
        e (is (thrown? ExceptionInfo (check-provider! another)))]
    (is (= [:thrum/invalid :engine (.getName (class another))]
           ((juxt :type :option :provider) (ex-data e))))
    (is (str/includes? (ex-message e) (.getName (class another))))))

(defn- start-failure [port]
  (try
    (server/stop! (server/run-server (fn [_]) {:engine :jdk, :port port, :stop-on-shutdown? false}))
    (catch ExceptionInfo e (:type (ex-data e)))))

(defn- open-files
  "Returns how many file descriptors are open, nil where the system does not say."
  []
  (let [system (ManagementFactory/getOperatingSystemMXBean)]
    (when (instance? UnixOperatingSystemMXBean system)
      (.getOpenFileDescriptorCount ^UnixOperatingSystemMXBean system))))

(defn- threads
  "Returns the threads of the JDK's servers, and of ours, as a set."
  []
  (into #{}
        (filter #(#{"HTTP-Dispatcher" "idle-timeout-task" "jdk-patience"} (.getName ^Thread %)))
        (keys (Thread/getAllStackTraces))))

(deftest a-start-on-a-port-in-use-leaves-nothing-open
  (with-open [taken (ServerSocket. 0 5 (InetAddress/getByName "127.0.0.1"))]
    (let [fail! #(start-failure (.getLocalPort taken))
          ;; The first loads classes, from files.
          _ (fail!)
          before (threads), open (open-files)]
      (is (= (repeat 50 :thrum/start-failed) (repeatedly 50 fail!)))
      (is (gate/eventually 5000 #(every? before (threads))))
      ;; What else runs in this JVM opens a few.
      (is (gate/eventually 5000 #(< (- (or (open-files) 0) (or open 0)) 25))))))

(defn- ends?
  "True if a request ends whose client sends this text, and nothing more, and reads nothing, while
  it must be faster."
  [handler options ^String text]
  (let [server (server/run-server handler (merge {:engine :jdk, :port 0, :stop-on-shutdown? false
                                                  :shutdown-timeout-ms 0}
                                                 options))]
    (try
      (with-open [client (Socket. "127.0.0.1" (int (server/port server)))]
        (.write (.getOutputStream client) (.getBytes text))
        (gate/eventually 10000 #(= [1 0] ((juxt :served :in-flight) (server/status server)))))
      (finally (server/stop! server)))))

(defn- apart!
  "Calls f on another thread, which nothing interrupts."
  [f]
  (Thread/startVirtualThread #(try (f) (catch Throwable _))))

(defn- reading? []
  (some #(= :reading (:stage (exchanges/facts %))) (exchanges/under-way)))

(deftest a-request-ends-whose-body-another-thread-still-reads
  (let [answer-early (fn [{:keys [^InputStream body]}]
                       (apart! #(.readAllBytes body))
                       (gate/eventually 5000 reading?)
                       {:status 408})]
    (doseq [options [{:min-bytes-per-second 1000, :rate-grace-ms 500} {}]]
      (is (ends? answer-early
                 options
                 "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nbegun")
          options))))

(defn- outlasting
  "Returns a handler that blocks in a read of the body, and behind its failure waits until it is
  interrupted; delivers to outcome whether it was."
  [outcome]
  (fn [{:keys [body]}]
    (try (slurp body) (catch IOException _))
    (deliver outcome (try
                       (.await (CountDownLatch. 1) 5 TimeUnit/SECONDS)
                       false
                       (catch InterruptedException _ true)))
    {:status 200}))

(defn- interrupted-in-a-cut-read
  "Returns whether the handler of a request is interrupted whose read ends at this timeout, and
  whether the observer of its end is; nil where the timeout passes before the handler is called."
  [timeout-ms]
  (let [called (promise), handlers (promise), observers (promise)
        handler (outlasting handlers)
        end #(do (deliver observers (.isInterrupted (Thread/currentThread))) %)]
    (ends? #(do (deliver called true) (handler %))
           {:request-timeout-ms timeout-ms, :observer {:end end}}
           "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nbegun")
    (when (realized? called)
      [(deref handlers 0 nil) (deref observers 5000 nil)])))

(deftest a-handler-whose-read-is-cut-is-interrupted-and-the-observer-of-its-end-is-not
  (dotimes [_ 10]
    (is (= [true false] (some interrupted-in-a-cut-read [50 500 5000])))))

(deftest a-stream-ends-where-another-thread-cannot-send-to-it
  (let [event (str/join (repeat 100000 "x"))
        feed (fn [events]
               (apart! #(while true (server/send! events event)))
               (deref (promise)))]
    (is (ends? (fn [_] (server/sse {:heartbeat-ms nil} feed))
               {:min-bytes-per-second 100000000, :rate-grace-ms 100}
               "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))))

(deftest a-stream-whose-client-has-gone-has-not-been-sent-whole
  (let [ended (promise)
        feed (fn [events]
               (try
                 (while true (server/send! events "x"))
                 (catch IOException _)))
        server (server/run-server (fn [_] (server/sse {:heartbeat-ms nil} feed))
                                  {:engine :jdk, :port 0, :stop-on-shutdown? false
                                   :observer {:end #(deliver ended (:status % :whole))}})
        client (wire/send! (wire/connect (server/port server)) (wire/get "/"))]
    (wire/head client)
    (wire/reset!! client)
    (is (nil? (deref ended 10000 :never)))
    (is (= 1 (:disconnected (server/status server))))
    (server/stop! server)))

(deftest a-stop-ends-the-thread-that-interrupts-slow-readers-before-the-server
  (let [^Keeper keeper (patience/keeper [20000])
        ^Thread watchdog (.-watchdog keeper)
        alive (promise)
        server (proxy [HttpServer] [] (stop [_] (deliver alive (.isAlive watchdog))))]
    (is (.isAlive watchdog))
    (engine/stop! (JdkServer. server (AtomicReference.) keeper))
    (is (= false (deref alive 0 :never)))))

(deftest a-request-that-is-served-apart-ends-with-what-serves-it
  (let [served (promise)
        serve-apart! #(@#'jdk/serve-apart! (partial deliver served) :wire (CountDownLatch. 1)
                                           (spi/clean-threads "test"))]
    (is (some? (deref (future (serve-apart!) :ended) 5000 nil)))
    (is (= :wire (deref served 0 nil)))))

(ns thrum.lab.load-test
  "The generators against servers that answer, refuse, hang up and keep silent."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.load :as load]
   [thrum.lab.load.built-in :as built-in]
   [thrum.lab.machine :as machine]
   [thrum.lab.servers :as servers]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io IOException)
   (java.net InetAddress InetSocketAddress ServerSocket Socket)))

(set! *warn-on-reflection* true)

(defn- serving
  "Starts a server that calls (f socket) for each connection, on a thread of its own, and closes it
  after that."
  ^ServerSocket [f]
  (let [server (ServerSocket. 0 100 (InetAddress/getLoopbackAddress))]
    (Thread/startVirtualThread
      #(try
         (while true
                (let [socket (.accept server)]
                  (Thread/startVirtualThread (fn []
                                               (try
                                                 (with-open [^Socket s socket] (f s))
                                                 (catch IOException _))))))
         (catch IOException _)))
    server))

(defn- nobody
  "Returns the owner of a port that has no listener, and which no other process takes meanwhile."
  ^Socket []
  (doto (Socket.) (.bind (InetSocketAddress. (InetAddress/getLoopbackAddress) 0))))

(defn- url
  "Returns the URL of a server, or of a port without one."
  [socket]
  (let [port (if (instance? Socket socket)
               (.getLocalPort ^Socket socket)
               (.getLocalPort ^ServerSocket socket))]
    (str "http://127.0.0.1:" port "/")))

(defn- read-head [^Socket socket]
  (let [in (.getInputStream socket)]
    (loop [seen ""]
      (let [b (.read in)]
        (cond
          (neg? b) nil
          (str/ends-with? seen "\r\n\r") seen
          :else (recur (str seen (char b))))))))

(defn- answer! [^Socket socket ^String text]
  (.write (.getOutputStream socket) (.getBytes text)))

(def ^:private ok "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

(defn- job [url]
  {:url url, :connections 3, :seconds 1, :timeout-ms 10000, :headers load/browser-headers})

(defn- short-run
  "Runs the built-in generator in this process for a fraction of a second."
  [url more]
  (gate/in-time 20000 #(built-in/run (merge (job url) {:seconds 0.3} more))))

(defn- run-until
  "Returns the first short run that enough? is true of: on a busy machine one may end before any
  server was asked."
  [enough? url more]
  (gate/eventually 20000
                   #(let [figures (short-run url more)]
                      (when (enough? figures) figures))))

(def ^:private answered? (comp pos? :requests))
(def ^:private troubled? (comp seq :errors))

(defn- timed
  "Returns the figures that f returns, and :took, how many seconds f did."
  [f]
  (let [begun (System/nanoTime), figures (f)]
    (assoc figures :took (/ (- (System/nanoTime) begun) 1e9))))

(defn- seen-by-the-server
  "Returns a short run, timed, and what the server has seen of it: :connections and :asked, how many
  there were, and :heads."
  []
  (let [connections (atom 0), asked (atom 0), heads (atom #{})]
    (with-open [server (serving (fn [socket]
                                  (swap! connections inc)
                                  (while (when-let [head (read-head socket)]
                                           (swap! heads conj head)
                                           (swap! asked inc)
                                           (answer! socket ok)
                                           true))))]
      (assoc (timed #(short-run (url server) {}))
             :connections @connections
             :asked @asked
             :heads @heads))))

(deftest the-built-in-generator-asks-again-on-the-connection-it-has
  (let [{:keys [requests seconds took per-second p50-ms p99-ms max-ms
                errors connections asked heads]}
        ;; On a busy machine a run may end before all connections have been opened.
        (gate/eventually 20000
                         #(let [run (seen-by-the-server)]
                            (when (and (answered? run) (<= 3 (:connections run))) run)))]
    (is (= [3 {}] [connections errors]))
    (is (<= requests asked (+ requests 3)) "at most one of each connection was not awaited")
    (is (<= 0.3 seconds took))
    (is (= per-second (/ requests seconds)))
    (is (<= 0.001 p50-ms p99-ms max-ms))
    (is (= 1 (count heads)))
    (is (str/starts-with? (first heads) "GET / HTTP/1.1\r\nHost: 127.0.0.1:"))
    (is (= 13 (count (str/split-lines (str/trim (first heads)))))
        "a request line and a browser's twelve headers")))

(deftest a-refused-connection-is-counted
  (with-open [nobody (nobody)]
    (let [{:keys [requests errors]} (run-until troubled? (url nobody) {})]
      (is (= [0 [:connect]] [requests (keys errors)]))
      (is (<= 1 (:connect errors) 200) "it rests between two attempts"))))

(deftest a-server-that-hangs-up-is-counted
  (with-open [server (serving
                       (fn [socket] (read-head socket) (answer! socket ok) (read-head socket)))]
    (let [{:keys [requests errors]} (run-until (every-pred answered? troubled?) (url server) {})]
      (is (pos? requests))
      (is (= [:read] (keys errors)))))
  (with-open [server (serving
                       (fn [socket]
                         (read-head socket)
                         (answer! socket "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")))]
    (is (= [0 [:read]]
           ((juxt :requests (comp keys :errors)) (run-until troubled? (url server) {})))))
  (with-open [server
              (serving
                (fn [socket]
                  (read-head socket)
                  (answer! socket
                           "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")))]
    (is (= {} (:errors (run-until answered? (url server) {}))) "unless it said that it would")))

(deftest an-answer-that-does-not-come-is-a-time-out
  (let [gate (promise)]
    (with-open [server (serving (fn [_] (deref gate 20000 nil)))]
      (is (= [0 [:timeout]]
             ((juxt :requests (comp keys :errors))
              (run-until troubled? (url server) {:timeout-ms 50})))))
    (deliver gate :open)))

(deftest a-run-ends-although-nobody-answers
  (let [gate (promise)]
    (with-open [server (serving (fn [_] (deref gate 30000 nil)))]
      (is (= [0 {}] ((juxt :requests :errors) (short-run (url server) {:timeout-ms 30000})))))
    (deliver gate :open)))

(deftest a-bad-status-is-an-answer-and-an-error
  (servers/with-server [url (servers/answering 500 {} 3)]
    (let [{:keys [requests errors]} (run-until answered? url {})]
      (is (pos? requests))
      (is (= {:status requests} errors)))))

(defn- on-each-generator [f]
  (run! f (distinct [@load/generator :built-in])))

(deftest a-generator-runs-in-a-process-of-its-own-and-says-which-it-was
  (servers/with-server
    [url (servers/answering 200 {} 3)]
    (on-each-generator (fn [generator]
                         (let [job (assoc (job url) :warm-up-seconds 1)
                               {:keys [requests seconds took per-second p50-ms p99-ms errors]
                                :as figures} (timed #(load/drive! generator job))]
                           (is (= [generator {}] [(:generator figures) errors]))
                           (is (pos? requests))
                           (is (<= 0.9 seconds (- took 0.9)) "without what warmed it up")
                           (is (< 0.9 (/ (* seconds per-second) requests) 1.1))
                           (is (<= 0 p50-ms p99-ms)))))))

(deftest no-answer-at-all-is-an-error
  (with-open [nobody (nobody)]
    (on-each-generator (fn [generator]
                         (is (= :thrum/lab-load
                                (try
                                  (load/drive! generator (job (url nobody)))
                                  (catch ExceptionInfo e (:type (ex-data e)))))
                             (str generator))))))

;; Bursts

(defn- burst-job [server requests connections]
  {:url (url server), :requests requests, :connections connections, :timeout-ms 10000})

(deftest a-burst-has-so-many-at-once-and-a-connection-for-each
  (let [connections (atom 0)
        running (atom 0)
        most (atom 0)
        full (promise)]
    (with-open [server
                (serving (fn [socket]
                           (swap! connections inc)
                           (read-head socket)
                           (when (= 4 (swap! most max (swap! running inc))) (deliver full true))
                           (deref full 20000 nil)
                           (swap! running dec)
                           (answer! socket ok)
                           (read-head socket)))]
      (let [{:keys [requests seconds errors p50-ms max-ms]}
            (gate/in-time 30000 #(built-in/burst (burst-job server 9 4)))]
        (is (= [9 9 4 {}] [requests @connections @most errors]))
        (is (<= 0 p50-ms max-ms (* 1001 seconds)))))))

(deftest a-burst-has-no-more-at-once-than-it-was-told
  (let [asked (atom 0), another (promise), early (atom :nobody)]
    (with-open [server (serving (fn [socket]
                                  (read-head socket)
                                  (if (= 1 (swap! asked inc))
                                    (reset! early (deref another 200 nil))
                                    (deliver another :early))
                                  (answer! socket ok)))]
      (is (= 3 (:requests (gate/in-time 30000 #(built-in/burst (burst-job server 3 1))))))
      (is (nil? @early) "the second request came when the first was answered"))))

(deftest a-burst-is-over-although-requests-fail
  (with-open [nobody (nobody)]
    (is (= [0 {:connect 5}]
           ((juxt :requests :errors)
            (gate/in-time 30000 #(built-in/burst (burst-job nobody 5 2)))))))
  (with-open [server (serving (fn [socket] (read-head socket)))]
    (is (= [0 {:read 5}]
           ((juxt :requests :errors)
            (gate/in-time 30000 #(built-in/burst (burst-job server 5 2)))))))
  (let [gate (promise)]
    (with-open [server (serving (fn [_] (deref gate 20000 nil)))]
      (is
        (= {:timeout 3}
           (:errors
             (gate/in-time 30000
               #(built-in/burst (assoc (burst-job server 3 3) :timeout-ms 50)))))))
    (deliver gate :open)))

(defn- on-each-burst-generator [f]
  (doseq [generator (cond-> [:built-in] (machine/on-path? "ab") (conj :ab))]
    (let [{:keys [close!] :as bursts} (load/open-bursts! generator)]
      (try (f bursts) (finally (close!))))))

(deftest bursts-come-from-a-process-of-their-own-one-after-the-other
  (servers/with-server
    [address (servers/answering 200 {} 3)]
    (on-each-burst-generator
      (fn [{:keys [generator], :as bursts}]
        (dotimes [_ 2]
          (let [{:keys [requests seconds p50-ms p99-ms errors], :as figures}
                (load/burst!
                  bursts
                  {:url (str address "/"), :requests 20, :connections 10, :timeout-ms 10000})]
            (is (= [generator 20 {}] [(:generator figures) requests errors]))
            (is (pos? seconds))
            (is (<= 0 p50-ms p99-ms))))))))

(deftest a-burst-in-which-a-request-fails-is-an-error
  (let [asked (atom 0)]
    (with-open [server (serving (fn [socket]
                                  (read-head socket)
                                  (answer! socket
                                           (if (zero? (mod (swap! asked inc) 5))
                                             "HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nbusy"
                                             ok))))]
      (on-each-burst-generator (fn [{:keys [generator], :as bursts}]
                                 (reset! asked 0)
                                 (let [e (try
                                           (load/burst! bursts (burst-job server 20 10))
                                           (catch ExceptionInfo e e))]
                                   (is (= :thrum/lab-load (:type (ex-data e))) (str generator))
                                   (is (= 4 (:status (:errors (ex-data e)))))
                                   (is (str/includes? (ex-message e) "4 status")))))))
  (with-open [nobody (nobody)]
    (on-each-burst-generator (fn [{:keys [generator], :as bursts}]
                               (is (= :thrum/lab-load
                                      (try
                                        (load/burst! bursts (burst-job nobody 5 5))
                                        (catch ExceptionInfo e (:type (ex-data e)))))
                                   (str generator))))))

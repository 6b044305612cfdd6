(ns thrum.server.engine.tomcat.h2c-test
  "HTTP/2 without TLS: which requests of HTTP/1.1 are upgraded to it, and how its streams end."
  (:require
   [clojure.set :as set]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (java.io IOException InputStream)
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpRequest$BodyPublishers HttpResponse$BodyHandlers)
   (java.nio ByteBuffer)
   (java.util Arrays)
   (org.apache.coyote.http11 Http11NioProtocol)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- serve [handler options]
  (server/run-server handler
                     (merge {:engine :tomcat, :port 0, :h2c? true, :stop-on-shutdown? false}
                            options)))

(defn- length [{:keys [body]}]
  {:status 200, :headers {}, :body (str (count (some-> body slurp)))})

;; Upgrades

(deftest a-request-with-a-body-keeps-http-1
  (let [s (serve length {})
        uri (URI. (str "http://localhost:" (server/port s) "/"))
        post (fn [n]
               (with-open [client (HttpClient/newHttpClient)]
                 (let [body (HttpRequest$BodyPublishers/ofByteArray (byte-array n))
                       response (.send client
                                       (-> (HttpRequest/newBuilder uri) (.POST body) .build)
                                       (HttpResponse$BodyHandlers/ofString))]
                   [(.statusCode response) (str (.version response)) (.body response)])))]
    (is (= [200 "HTTP_2" "0"] (post 0)))
    (is (= [200 "HTTP_1_1" "1"] (post 1)))
    (is (= [200 "HTTP_1_1" "4097"] (post 4097)))
    (server/stop! s)))

(def ^:private asks
  (str "Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
       "HTTP2-Settings: AAMAAABk\r\n"))

(defn- status-of [s & parts]
  (:status (apply wire/ask-once! (server/port s) parts)))

(deftest a-bad-length-is-refused-also-where-http-2-is-asked-for
  (let [s (serve length {})
        post #(status-of s "POST / HTTP/1.1\r\n" asks % "\r\n0\r\n\r\n")]
    (doseq [lengths ["Content-Length: x\r\n" "Content-Length: -1\r\n" "Content-Length:\r\n"
                     "Content-Length: 5\r\nContent-Length: 6\r\n"
                     "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"]]
      (is (= 400 (post lengths)) (pr-str lengths)))
    (is (= 200 (post "Transfer-Encoding: chunked\r\n")))
    (is (= 200 (post "Content-Length: 5\r\n")))
    (server/stop! s)))

(deftest a-head-that-can-be-read-differently-is-refused-also-where-http-2-is-asked-for
  (let [s (serve length {})]
    (doseq [head ["GET  / HTTP/1.1\r\n" "GET /\tHTTP/1.1\r\n" "GET / HTTP/1.1\n"
                  "GET / HTTP/1.1\r\nA: 1\nB: 2\r\n"]]
      (is (= 400 (status-of s head asks "\r\n")) (pr-str head)))
    (is (= 400 (status-of s "GET / HTTP/1.1\r\n" asks "A\u0000\r\n")) "not at its end")
    (is (= 431 (status-of s "GET / HTTP/1.1\r\n" asks "A: " (str/join (repeat 20000 "a")))))
    (is (= 101 (status-of s "GET / HTTP/1.1\r\n" asks "\r\n")))
    (is (= 200 (status-of s "GET / HTTP/1.0\r\n" asks "\r\n")) "HTTP/1.0 has no upgrades")
    (server/stop! s)))

;; Streams

(defn- frame
  "Returns the bytes of a frame; type: 0, DATA; 1, HEADERS; 4, SETTINGS."
  [type flags stream & parts]
  (let [payload (wire/bytes-of (apply str parts))
        n (alength payload)]
    (.array (doto (ByteBuffer/allocate (+ 9 n))
              (.putInt (bit-or (bit-shift-left n 8) (int type)))
              (.put (byte flags))
              (.putInt (int stream))
              (.put payload)))))

(defn- post-frames
  "Returns the frames of a POST whose body goes on after this text, or has not begun."
  [stream text]
  ;; By their indices: :method POST, :scheme http, :path / and :authority.
  (cond-> [(frame 1 4 stream "\u0083\u0086\u0084\u0001\u0009localhost")]
    text (conj (frame 0 0 stream text))))

(defn- posting
  "Returns a client that has begun so many requests on one connection."
  [s n text]
  (let [begin (concat ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" (frame 4 0 0)]
                      (mapcat #(post-frames (inc (* 2 (long %))) text) (range n)))]
    (apply wire/send! (wire/connect (server/port s)) begin)))

(deftest a-body-that-is-cut-off-before-it-is-asked-for-is-not-an-empty-one
  (let [begun (promise), late (promise), body (promise), protocol (promise)
        s (serve (fn [request]
                   (deliver body (try (slurp (:body request)) (catch IOException _ :cut-off)))
                   {:status 200, :headers {}})
                 {:engine-options {:configurator #(deliver protocol %)}})
        ;; Tomcat counts the connection that it waits for too.
        cut-off? #(= 1 (.getConnectionCount ^Http11NioProtocol @protocol))
        stop-observing! (exchanges/observe!
                          (reify
                            exchanges/Observer
                            (began [_ _]
                              (deliver begun true)
                              (deliver late (gate/eventually 5000 cut-off?)))
                            (ended [_ _])))]
    (try
      (let [client (posting s 1 nil)]
        (is (deref begun 5000 false))
        (wire/close! client)
        (is (true? (deref late 10000 :never)) "the body is asked for when it has been cut off")
        (is (= :cut-off (deref body 5000 :never))))
      (finally
        (stop-observing!)
        (server/stop! s)))))

(defn- tomcats-threads
  "Returns the threads that serve streams of Tomcat's, or end them, as a set."
  []
  (set (leak/threads #(#{"tomcat" "tomcat-reset" "http-request" "http-elsewhere"}
                       (.getName ^Thread %)))))

(deftest a-stop-ends-streams-that-wait-for-their-bodies-in-silence
  (let [uncaught (atom [])
        others (tomcats-threads)
        s (serve length {:shutdown-timeout-ms 100})
        clients (vec (repeatedly 5 #(posting s 5 (str/join (repeat 2000 "x")))))]
    (try
      (uncaught/reporting
        (fn [thread t]
          (when (= "tomcat-reset" (.getName ^Thread thread)) (swap! uncaught conj t)))
        (fn []
          (is (gate/eventually 5000 #(= 25 (:in-flight (server/status s)))))
          (server/stop! s)
          (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
          (is (gate/eventually 5000 #(empty? (set/difference (tomcats-threads) others))))))
      (is (= [] @uncaught))
      (finally
        (run! wire/close! clients)))))

(deftest a-stop-with-more-streams-than-run-at-once-is-silent
  (let [uncaught (atom [])
        others (tomcats-threads)
        s (serve length {:shutdown-timeout-ms 100})
        client (posting s 40 (str/join (repeat 1000 "x")))]
    (try
      (uncaught/reporting
        (fn [thread t] (when (= "tomcat" (.getName ^Thread thread)) (swap! uncaught conj t)))
        (fn []
          (is (gate/eventually 5000 #(<= 20 (:in-flight (server/status s)))))
          (server/stop! s)
          (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
          (is (gate/eventually 5000 #(empty? (set/difference (tomcats-threads) others))))))
      (is (= [] @uncaught))
      (finally
        (wire/close! client)))))

(defn- next-frame
  "Returns [type flags stream] of the next frame, or how the connection ended."
  [c]
  (let [head (wire/read-bytes c 9)]
    (if (keyword? head)
      head
      (let [head (ByteBuffer/wrap head), start (.getInt head)]
        (wire/read-bytes c (bit-shift-right start 8))
        [(bit-and 255 start) (.get head) (.getInt head)]))))

(defn- await-frame
  "Returns the first frame that is wanted, or how the connection ended before it."
  [c wanted?]
  (first (filter #(or (keyword? %) (wanted? %)) (repeatedly #(next-frame c)))))

(defn- refuses?
  "True if the server takes no connection any more."
  [s]
  (try
    (wire/close! (wire/connect (server/port s)))
    false
    (catch IOException _ true)))

(deftest a-request-that-is-sent-as-the-server-stops-harms-none-in-flight
  (let [s (serve length {:shutdown-timeout-ms 10000})
        text (str/join (repeat 2000 "x"))
        c (posting s 1 text)]
    (try
      (is (gate/eventually 5000 #(= 1 (:in-flight (server/status s)))))
      (let [[_ stopped] (gate/start "stop" #(server/stop! s))]
        (is (gate/eventually 5000 #(refuses? s)))
        ;; From its GOAWAY on Tomcat waits as long as a ping has taken.
        (wire/send! c (frame 6 0 0 "a ping.."))
        (is (vector? (await-frame c (fn [[type flags]] (= [6 1] [type flags])))))
        (apply wire/send! c (post-frames 3 text))
        (wire/send! c (frame 0 1 1 "more"))
        (is (= [0 1 1] (await-frame c (fn [[_ flags stream]] (and (= 1 stream) (odd? flags))))))
        (is (contains? (deref stopped 15000 {}) :value)))
      (finally
        (wire/close! c)
        (server/stop! s)))))

;; Clients that are too slow

(defn- ends?
  "True if the server ends, within so many ms, the connection of a client that sends these, then x
  now and then, or nothing where x is nil."
  [ms s x & parts]
  (let [client (apply wire/send! (wire/connect (server/port s)) parts)
        end (+ (System/nanoTime) (* 1000000 (long ms)))]
    (try
      (loop []
        (let [after (wire/after client 40)]
          (cond
            (#{:eof :reset} after) true
            (pos? (- (System/nanoTime) end)) false
            (= :silent after) (if (or (nil? x) (wire/try-send! client x)) (recur) true)
            :else (do (.read ^InputStream (:in client))
                      (recur)))))
      (finally (wire/close! client)))))

(def ^:private begun ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" (frame 4 0 0)])

(deftest a-client-that-is-slow-with-its-preface-is-closed
  (let [s (serve length {:header-timeout-ms 200})]
    (try
      (is (ends? 4000 s nil "GET / HTTP/1.1\r\n" asks "\r\n") "silent behind an upgrade")
      (is (ends? 4000 s nil "PRI * HTTP/2.0\r\n\r\n") "silent in the preface")
      (is (ends? 4000 s nil "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") "silent before its settings")
      (finally (server/stop! s)))))

(deftest a-client-that-trickles-a-frame-is-closed
  (let [s (serve length {:idle-timeout-ms 200})
        most-of (fn [^bytes frame] (Arrays/copyOf frame 12))]
    (try
      (is (apply ends? 4000 s "x" (conj begun (most-of (frame 1 4 1 (str/join (repeat 9000 "x"))))))
          "a header block")
      (is (apply ends? 4000 s "x"
                 (concat begun
                         (post-frames 1 nil)
                         [(most-of (frame 0 0 1 (str/join (repeat 9000 "x"))))]))
          "a body")
      (finally (server/stop! s)))))

(deftest a-connection-that-waits-for-its-next-frame-is-not-slow
  (let [s (serve length {:header-timeout-ms 200})]
    (try
      (is (not (apply ends? 1500 s nil begun)))
      (finally (server/stop! s)))))

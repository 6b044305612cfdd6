(ns thrum.soak.slow
  "Clients that take their time: to send a head, to send a body, to read; and those that never come
  to an end."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(def ^:private ^:const gives-up-ms
  "How long a client goes on at most."
  9000)

;; Heads and bodies that come byte by byte

(defn- trickle!
  "Sends the start, then a byte every 20 ms, until the server does not take it any more, or the
  client gives up."
  [port start]
  (stage/with-client [c port]
    (wire/send! c start)
    (let [end (+ (stage/now-ms) gives-up-ms)]
      (while (and (< (stage/now-ms) end) (wire/try-send! c "x"))
        (stage/pause! 20)))))

(defn- expect-ended
  "Ends the ordeal unless each of n tricklers was turned away within ms."
  [port n ms start]
  (let [slowest (reduce max
                        (map second (stage/each n (fn [_] (stage/timed #(trickle! port start))))))]
    (expect (< (long slowest) (long ms))
            (str "that each is turned away within " ms " ms")
            {:slowest-ms slowest})
    {:clients n, :ended-ms slowest}))

(def ^:private slow-headers
  {:name "slow-headers"
   :sentence
   (str "A head that comes byte by byte is cut off at :header-timeout-ms, and others are served "
        "meanwhile.")
   :controls [["header-timeout-ms is a minute" #(assoc-in % [:options :header-timeout-ms] 60000)]]
   :run (fn [stage]
          (let [port (server/port (stage/serve stage scene/ok {:header-timeout-ms 500}))]
            (stage/beside-bystanders
              port
              #(expect-ended port 300 4000 "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))))})

(defn- read-all [{:keys [^InputStream body] :as request}]
  (.readAllBytes body)
  (scene/ok request))

(def ^:private long-post
  (wire/head-of "POST" "/" "Content-Length: 1000000"))

(def ^:private slow-bodies
  {:name "slow-bodies"
   :sentence
   "A body that comes byte by byte is cut off at the deadline, and others are served meanwhile."
   :controls [["there is no deadline" #(assoc-in % [:options :request-timeout-ms] nil)]]
   :run (fn [stage]
          (let [port (server/port (stage/serve stage read-all {:request-timeout-ms 1000}))]
            (stage/beside-bystanders port #(expect-ended port 300 5000 long-post))))})

(defn- stall! [port]
  (stage/with-client [c port]
    (wire/send! c long-post "some")
    (wire/after c gives-up-ms)))

(def ^:private stalled-bodies
  {:name "stalled-bodies"
   :sentence "A body that stops in the middle ends with its connection at :idle-timeout-ms."
   :controls [["the handler does not end when its read fails"
               (fn [stage]
                 (let [gate (scene/gate stage)]
                   (assoc
                     stage
                     :wrap
                     (fn [handler]
                       #(try
                          (handler %)
                          (catch java.io.IOException e (deref gate 30000 nil) (throw e)))))))]]
   :run
   (fn [stage]
     (let [server (stage/serve stage #(if (stage/bystander? %) (scene/ok %) (read-all %)) {})
           port (server/port server)
           ends (delay (stage/each 200 (fn [_] (stall! port))))]
       (stage/beside-bystanders port
                                #(do
                                   (force ends)
                                   {:clients 200}))
       (expect (every? #{:data :eof :reset} @ends) "that every connection ends" (frequencies @ends))
       (stage/expect-quiet server)
       {:ends (frequencies @ends)}))})

;; Requests without an end

(def ^:private piece (str/join (repeat 8192 "a")))

(def ^:private endless
  "Where each request starts, and what is said again and again."
  {"request line" ["GET /" piece]
   "header" ["GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " piece]
   "headers" ["GET / HTTP/1.1\r\nHost: localhost\r\n" (str/join (repeat 800 "X-A: abc\r\n"))]
   "header's name" ["GET / HTTP/1.1\r\nHost: localhost\r\nX" piece]
   "empty lines" ["" (str/join (repeat 4000 "\r\n"))]
   "chunk size" [(wire/head-of "POST" "/" "Transfer-Encoding: chunked")
                 (str/join (repeat 8192 "0"))]
   "chunk extension" [(str (wire/head-of "POST" "/" "Transfer-Encoding: chunked") "5;") piece]
   "trailer" [(str (wire/head-of "POST" "/" "Transfer-Encoding: chunked") "0\r\nX-Long: ") piece]
   "trailers" [(str (wire/head-of "POST" "/" "Transfer-Encoding: chunked") "0\r\n")
               (str/join (repeat 800 "X-A: abc\r\n"))]})

(def ^:private most-sent
  "What may be on its way in the buffers of both sockets."
  (* 16 1024 1024))

(defn- pour!
  "Sends without end; returns how many bytes it was until the server did not take more, or the
  client gave up."
  [port [start again]]
  (stage/with-client [c port]
    (let [end (+ (stage/now-ms) gives-up-ms)]
      (loop [sent 0, text start]
        (if (and (< (stage/now-ms) end) (< sent (* 2 (long most-sent))) (wire/try-send! c text))
          (recur (+ sent (count text)) again)
          sent)))))

(defn- pour-all! [port n]
  (stage/each-busy (* n (count endless))
    (fn [i]
      (let [[what shape] (nth (seq endless) (mod i (count endless)))
            [sent ms] (stage/timed #(pour! port shape))]
        {:what what, :sent sent, :ms ms}))))

(defn- refused?
  "True if it was cut off in time, after a bounded number of bytes. Of empty lines nothing is
  held: only time bounds them."
  [{:keys [what sent ms]}]
  (and (< (long ms) (dec gives-up-ms))
       (or (= "empty lines" what) (< (long sent) (long most-sent)))))

(defn- expect-poured
  [poured]
  (let [taken (remove refused? poured)]
    (expect (empty? taken) "that nothing endless is taken" taken)
    {:clients (count poured)
     :most-bytes (reduce max (map :sent poured))
     :slowest-client-ms (reduce max (map :ms poured))}))

(def ^:private endless-requests
  {:name "endless-requests"
   :sentence
   "Lines, headers, chunks and trailers without an end are refused after a bounded number of bytes."
   :controls [["what is endless is an allowed body"
               #(assoc %
                       :endless
                       {"body" [(wire/head-of "POST" "/" "Content-Length: 100000000000") piece]})]]
   :run (fn [stage]
          (let [server (stage/serve stage #(if (stage/bystander? %) (scene/ok %) (read-all %)) {})
                port (server/port server)]
            (with-redefs [endless (:endless stage endless)]
              (let [figures (stage/beside-bystanders port #(expect-poured (pour-all! port 3)))]
                (stage/expect-quiet server)
                figures))))})

;; Clients that do not read

(defn- zeros
  "Returns a body of so many bytes; (close) is called when it is closed."
  ^InputStream [n close]
  (let [left (atom n)]
    (proxy [InputStream] []
      (read
        ([] (if (neg? (long (swap! left dec))) -1 0))
        ([bytes] (.read ^InputStream this bytes 0 (alength ^bytes bytes)))
        ([_ _ length]
         (let [n (min (long @left) (long length))]
           (swap! left - n)
           (if (zero? n) -1 n))))
      (close [] (close)))))

(def ^:private big-answers
  {:stream (fn [close] (zeros 100000000 close))
   :seq (fn [_] (map (fn [_] piece) (range 12000)))
   :bytes (fn [_] (byte-array 20000000))})

(defn- big
  [close kinds]
  (fn [request]
    (if (stage/bystander? request)
      (scene/ok request)
      {:status 200
       :headers {}
       :body ((big-answers (nth kinds (stage/chance (count kinds)))) close)})))

(defn- ignore! [port]
  (stage/with-client [c port]
    (wire/send! c (wire/get "/big"))
    (scene/eventually gives-up-ms #(not (wire/try-send! c (wire/get "/next"))))))

(def ^:private non-readers
  {:name "non-readers"
   :sentence
   (str "A client that does not read what it asked for loses its connection at :idle-timeout-ms; "
        "its body is closed.")
   :controls [["the body's close never returns"
               (fn [stage]
                 (let [gate (scene/gate stage)] (assoc stage :close #(deref gate 30000 nil))))]]
   :run (fn [stage]
          (let [server (stage/serve stage
                                    (big (:close stage (constantly nil))
                                         (if (:close stage) [:stream] [:stream :seq :bytes]))
                                    {})
                port (server/port server)
                figures (stage/beside-bystanders port
                                                 #(do
                                                    (stage/each 60 (fn [_] (ignore! port)))
                                                    {:clients 60}))]
            (stage/expect-quiet server)
            figures))})

(def ordeals
  "The ordeals of this namespace."
  [slow-headers slow-bodies stalled-bodies endless-requests non-readers])

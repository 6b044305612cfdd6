(ns thrum.server.tck.h2
  "Chapter: HTTP/2, by the JDK's client over TLS and by frames of our own without."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.threads :as threads]
   [thrum.server.tck.tls :as tls]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream IOException InputStream)
   (java.net URI)
   (java.net.http HttpClient HttpClient$Version HttpRequest HttpRequest$BodyPublishers HttpResponse HttpResponse$BodyHandlers)
   (java.time Duration)
   (java.util.concurrent CompletableFuture CountDownLatch ExecutionException)))

(set! *warn-on-reflection* true)

(def ^:private h2
  {:needs #{:h2 :tls}, :refuses {:h2? true}, :uses #{:ssl-port}})

(def ^:private h2c
  {:needs #{:h2}, :refuses {:h2c? true}})

;; Over TLS

(defn- http-client
  ^HttpClient [env]
  (let [client (-> (HttpClient/newBuilder)
                   (.sslContext (tls/context nil))
                   (.version HttpClient$Version/HTTP_2)
                   .build)]
    (scene/at-end env #(.shutdownNow client))
    client))

(defn- request
  ^HttpRequest [env server path]
  (-> (HttpRequest/newBuilder (URI.
                                (str "https://localhost:" (scene/tool env :ssl-port server) path)))
      (.timeout (Duration/ofMillis wire/patience-ms))
      .build))

(defn- send-async ^CompletableFuture [^HttpClient client request]
  (.sendAsync client request (HttpResponse$BodyHandlers/ofString)))

(defn- serve [env handler & [options]]
  (scene/serve env handler (merge (tls/keystore) {:h2? true} options)))

(defn- answer-of
  "Returns the response; fails where there is none."
  ^HttpResponse [^CompletableFuture answer]
  (try @answer (catch ExecutionException e (scene/fail "an answer" (str (ex-cause e))))))

(defn- get! ^HttpResponse [env server path]
  (answer-of (send-async (http-client env) (request env server path))))

(defcase h2-serves "4.2"
  "HTTP/2 is agreed upon over TLS, and the handler sees it."
  h2
  [env]
  (let [seen (promise)
        answer (get! env (serve env (fn [r] (deliver seen r) (scene/ok r))) "/a%2Fb?q=1")]
    (expect= [HttpClient$Version/HTTP_2 200 "ok"]
             [(.version answer) (.statusCode answer) (.body answer)])
    (expect= [:https "/a%2Fb" "q=1" "localhost"]
             ((juxt :scheme :uri :query-string :server-name) @seen))
    (expect (str/starts-with? (:protocol @seen) "HTTP/2") "HTTP/2" (:protocol @seen))))

(defcase h2-body-arrives "4.2"
  "A body arrives whole, both ways."
  h2
  [env]
  (let [text (str/join (repeat 30000 "0123456789"))
        server (serve env
                      (fn [{:keys [^java.io.InputStream body]}]
                        {:status 200, :headers {}, :body (.readAllBytes body)}))
        post (-> (HttpRequest/newBuilder
                   (URI. (str "https://localhost:" (scene/tool env :ssl-port server) "/")))
                 (.POST (HttpRequest$BodyPublishers/ofString text))
                 .build)]
    (expect (= text (.body (answer-of (send-async (http-client env) post))))
            "the body that was sent"
            :another)))

(defcase h2-runs-many-at-once "4.1"
  "Many requests of one connection run at once, each on a virtual thread."
  h2
  [env]
  (let [all (scene/latch env 20)
        virtual (atom #{})
        handler (fn [{:keys [uri], :as r}]
                  (swap! virtual conj (Thread/.isVirtual (Thread/currentThread)))
                  (when (= "/" uri) (CountDownLatch/.countDown all) (scene/await-latch all))
                  (scene/ok r))
        server (serve env handler)
        client (http-client env)]
    (answer-of (send-async client (request env server "/first")))
    (expect= #{200}
             (set (map #(.statusCode (answer-of %))
                       (vec (repeatedly 20 #(send-async client (request env server "/")))))))
    (expect= #{true} @virtual)))

(defcase h2-requests-inherit-nothing "4.1"
  "What a request leaves in an InheritableThreadLocal, or as context class loader, the next ones of
  its connection do not find."
  h2
  [env]
  (let [[handler seen] (threads/tracing)
        server (serve env handler)
        client (http-client env)]
    (dotimes [_ 3] (answer-of (send-async client (request env server "/"))))
    (run! answer-of (vec (repeatedly 3 #(send-async client (request env server "/")))))
    (expect= (vec (repeat 6 [])) @seen)))

(defcase h2-failing-body-is-cut "4.3"
  "A body that fails half-way resets its stream: the client does not take it for whole."
  h2
  [env]
  (let [body #(lazy-seq (cons "some" (lazy-seq (throw (ex-info "secret" {})))))
        server (serve env (fn [_] {:status 200, :headers {}, :body (body)}))
        answer (send-async (http-client env) (request env server "/"))
        cause (try @answer nil (catch ExecutionException e (ex-cause e)))]
    (expect (instance? IOException cause) "an IOException" cause)))

(defcase h2-deadline-is-503 "4.5"
  "A request that is late is answered with 503, and the others of its connection go on."
  h2
  [env]
  (let [gate (scene/gate env)
        server (serve env
                      (scene/routes {"/late" (fn [r] (deref gate 8000 nil) (scene/ok r))})
                      {:request-timeout-ms 300})
        client (http-client env)
        late (send-async client (request env server "/late"))]
    (expect= [503 200]
             (mapv #(.statusCode (answer-of %))
                   [late (send-async client (request env server "/"))]))))

(defcase h2-overload-is-503 "4.4"
  "Requests of one connection beyond :max-concurrent are answered with 503."
  h2
  [env]
  (let [gate (scene/gate env)
        entered (promise)
        wait (fn [r] (deliver entered true) (deref gate 8000 nil) (scene/ok r))
        server (serve env (scene/routes {"/wait" wait}) {:max-concurrent 1})
        client (http-client env)
        waiting (send-async client (request env server "/wait"))]
    (scene/within entered "a call of the handler")
    (expect= 503 (.statusCode (answer-of (send-async client (request env server "/")))))
    (deliver gate :open)
    (expect= 200 (HttpResponse/.statusCode @waiting))))

;; At the deadline

(defn- wait-and-echo
  [{:keys [uri ^InputStream body]}]
  (let [text (String. (.readAllBytes body))
        [_ form ms] (re-matches #"/(.)/(\d+)" uri)]
    (Thread/sleep (long (parse-long ms)))
    {:status 200
     :headers {}
     :body (case form
             "s" text
             "l" (map str text)
             "i" (java.io.ByteArrayInputStream. (.getBytes text)))}))

(defn- post
  ^HttpRequest [env server path text]
  (-> (HttpRequest/newBuilder (URI.
                                (str "https://localhost:" (scene/tool env :ssl-port server) path)))
      (.POST (HttpRequest$BodyPublishers/ofString text))
      (.timeout (Duration/ofMillis wire/patience-ms))
      .build))

(defn- end-of
  "Returns how the request ended: :answered with this text, :late, :reset, or what else was found."
  [^CompletableFuture answer text]
  (try
    (let [^HttpResponse answer @answer]
      (cond
        (= [200 text] [(.statusCode answer) (.body answer)]) :answered
        (= 503 (.statusCode answer)) :late
        :else [(.statusCode answer) (.body answer)]))
    (catch ExecutionException e
      (let [message (str (ex-cause e))]
        (if (str/includes? message "RST_STREAM") :reset message)))))

(def ^:private waits-near-30-ms
  [0 20 22 24 26 28 29 30 31 32 34 36 40])

(defn- race
  "Calls (one i) twenty times at once, in 8 rounds, or up to 80 until some were answered and some
  late: a busy machine may be late for long. Returns how often each end was."
  [one]
  (reduce (fn [ends round]
            (if (and (<= 8 (long round)) (every? ends [:answered :late]))
              (reduced ends)
              (->> (mapv (fn [i] (future (one i))) (range 20))
                   (mapv deref)
                   frequencies
                   (merge-with + ends))))
          {}
          (range 80)))

(defcase h2-deadlines-race-with-answers "4.5"
  "However close to their deadline the requests of a connection end, each is answered, is 503, or
  its stream alone is reset."
  (assoc h2 :alone? true)
  [env]
  (let [server (serve env wait-and-echo {:request-timeout-ms 30})
        client (http-client env)
        text (str/join (repeat 300 "0123456789"))
        path #(str "/" (rand-nth ["s" "l" "i"]) "/" (nth waits-near-30-ms (rem (long %) 13)))
        one #(end-of (send-async client (post env server (path %) text)) text)
        ;; Else each of the first would open a connection of its own.
        _ (end-of (send-async client (request env server "/s/0")) "")
        ends (race one)]
    (expect= #{} (set (remove #{:answered :late :reset} (keys ends))) ends)
    (expect (every? ends [:answered :late]) "some that are answered, and some that are late" ends)))

;; Frames

(defn- frame [type flags stream payload]
  (let [payload (wire/bytes-of payload)
        all (ByteArrayOutputStream.)
        out (DataOutputStream. all)]
    (.writeByte out (bit-shift-right (alength payload) 16))
    (.writeShort out (bit-and 0xffff (alength payload)))
    (.writeByte out type)
    (.writeByte out flags)
    (.writeInt out stream)
    (.write out payload)
    (.toByteArray all)))

(def ^:private get-headers
  "GET http://localhost/ in HPACK: three indexed fields, and a literal one of an indexed name."
  "\u0082\u0086\u0084\u0001\u0009localhost")

(defn- headers-of
  "Returns a request's headers in HPACK: method and scheme by their index, the others literal."
  [method path]
  (str ({:get "\u0082", :post "\u0083"} method)
       "\u0086"
       "\u0004"
       (char (count path))
       path
       "\u0001\u0009localhost"))

(defn- read-frame
  "Returns the next frame as {:type :flags :stream :text}, or how the connection ended."
  [c]
  (let [head (wire/read-bytes c 9)]
    (if (keyword? head)
      head
      (let [number #(reduce (fn [n b] (+ (* 256 (long n)) (bit-and 255 (int b)))) 0 %)
            [length [type flags] stream] [(take 3 head) (subvec (vec head) 3 5) (drop 5 head)]
            payload (wire/read-bytes c (number length))]
        (if (keyword? payload)
          payload
          {:type type, :flags flags, :stream (number stream), :text (wire/text-of payload)})))))

(defn- frames-until
  "Returns the frames up to the first after which (enough? frames), or the connection's end."
  [c enough?]
  (loop [frames []]
    (let [frames (conj frames (read-frame c))]
      (if (or (enough? frames) (keyword? (peek frames))) frames (recur frames)))))

(defn- opened [env server]
  (wire/send! (scene/client env server) "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" (frame 4 0 0 "")))

(defn- expect-served [env server]
  (expect-status 200 (scene/ask env server (wire/get "/"))))

(defn- field
  "Returns a header in HPACK, its name and value literal."
  [name value]
  (str "\u0000" (char (count name)) name (char (count value)) value))

(defcase h2-requests-have-a-host "4.2"
  "A request has a host among its headers: its :authority, where it sends none."
  h2
  [env]
  (let [seen (promise)
        server (serve env (fn [r] (deliver seen r) (scene/ok r)))]
    (get! env server "/")
    (expect= [(str "localhost:" (scene/tool env :ssl-port server)) "localhost"]
             [(get-in @seen [:headers "host"]) (:server-name @seen)])))

(defn- requests
  "Returns the requests that the handler sees when these headers are sent in HPACK as a request of a
  connection's first stream."
  [env headers]
  (let [seen (atom [])
        server (scene/serve env (fn [r] (swap! seen conj r) (scene/ok r)) {:h2c? true})
        c (opened env server)
        ended? (fn [{:keys [type flags stream]}]
                 (or (#{3 7} type) (and (= 1 stream) (odd? flags))))]
    (wire/send! c (frame 1 5 1 headers))
    (expect (ended? (peek (frames-until c #(ended? (peek %))))) "an end of the stream" :another)
    (expect-served env server)
    (filterv #(str/starts-with? (:protocol %) "HTTP/2") @seen)))

(defcase h2-host-in-place-of-authority "4.2"
  "A request may name its host in a header instead, or in both alike."
  h2c
  [env]
  (let [host-of (fn [headers]
                  (mapv (juxt #(get-in % [:headers "host"]) :server-name) (requests env headers)))]
    (expect= [["localhost" "localhost"]] (host-of (str get-headers (field "host" "localhost"))))
    (expect= [["example.org:8" "example.org"]]
             (host-of (str "\u0082\u0086\u0084" (field "host" "example.org:8"))))))

(defn- expect-none
  "No handler sees the request with these headers in HPACK."
  [env headers]
  (expect= [] (mapv #(dissoc % :body) (requests env headers))))

(defcase h2-host-must-be-the-authority "4.8"
  "A host that is not the :authority is refused, and so is a request with neither, or with one that
  is no host."
  h2c
  [env]
  (expect-none env (str get-headers (field "host" "elsewhere")))
  (expect-none env "\u0082\u0086\u0084")
  (expect-none env (str "\u0082\u0086\u0084" "\u0001\u0003a:b")))

(defcase h2-connection-headers-are-refused "4.8"
  "Headers that are about a connection of HTTP/1 are refused."
  h2c
  [env]
  (doseq [[name value] [["connection" "close"] ["keep-alive" "timeout=5"]
                        ["proxy-connection" "keep-alive"] ["transfer-encoding" "chunked"]
                        ["upgrade" "websocket"] ["te" "gzip"]]]
    (expect-none env (str get-headers (field name value)))))

(defcase h2-paths-have-no-blanks "4.8"
  "A :path with a blank or a control character, or that is no path, is refused."
  h2c
  [env]
  (doseq [path ["/a b" "/a\tb" "/a\u007fb" "a" "http://localhost/"]]
    (expect-none env (headers-of :get path))))

(defcase h2-refused-streams-harm-no-neighbour "4.8"
  "A request that is refused before its body has come leaves its connection to the others, and is
  no failure of the server's."
  h2c
  [env]
  (let [seen (atom [])
        handler (fn [{:keys [uri], :as r}] (swap! seen conj uri) (scene/ok r))
        statuses (atom #{})
        observer {:end #(swap! statuses conj (:status %))}
        c (opened env (scene/serve env handler {:h2c? true, :observer observer}))
        length (field "content-length" "3")
        answered? (fn [{:keys [stream text]}] (= [7 "ok"] [stream text]))]
    (doseq [[stream fields] [[1 (field "host" "elsewhere")]
                             [3 (field "content-length" "+3")]
                             [5 (str length length)]]]
      (wire/send! c (frame 1 4 stream (str (headers-of :post "/refused") fields))))
    (wire/send! c (frame 1 5 7 (headers-of :get "/")))
    (let [frames (frames-until c #(answered? (peek %)))]
      (expect (answered? (peek frames)) "an answer to the last" frames))
    (expect= [["/"] []] [@seen (remove #{200 400} @statuses)])))

(defcase h2-connect-is-refused "4.8"
  "CONNECT is refused."
  h2c
  [env]
  (expect-none env (str (field ":method" "CONNECT") "\u0001\u000clocalhost:80"))
  (expect-none env (str (field ":method" "CONNECT") "\u0086\u0084\u0001\u0009localhost")))

(defcase h2-by-upgrade "4.2"
  "A request of HTTP/1.1 that asks for HTTP/2 is answered in it, and its handler sees nothing of
  that."
  (assoc h2c :uses #{})
  [env]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen r) (scene/ok r)) {:h2c? true})
        uri (URI. (str "http://localhost:" (scene/port-of env server) "/"))
        asks (-> (HttpRequest/newBuilder uri)
                 (.timeout (Duration/ofMillis wire/patience-ms))
                 .build)
        answer (answer-of (send-async (http-client env) asks))]
    (expect= [HttpClient$Version/HTTP_2 200 "ok"]
             [(.version answer) (.statusCode answer) (.body answer)])
    (expect= [] (filterv (:headers @seen) ["connection" "upgrade" "http2-settings"]))))

(defcase h2-rapid-resets-are-survived "4.4"
  "Streams that are reset as soon as they are opened do not pile up, and the other clients are
  served."
  h2c
  [env]
  (let [now (atom 0)
        handler (fn [r]
                  (swap! now inc)
                  (try
                    (Thread/sleep 5)
                    (scene/ok r)
                    (finally
                      (swap! now dec))))
        server (scene/serve env handler {:h2c? true, :max-concurrent 50})
        c (opened env server)]
    (doseq [streams (partition-all 100 (range 1 6001 2))]
      (apply wire/try-send!
             c
             (mapcat #(vector (frame 1 5 % get-headers) (frame 3 0 % "\u0000\u0000\u0000\u0008"))
               streams)))
    (expect (scene/eventually 3000 #(= 200 (:status (scene/ask env server (wire/get "/")))))
            "200"
            :none)
    (expect (scene/eventually 3000 #(zero? (long @now))) "no request that is left" @now)))

(defcase h2-endless-headers-are-cut "4.4"
  "Headers that go on for ever in CONTINUATION frames end the connection, and the other clients are
  served."
  h2c
  [env]
  (let [server (scene/serve env scene/ok {:h2c? true})
        c (opened env server)
        field (str "\u0000\u0004x-xx\u007e" (str/join (repeat 126 "x")))]
    (wire/try-send! c (frame 1 1 1 get-headers))
    (loop [i 0]
      (if (and (< i 20000) (wire/try-send! c (frame 9 0 1 (str/join (repeat 20 field)))))
        (recur (inc i))
        (expect (< i 20000) "a connection that ends" i)))
    (expect-served env server)))

(defn- read-or-write
  "A handler that reads the body of a POST, and answers a GET of /big with more than a client takes
  unasked."
  [{:keys [uri ^InputStream body], :as r}]
  (.readAllBytes body)
  (if (= "/big" uri)
    {:status 200, :headers {}, :body (repeat 100 (str/join (repeat 10000 "x")))}
    (scene/ok r)))

(defn- refusal?
  "True if a frame is the head of a response that is no 200: on a machine that is busy a
  deadline comes before a response has begun."
  [{:keys [type text]}]
  (and (= 1 type) (not (str/includes? (subs text 0 (min 6 (count text))) "\u0088"))))

(defn- ended-streams
  "Returns the streams that were reset, or refused."
  [frames]
  (set (keep #(when (or (= 3 (:type %)) (refusal? %)) (:stream %)) frames)))

(defcase h2-late-streams-harm-no-neighbour "4.5"
  "Streams that end at their deadline, because their body does not come or their answer is not
  taken, leave the connection to the others."
  h2c
  [env]
  (let [c (opened env (scene/serve env read-or-write {:h2c? true, :request-timeout-ms 300}))
        late (range 1 321 2)
        text-of (fn [frames]
                  (str/join (keep #(when (= [0 321] [(:type %) (:stream %)]) (:text %)) frames)))]
    (doseq [stream late]
      (if (= 1 (rem stream 4))
        (wire/send! c (frame 1 5 stream (headers-of :get "/big")))
        (wire/send! c (frame 1 4 stream (headers-of :post "/")))))
    (let [frames (frames-until c #(= (set late) (ended-streams %)))]
      (expect= (set late) (ended-streams frames) (remove (comp #{0} :type) frames)))
    (wire/send! c (frame 8 0 0 "\u0000\u0010\u0000\u0000") (frame 1 5 321 (headers-of :get "/")))
    (expect= "ok" (text-of (frames-until c #(= "ok" (text-of %)))))))

(defn- literal [name value]
  (str "\u0000" (char (count name)) name (char (count value)) value))

(defcase h2-websockets-are-refused "4.8"
  "A websocket's handshake of HTTP/1.1 that comes over HTTP/2 is answered, or its stream reset: it
  is not left open."
  (assoc h2c :needs #{:h2 :websockets})
  [env]
  (let [server (scene/serve env (scene/answering {:ring.websocket/listener {}}) {:h2c? true})
        handshake (str (headers-of :get "/")
                       (literal "sec-websocket-version" "13")
                       (literal "sec-websocket-key" "dGhlIHNhbXBsZSBub25jZQ=="))
        ended? (fn [frames]
                 (some #(and (= 1 (:stream %)) (or (= 3 (:type %)) (odd? (long (:flags %)))))
                       (filter map? frames)))]
    (doseq [headers [handshake (str handshake (literal "upgrade" "websocket"))]]
      (let [c (opened env server)]
        (wire/send! c (frame 1 5 1 headers))
        (let [frames (frames-until c ended?)]
          (expect (ended? frames) "an end of the stream" frames))))))

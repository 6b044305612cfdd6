(ns thrum.server.tck.h2-frames
  "Chapter: HTTP/2 by frames of our own, without TLS (RFC 9113, 4)."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream IOException InputStream)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(def ^:private h2c
  {:needs #{:h2}, :refuses {:h2c? true}})

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
      (let [[length [type flags] stream] [(take 3 head) (subvec (vec head) 3 5) (drop 5 head)]
            payload (wire/read-bytes c (wire/number-of length))]
        (if (keyword? payload)
          payload
          {:type type
           :flags flags
           :stream (wire/number-of stream)
           :text (wire/text-of payload)})))))

(defn- frames-until
  "Returns the frames up to the first after which (enough? frames), or the connection's end."
  [c enough?]
  (loop [frames []]
    (let [frames (conj frames (read-frame c))]
      (if (or (enough? frames) (keyword? (peek frames))) frames (recur frames)))))

(defn- reset-of [stream]
  (frame 3 0 stream "\u0000\u0000\u0000\u0008"))

(defn- opened [env server]
  (wire/send! (scene/client env server) "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" (frame 4 0 0 "")))

(defn- expect-served [env server]
  (expect-status 200 (scene/ask env server (wire/get "/"))))

(defn- field
  "Returns a header in HPACK, its name and value literal."
  [name value]
  (str "\u0000" (char (count name)) name (char (count value)) value))

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
      (wire/try-send! c (frame 1 4 stream (str (headers-of :post "/refused") fields))))
    (wire/try-send! c (frame 1 5 7 (headers-of :get "/")))
    (let [frames (frames-until c #(answered? (peek %)))]
      (expect (answered? (peek frames)) "an answer to the last" frames))
    (expect= [["/"] []] [@seen (remove #{200 400} @statuses)])))

(defn- sent-in-window
  "Returns a function of a stream and a number of bytes that sends so many as DATA when the
  connection's window allows, and a function that reads the next frame and keeps count of it."
  [c]
  (let [window (atom 65535)
        read! (fn []
                (let [{:keys [type stream text] :as frame} (read-frame c)]
                  (when (= [8 0] [type stream])
                    (swap! window + (wire/number-of text)))
                  frame))]
    [(fn [stream n]
       (while (< (long @window) (long n))
         (let [frame (read!)]
           (expect (not (or (keyword? frame) (= 7 (:type frame)))) "room in the window" frame)))
       (swap! window - n)
       (wire/try-send! c (frame 0 0 stream (str/join (repeat n "x")))))
     read!]))

(defn- await-frames!
  "Reads frames until of each of these streams one has come that (f frame) is true of."
  [read! streams f]
  (loop [left (set streams)]
    (when (seq left)
      (let [frame (read!)]
        (expect (not (or (keyword? frame) (= 7 (:type frame)))) "a frame of a stream" frame)
        (recur (cond-> left (f frame) (disj (:stream frame))))))))

(defcase h2-early-answers-arrive "4.2"
  "A request that is answered before its body has come has its stream reset with NO_ERROR: for
  another code a client would give up the answer."
  h2c
  [env]
  (let [c (opened env (scene/serve env scene/ok {:h2c? true}))]
    (wire/send! c (frame 1 4 1 (headers-of :post "/")))
    (let [frames (frames-until c #(= 3 (:type (peek %))))]
      (expect= ["ok" [1 "\u0000\u0000\u0000\u0000"]]
               [(str/join (map :text (filter #(= 0 (:type %)) frames)))
                ((juxt :stream :text) (peek frames))]
               frames))))

(defn- ended? [frame]
  (and (map? frame) (#{0 1} (:type frame)) (odd? (long (:flags frame)))))

(defcase h2-bodies-that-have-come-are-not-stopped "4.2"
  "Where a body has come and the handler leaves it unread, its stream is not reset."
  h2c
  [env]
  (let [gate (scene/gate env)
        handler (fn [{:keys [uri] :as r}]
                  (if (= "/go" uri) (deliver gate :go) (deref gate wire/patience-ms nil))
                  (scene/ok r))
        c (opened env (scene/serve env handler {:h2c? true}))]
    ;; The third comes when the body of the first has.
    (wire/send! c (frame 1 4 1 (headers-of :post "/")) (frame 0 1 1 "abc")
                (frame 1 5 3 (headers-of :get "/go")))
    (let [answers (frames-until c #(<= 2 (count (filter ended? %))))
          ;; A ping and its answer, which come behind a reset.
          _ (wire/send! c (frame 6 0 0 "12345678"))
          frames (into answers (frames-until c #(= 6 (:type (peek %)))))]
      (expect= [#{1 3} []]
               [(set (map :stream (filter ended? frames))) (filter #(= 3 (:type %)) frames)]
               frames))))

(defcase h2-early-answers-harm-no-neighbour "4.5"
  "Requests that are answered before their body comes, and the bodies that come behind the answers,
  leave the connection to the others, and its window open."
  h2c
  [env]
  (let [gate (scene/gate env)
        handler (fn [r] (when (= "/slow" (:uri r)) (deref gate wire/patience-ms nil)) (scene/ok r))
        c (opened env (scene/serve env handler {:h2c? true}))
        [send-body! read!] (sent-in-window c)]
    (wire/send! c (frame 1 5 1 (headers-of :get "/slow")))
    (doseq [streams (partition 100 (range 3 603 2))]
      (doseq [stream streams] (wire/try-send! c (frame 1 4 stream (headers-of :post "/"))))
      (await-frames! read! streams #(= 3 (:type %)))
      (doseq [stream streams, n [4000 4000]] (send-body! stream n))
      (doseq [stream (take-nth 2 streams)] (wire/try-send! c (frame 0 1 stream ""))))
    (deliver gate true)
    (await-frames! read! [1] #(= "ok" (:text %)))))

(defcase h2-reset-bodies-are-no-bodies "4.8"
  "A body whose stream is reset before its end throws where it is read, and where it is read later;
  the handler never takes it for whole."
  h2c
  [env]
  (let [begun (scene/latch env 2)
        reset (scene/gate env)
        ;; Short pieces are an attack for some.
        begin (str/join (repeat 4000 "x"))
        ends {"/now" (promise), "/later" (promise)}
        handler (fn [{:keys [uri ^InputStream body], :as r}]
                  (when-let [end (ends uri)]
                    (.read body)
                    (CountDownLatch/.countDown begun)
                    (when (= "/later" uri) (deref reset wire/patience-ms nil))
                    (deliver end (try (.readAllBytes body) :whole (catch IOException _ :cut))))
                  (scene/ok r))
        server (scene/serve env handler {:h2c? true})
        c (opened env server)]
    (doseq [[stream path] [[1 "/now"] [3 "/later"]]]
      (wire/send! c (frame 1 4 stream (headers-of :post path)) (frame 0 0 stream begin)))
    (expect (scene/await-latch begun) "two bodies that have begun" :fewer)
    ;; A ping is answered when what comes before it has been read.
    (wire/send! c (reset-of 1) (reset-of 3) (frame 6 0 0 "12345678"))
    (frames-until c #(= [6 1] ((juxt :type :flags) (peek %))))
    (deliver reset true)
    (expect= {"/now" :cut, "/later" :cut} (update-vals ends #(scene/within % "an end of a body")))
    (expect-served env server)))

(defcase h2-connect-is-refused "4.8"
  "CONNECT is refused."
  h2c
  [env]
  (expect-none env (str (field ":method" "CONNECT") "\u0001\u000clocalhost:80"))
  (expect-none env (str (field ":method" "CONNECT") "\u0086\u0084\u0001\u0009localhost")))

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
             (mapcat #(vector (frame 1 5 % get-headers) (reset-of %)) streams)))
    (scene/expect-served-soon env server)
    (expect (scene/eventually #(zero? (long @now))) "no request that is left" @now)))

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
        (wire/try-send! c (frame 1 5 stream (headers-of :get "/big")))
        (wire/try-send! c (frame 1 4 stream (headers-of :post "/")))))
    (let [frames (frames-until c #(= (set late) (ended-streams %)))]
      (expect= (set late) (ended-streams frames) (remove (comp #{0} :type) frames)))
    (wire/try-send! c
                    (frame 8 0 0 "\u0000\u0010\u0000\u0000")
                    (frame 1 5 321 (headers-of :get "/")))
    (expect= "ok" (text-of (frames-until c #(= "ok" (text-of %)))))))

(defcase h2-websockets-are-refused "4.8"
  "A websocket's handshake of HTTP/1.1 that comes over HTTP/2 is answered, or its stream reset: it
  is not left open."
  (assoc h2c :needs #{:h2 :websockets})
  [env]
  (let [server (scene/serve env (scene/answering {:ring.websocket/listener {}}) {:h2c? true})
        handshake (str (headers-of :get "/")
                       (field "sec-websocket-version" "13")
                       (field "sec-websocket-key" "dGhlIHNhbXBsZSBub25jZQ=="))
        ended? (fn [frames]
                 (some #(and (= 1 (:stream %)) (or (= 3 (:type %)) (odd? (long (:flags %)))))
                       (filter map? frames)))]
    (doseq [headers [handshake (str handshake (field "upgrade" "websocket"))]]
      (let [c (opened env server)]
        (wire/send! c (frame 1 5 1 headers))
        (let [frames (frames-until c ended?)]
          (expect (ended? frames) "an end of the stream" frames))))))

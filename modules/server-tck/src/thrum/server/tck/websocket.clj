(ns thrum.server.tck.websocket
  "Chapter: Ring websockets, frame by frame (RFC 6455)."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.threads :as threads]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream IOException)
   (java.nio ByteBuffer)))

(set! *warn-on-reflection* true)

(def ^:private ws
  "What the cases ask for."
  {:needs #{:websockets}, :refuses {:ws-max-message-bytes 1000}, :uses #{:send!}})

(def ^:private ws-origins
  (assoc ws :refuses {:ws-origins ["http://a.example"]}))

;; Frames

(def ^:private opcodes {:more 0, :text 1, :binary 2, :close 8, :ping 9, :pong 10})
(def ^:private names (into {} (map (juxt val key)) opcodes))

(defn- frame
  "Returns a client's frame of a payload shorter than 65536 bytes. :fin? false: more follow; :mask?
  false: against the rules."
  [opcode payload & {:keys [fin? mask?] :or {fin? true, mask? true}}]
  (let [payload (wire/bytes-of payload)
        n (alength payload)
        all (ByteArrayOutputStream.)
        out (DataOutputStream. all)
        mask-bit (if mask? 0x80 0)]
    (.writeByte out (bit-or (if fin? 0x80 0) (int (opcodes opcode))))
    (if (< n 126)
      (.writeByte out (bit-or mask-bit n))
      (do (.writeByte out (bit-or mask-bit 126)) (.writeShort out n)))
    ;; The mask of zeros: the payload as it is.
    (when mask? (.writeInt out 0))
    (.write out payload)
    (.toByteArray all)))

(defn- number-of [bs]
  (reduce (fn [n b] (+ (* 256 (long n)) (bit-and 255 (int b)))) 0 bs))

(defn- read-frame
  "Returns [name text] of the next frame, or how the connection ended."
  [c]
  (let [head (wire/read-bytes c 2)]
    (if (keyword? head)
      head
      (let [[a b] head
            short-length (bit-and 127 (int b))
            n (case short-length
                126 (number-of (wire/read-bytes c 2))
                127 (number-of (wire/read-bytes c 8))
                short-length)
            payload (wire/read-bytes c n)]
        (if (keyword? payload) payload [(names (bit-and 15 (int a))) (wire/text-of payload)])))))

(defn- close-code [[name payload]]
  (when (= :close name) (number-of (take 2 (wire/bytes-of payload)))))

(defn- code-text
  [code]
  (wire/text-of (byte-array [(unchecked-byte (quot (long code) 256))
                             (unchecked-byte (rem (long code) 256))])))

;; Handshakes

(defn- handshake [& headers]
  (apply wire/get "/" "Upgrade: websocket" "Connection: Upgrade" "Sec-WebSocket-Version: 13"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==" headers))

(defn- serve
  [env listener & [options response]]
  (scene/serve env
               (constantly (merge {:ring.websocket/listener listener} response))
               (or options {})))

(defn- open
  "Returns a client whose websocket is open."
  [env server]
  (let [c (wire/send! (scene/client env server) (handshake))
        answer (wire/head c)]
    (expect= 101 (:status answer) answer)
    c))

(defn- echo [env]
  {:on-message (fn [socket message] (scene/tool env :send! socket message))})

(defcase ws-handshake "4.9"
  "The handshake is answered with 101 and the right Sec-WebSocket-Accept."
  ws
  [env]
  (let [c (wire/send! (scene/client env (serve env (echo env))) (handshake))
        answer (wire/head c)]
    (expect= [101 "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" "websocket"]
             [(:status answer) (wire/header answer "sec-websocket-accept")
              (some-> (wire/header answer "upgrade")
                      str/lower-case)])))

(defcase ws-text "4.9"
  "Text comes to the listener and goes back as text."
  ws
  [env]
  (let [c (open env (serve env (echo env)))]
    (wire/send! c (frame :text "hello") (frame :text ""))
    (expect= [[:text "hello"] [:text ""]] [(read-frame c) (read-frame c)])))

(defcase ws-binary "4.9"
  "Bytes come to the listener as a ByteBuffer and go back as bytes."
  ws
  [env]
  (let [seen (promise)
        listener {:on-message (fn [socket message]
                                (deliver seen (instance? ByteBuffer message))
                                (scene/tool env :send! socket message))}
        c (open env (serve env listener))
        payload (wire/text-of (byte-array (map unchecked-byte (range 256))))]
    (wire/send! c (frame :binary payload))
    (expect= [:binary payload] (read-frame c))
    (expect= true @seen)))

(defcase ws-fragments-are-joined "4.9"
  "A message in fragments, with a ping between them, is one message."
  ws
  [env]
  (let [c (open env (serve env (echo env)))]
    (wire/send! c
                (frame :text "one " :fin? false)
                (frame :more "two " :fin? false)
                (frame :ping "p")
                (frame :more "three"))
    (let [frames (repeatedly 2 #(read-frame c))]
      (expect= #{[:pong "p"] [:text "one two three"]} (set frames)))))

(defcase ws-pings-are-answered "4.9"
  "A ping is answered with a pong of the same data where the listener has no :on-ping."
  ws
  [env]
  (let [c (open env (serve env (echo env)))]
    (wire/send! c (frame :ping "data"))
    (expect= [:pong "data"] (read-frame c))))

(defcase ws-pings-are-the-listeners "4.9"
  "A ping is for the :on-ping that the listener has: its pong goes out in its turn, and none that it
  does not send."
  (assoc ws :uses #{:send! :pong!})
  [env]
  (let [on-ping (fn [socket ^ByteBuffer data]
                  (when (pos? (.remaining data)) (scene/tool env :pong! socket data))
                  (scene/tool env :send! socket "after"))
        c (open env (serve env {:on-ping on-ping}))]
    (dotimes [_ 20]
      (wire/send! c (frame :ping "data"))
      (expect= [[:pong "data"] [:text "after"]] [(read-frame c) (read-frame c)]))
    (wire/send! c (frame :ping "") (frame :ping "data"))
    (expect= [[:text "after"] [:pong "data"]] [(read-frame c) (read-frame c)])))

(defcase ws-close-is-answered "4.9"
  "A close is answered with a close, and the listener hears of it, with its code, once."
  ws
  [env]
  (let [closes (atom [])
        c (open env (serve env {:on-close (fn [_ code _] (swap! closes conj code))}))]
    (wire/send! c (frame :close (code-text 1000)))
    (expect= 1000 (close-code (read-frame c)))
    (expect-closed c)
    (expect (scene/eventually 2000 #(= [1000] @closes)) "one :on-close with 1000" @closes)))

(defcase ws-callbacks-inherit-nothing "4.1"
  "Callbacks find nothing of what the requests before have left on their threads, in an
  InheritableThreadLocal or as context class loader."
  ws
  [env]
  (let [[leave! found] (threads/traces)
        seen (promise)
        listener {:on-open (fn [_] (deliver seen (found)))}
        server (scene/serve env
                            (scene/routes {"/left" (fn [r] (leave!) (scene/ok r))
                                           "/" (constantly {:ring.websocket/listener listener})})
                            {})
        c (scene/client env server)]
    (dotimes [_ 2] (expect-status 200 (wire/ask! c (wire/get "/left"))))
    (wire/send! c (handshake))
    (expect= 101 (:status (wire/head c)))
    (expect= [] (scene/within seen "a call of :on-open"))))

(defcase ws-server-may-close "4.9"
  "The server's side may close, with a code and a reason."
  (assoc ws :uses #{:send! :close!})
  [env]
  (let [c (open env
                (serve env {:on-open (fn [socket] (scene/tool env :close! socket 4001 "enough"))}))
        [name payload :as found] (read-frame c)]
    (expect= [:close 4001 "enough"] [name (close-code found) (subs (str payload) 2)])))

(defcase ws-large-messages-are-refused "4.4"
  "A message beyond :ws-max-message-bytes closes the websocket with 1009, in fragments too."
  ws
  [env]
  (let [server (serve env (echo env) {:ws-max-message-bytes 1000})
        half (str/join (repeat 600 "x"))]
    (doseq [frames [[(frame :text (str half half))]
                    [(frame :text half :fin? false) (frame :more half)]]]
      (let [c (open env server)]
        (apply wire/send! c frames)
        (expect= 1009 (close-code (read-frame c)))
        (expect-closed c)))))

(defcase ws-unmasked-frames-are-refused "4.8"
  "A client's frame without a mask closes the websocket, and never reaches the listener."
  ws
  [env]
  (let [seen (atom [])
        c (open env (serve env {:on-message (fn [_ message] (swap! seen conj message))}))]
    (wire/send! c (frame :text "hello" :mask? false))
    (let [found (read-frame c)]
      (expect (or (= 1002 (close-code found)) (#{:eof :reset} found)) "a close with 1002" found))
    (expect= [] @seen)))

(defcase ws-bad-text-is-refused "4.8"
  "Text that is not UTF-8 closes the websocket with 1007, and never reaches the listener."
  ws
  [env]
  (let [seen (atom [])
        c (open env (serve env {:on-message (fn [_ message] (swap! seen conj message))}))]
    (wire/send! c (frame :text "\u00c3("))
    (expect= 1007 (close-code (read-frame c)))
    (expect= [] @seen)))

(defcase ws-foreign-origins-are-refused "4.8"
  "A page of another origin gets 403; one of the Host's, and a client without Origin, are let in."
  ws-origins
  [env]
  (let [server (serve env (echo env))
        status #(:status (wire/head (wire/send! (scene/client env server) (apply handshake %))))]
    (expect= [403 101 101]
             (mapv status [["Origin: http://evil.example"] ["Origin: http://localhost"] []]))))

(defcase ws-listed-origins-are-let-in "4.8"
  "A page of an origin in :ws-origins is let in, and no other."
  ws-origins
  [env]
  (let [server (serve env (echo env) {:ws-origins ["http://good.example"]})
        status #(:status (wire/head (wire/send! (scene/client env server)
                                                (handshake (str "Origin: " %)))))]
    (expect= [101 403] (mapv status ["http://good.example" "http://good.example.evil"]))))

(defcase ws-needs-a-handshake "4.9"
  "A websocket response to a request that asks for none is an error, not a 101."
  ws
  [env]
  (let [server (serve env (echo env))]
    (doseq [text [(wire/get "/") (str/replace (handshake) "Version: 13" "Version: 12")]]
      (let [{:keys [status] :as answer} (scene/ask env server text)]
        (expect (<= 400 (or status 0) 599) "an error" answer)))))

(defcase ws-handshakes-are-strict "4.8"
  "A handshake without Connection: Upgrade, on HTTP/1.0, by another method, with a body, or a key
  that is none, is an error; one of another version is told ours."
  ws
  [env]
  (let [server (serve env (echo env))
        answer #(wire/head (wire/send! (scene/client env server) %))]
    (doseq [[from to]
            [["Connection: Upgrade\r\n" ""] ["Connection: Upgrade" "Connection: keep-alive"]
             ["HTTP/1.1" "HTTP/1.0"] ["GET" "POST"] ["\r\n\r\n" "\r\nContent-Length: 5\r\n\r\nhello"]
             ["\r\n\r\n" "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
             ["dGhlIHNhbXBsZSBub25jZQ==" ""] ["dGhlIHNhbXBsZSBub25jZQ==" "abc"]
             ["dGhlIHNhbXBsZSBub25jZQ==" "dGhlIHNhbXBsZSBub25jZTE="] ["Sec-WebSocket-Key:" "X-Key:"]]
            :let [{:keys [status], :as found} (answer (str/replace (handshake) from to))]]
      (expect (<= 400 (or status 0) 499)
              (str "an error for " (pr-str to) " in place of " (pr-str from))
              found))
    (let [{:keys [status], :as found} (answer (str/replace (handshake) "Version: 13" "Version: 8"))]
      (expect= [426 "13"] [status (wire/header found "sec-websocket-version")]))))

(defcase ws-subprotocol-is-offered "4.9"
  "A subprotocol that the client does not offer is a failure of the handler's: 500, and no 101 that
  the client could not take."
  ws
  [env]
  (let [server (serve env (echo env) {} {:ring.websocket/protocol "chat"})
        status #(:status (wire/head (wire/send! (scene/client env server) (apply handshake %))))]
    (expect= [500 500 101]
             (mapv status
                   [[] ["Sec-WebSocket-Protocol: super"] ["Sec-WebSocket-Protocol: super, chat"]]))))

(defcase ws-subprotocol-is-told "4.9"
  "The subprotocol that the handler has chosen is told."
  ws
  [env]
  (let [server (serve env (echo env) {} {:ring.websocket/protocol "chat"})
        answer (wire/head (wire/send! (scene/client env server)
                                      (handshake "Sec-WebSocket-Protocol: super, chat")))]
    (expect= [101 "chat"] [(:status answer) (wire/header answer "sec-websocket-protocol")])))

(defcase ws-lost-clients-are-closed "4.9"
  "A client that vanishes is an :on-close, once."
  ws
  [env]
  (let [closes (atom 0)
        opened (promise)
        c (open env
                (serve env
                       {:on-open (fn [_] (deliver opened true))
                        :on-close (fn [_ _ _] (swap! closes inc))}))]
    (scene/within opened "an :on-open")
    (wire/reset!! c)
    (expect (scene/eventually 3000 #(= 1 @closes)) "one :on-close" @closes)))

(defcase ws-send-throws-when-closed "4.9"
  "send! throws IOException on a websocket that is closed, which says so."
  (assoc ws :uses #{:send! :open?})
  [env]
  (let [thrown (promise)
        on-close (fn [socket _ _]
                   (deliver thrown
                            [(scene/tool env :open? socket)
                             (try
                               (scene/tool env :send! socket "late")
                               :sent
                               (catch Throwable t t))]))
        c (open env (serve env {:on-close on-close}))]
    (wire/send! c (frame :close (code-text 1000)))
    (let [[open? t] (scene/within thrown "an :on-close")]
      (expect= false open?)
      (expect (instance? IOException t) "an IOException" t))))

(defcase ws-callbacks-run-on-virtual-threads "4.1"
  "Every callback of a websocket runs on a virtual thread."
  ws
  [env]
  (let [seen (atom {})
        note! (fn [k] (swap! seen assoc k (Thread/.isVirtual (Thread/currentThread))))
        listener {:on-open (fn [_] (note! :open))
                  :on-message (fn [_ _] (note! :message))
                  :on-pong (fn [_ _] (note! :pong))
                  :on-close (fn [_ _ _] (note! :close))}
        c (open env (serve env listener))]
    (wire/send! c (frame :text "x") (frame :pong "") (frame :close (code-text 1000)))
    (expect (scene/eventually 3000 #(= {:open true, :message true, :pong true, :close true} @seen))
            "four virtual threads"
            @seen)))

(defcase ws-messages-come-one-at-a-time "4.9"
  "Messages come to the listener one at a time, in their order."
  ws
  [env]
  (let [seen (atom []), inside (atom 0)
        listener {:on-message (fn [_ message]
                                (swap! inside inc)
                                (Thread/sleep 2)
                                (swap! seen conj [(str message) @inside])
                                (swap! inside dec))}
        c (open env (serve env listener))]
    (apply wire/send! c (map #(frame :text (str %)) (range 20)))
    (expect (scene/eventually 3000 #(= 20 (count @seen))) "20 messages" @seen)
    (expect= (map #(vector (str %) 1) (range 20)) @seen)))

(defcase ws-leaves-max-concurrent "4.5"
  "An open websocket does not count against :max-concurrent, but against :max-streams."
  ws
  [env]
  (let [handler (fn [{:keys [headers], :as r}]
                  (if (headers "upgrade") {:ring.websocket/listener (echo env)} (scene/ok r)))
        ;; The one before may hold its permit a moment longer than its client waits.
        server (scene/serve env handler {:max-concurrent 1, :max-queued 1, :max-streams 1})]
    (open env server)
    (expect (scene/eventually 2000 #(= 200 (:status (scene/ask env server (wire/get "/")))))
            "200"
            :none)
    (expect= 503 (:status (wire/head (wire/send! (scene/client env server) (handshake)))))))

(defcase ws-outlives-the-deadline "4.5"
  "An open websocket is not cut at :request-timeout-ms."
  ws
  [env]
  (let [c (open env (serve env (echo env) {:request-timeout-ms 100}))]
    (expect= :silent (wire/after c 250))
    (wire/send! c (frame :text "still"))
    (expect= [:text "still"] (read-frame c))))

(defcase ws-closes-with-the-server "4.7"
  "When the server stops, an open websocket is closed with 1001, the listener hears of it, and the
  stop is not delayed."
  ws
  [env]
  (let [closes (atom 0)
        server (serve env {:on-close (fn [_ _ _] (swap! closes inc))} {:shutdown-timeout-ms 9000})
        c (open env server)
        stopping (scene/start #((:stop (:tools env)) server))]
    (expect= 1001 (close-code (read-frame c)))
    (wire/try-send! c (frame :close (code-text 1001)))
    (scene/within stopping "the end of stop!")
    (expect (scene/eventually 2000 #(= 1 @closes)) "one :on-close" @closes)))

(defcase ws-silent-clients-do-not-stop-the-stop "4.7"
  "A websocket whose client does not answer that close is cut."
  ws
  [env]
  (let [server (serve env {} {:shutdown-timeout-ms 9000})
        c (open env server)
        stopping (scene/start #((:stop (:tools env)) server))]
    (expect= 1001 (close-code (read-frame c)))
    (expect-closed c)
    (scene/within stopping "the end of stop!")))

(defcase ws-refused-by-the-handler "4.9"
  "A handler may answer a websocket's handshake with a plain response."
  ws
  [env]
  (let [server (scene/serve env (scene/answering {:status 401, :body "no"}) {})]
    (expect= "no" (:body (expect-status 401 (scene/ask env server (handshake)))))))

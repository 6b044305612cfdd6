(ns thrum.server.tck.ws-client
  "A client of websockets, frame by frame (RFC 6455), and servers for it."
  (:require
   [thrum.server.tck.scene :as scene :refer [expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream)))

(set! *warn-on-reflection* true)

(def needs
  "What the cases ask for."
  {:needs #{:websockets}, :refuses {:ws-max-message-bytes 1000}, :uses #{:send!}})

(def needs-origins
  "As needs, for servers that check a page's origin."
  (assoc needs :refuses {:ws-origins ["http://a.example"]}))

(def ^:private opcodes {:more 0, :text 1, :binary 2, :close 8, :ping 9, :pong 10})

(def ^:private names (into {} (map (juxt val key)) opcodes))

(defn frame
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

(defn read-frame
  "Returns [name text] of the next frame, or how the connection ended."
  [c]
  (let [head (wire/read-bytes c 2)]
    (if (keyword? head)
      head
      (let [[a b] head
            short-length (bit-and 127 (int b))
            n (case short-length
                126 (wire/number-of (wire/read-bytes c 2))
                127 (wire/number-of (wire/read-bytes c 8))
                short-length)
            payload (wire/read-bytes c n)]
        (if (keyword? payload) payload [(names (bit-and 15 (int a))) (wire/text-of payload)])))))

(defn close-code
  "Returns the code of a close frame, nil of anything else that read-frame returns."
  [frame]
  (when (vector? frame)
    (let [[name payload] frame]
      (when (= :close name) (wire/number-of (take 2 (wire/bytes-of payload)))))))

(defn code-text
  "Returns the payload of a close frame with this code."
  [code]
  (wire/text-of (byte-array [(unchecked-byte (quot (long code) 256))
                             (unchecked-byte (rem (long code) 256))])))

(defn handshake
  "Returns the text of a request for a websocket."
  [& headers]
  (apply wire/get "/" "Upgrade: websocket" "Connection: Upgrade" "Sec-WebSocket-Version: 13"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==" headers))

(defn serve
  "Starts a server that opens a websocket with this listener for every request."
  [env listener & [options response]]
  (scene/serve env
               (constantly (merge {:ring.websocket/listener listener} response))
               (or options {})))

(defn open
  "Returns a client whose websocket is open."
  [env server]
  (let [c (wire/send! (scene/client env server) (handshake))
        answer (wire/head c)]
    (expect= 101 (:status answer) answer)
    c))

(defn echo
  "Returns a listener that sends each message back."
  [env]
  {:on-message (fn [socket message] (scene/tool env :send! socket message))})

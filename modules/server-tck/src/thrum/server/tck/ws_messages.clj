(ns thrum.server.tck.ws-messages
  "Chapter: frames and messages of a websocket (RFC 6455, section 5)."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect=]]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws])
  (:import
   (java.nio ByteBuffer)))

(set! *warn-on-reflection* true)

(defcase ws-text "4.9"
  "Text comes to the listener and goes back as text."
  ws/needs
  [env]
  (let [c (ws/open env (ws/serve env (ws/echo env)))
        texts ["hello" "" (wire/text-of (String/.getBytes "\ud83d\ude00" "UTF-8"))]]
    (apply wire/send! c (map #(ws/frame :text %) texts))
    (expect= (map #(vector :text %) texts) (repeatedly 3 #(ws/read-frame c)))))

(defcase ws-binary "4.9"
  "Bytes come to the listener as a ByteBuffer and go back as bytes."
  ws/needs
  [env]
  (let [seen (promise)
        listener {:on-message (fn [socket message]
                                (deliver seen (instance? ByteBuffer message))
                                (scene/tool env :send! socket message))}
        c (ws/open env (ws/serve env listener))
        payload (wire/text-of (byte-array (map unchecked-byte (range 256))))]
    (wire/send! c (ws/frame :binary payload))
    (expect= [:binary payload] (ws/read-frame c))
    (expect= true @seen)))

(defcase ws-fragments-are-joined "4.9"
  "A message in fragments, with a ping between them, is one message."
  ws/needs
  [env]
  (let [c (ws/open env (ws/serve env (ws/echo env)))]
    (wire/send! c
                (ws/frame :text "one " :fin? false)
                (ws/frame :more "two " :fin? false)
                (ws/frame :ping "p")
                (ws/frame :more "three"))
    (let [frames (repeatedly 2 #(ws/read-frame c))]
      (expect= #{[:pong "p"] [:text "one two three"]} (set frames)))))

(defcase ws-pings-are-answered "4.9"
  "A ping is answered with a pong of the same data where the listener has no :on-ping."
  ws/needs
  [env]
  (let [c (ws/open env (ws/serve env (ws/echo env)))]
    (wire/send! c (ws/frame :ping "data"))
    (expect= [:pong "data"] (ws/read-frame c))))

(defcase ws-pings-are-the-listeners "4.9"
  "A ping is for the :on-ping that the listener has: its pong goes out in its turn, and none that it
  does not send."
  (assoc ws/needs :uses #{:send! :pong!})
  [env]
  (let [on-ping (fn [socket ^ByteBuffer data]
                  (when (pos? (.remaining data)) (scene/tool env :pong! socket data))
                  (scene/tool env :send! socket "after"))
        c (ws/open env (ws/serve env {:on-ping on-ping}))]
    (dotimes [_ 20]
      (wire/send! c (ws/frame :ping "data"))
      (expect= [[:pong "data"] [:text "after"]] [(ws/read-frame c) (ws/read-frame c)]))
    (wire/send! c (ws/frame :ping "") (ws/frame :ping "data"))
    (expect= [[:text "after"] [:pong "data"]] [(ws/read-frame c) (ws/read-frame c)])))

(defcase ws-large-messages-are-refused "4.4"
  "A message beyond :ws-max-message-bytes closes the websocket with 1009, in fragments too."
  ws/needs
  [env]
  (let [server (ws/serve env (ws/echo env) {:ws-max-message-bytes 1000})
        half (str/join (repeat 600 "x"))]
    (doseq [frames [[(ws/frame :text (str half half))]
                    [(ws/frame :text half :fin? false) (ws/frame :more half)]]]
      (let [c (ws/open env server)]
        (apply wire/send! c frames)
        (expect= 1009 (ws/close-code (ws/read-frame c)))
        (expect-closed c)))))

(defcase ws-unmasked-frames-are-refused "4.8"
  "A client's frame without a mask closes the websocket, and never reaches the listener."
  ws/needs
  [env]
  (let [seen (atom [])
        c (ws/open env (ws/serve env {:on-message (fn [_ message] (swap! seen conj message))}))]
    (wire/send! c (ws/frame :text "hello" :mask? false))
    (let [found (ws/read-frame c)]
      (expect (or (= 1002 (ws/close-code found)) (#{:eof :reset} found)) "a close with 1002" found))
    (expect= [] @seen)))

(defcase ws-bad-text-is-refused "4.8"
  "Text that is not UTF-8 closes the websocket with 1007, and never reaches the listener."
  ws/needs
  [env]
  (let [seen (atom [])
        c (ws/open env (ws/serve env {:on-message (fn [_ message] (swap! seen conj message))}))]
    (wire/send! c (ws/frame :text "\u00c3("))
    (expect= 1007 (ws/close-code (ws/read-frame c)))
    (expect= [] @seen)))

(defcase ws-messages-come-one-at-a-time "4.9"
  "Messages come to the listener one at a time, in their order."
  ws/needs
  [env]
  (let [seen (atom []), inside (atom 0)
        listener {:on-message (fn [_ message]
                                (swap! inside inc)
                                (Thread/sleep 2)
                                (swap! seen conj [(str message) @inside])
                                (swap! inside dec))}
        c (ws/open env (ws/serve env listener))]
    (apply wire/send! c (map #(ws/frame :text (str %)) (range 20)))
    (expect (scene/eventually #(= 20 (count @seen))) "20 messages" @seen)
    (expect= (map #(vector (str %) 1) (range 20)) @seen)))

(defn- thrown? [f]
  (try
    (f)
    false
    (catch Exception _ true)))

(defcase ws-arguments-are-checked "4.9"
  "Text with half of a surrogate pair, a pong of 126 bytes, a code that no close may carry and a
  reason of 124 bytes are refused with an exception, and the websocket goes on."
  (assoc ws/needs :uses #{:send! :pong! :close!})
  [env]
  (let [listener {:on-message
                  (fn [socket _]
                    (let [refused? (fn [k & args] (thrown? #(apply scene/tool env k socket args)))
                          refusals [(refused? :send! (str (char 0xd83d)))
                                    (refused? :pong! (byte-array 126))
                                    (refused? :close! 1005 "")
                                    (refused? :close! 1000 (str/join (repeat 124 "x")))]]
                      (scene/tool env :send! socket (pr-str refusals))))}
        c (ws/open env (ws/serve env listener))]
    (wire/send! c (ws/frame :text "now"))
    (expect= [:text "[true true true true]"] (ws/read-frame c))))

(defcase ws-sends-wait-their-turn "4.9"
  "Messages that several threads send at once all arrive, each whole."
  ws/needs
  [env]
  (let [of #(str/join (repeat 4000 %))
        send-all! (fn [socket _]
                    (->> "abcdefgh"
                         (mapv #(scene/start (fn [] (scene/tool env :send! socket (of %)))))
                         (run! deref)))
        c (ws/open env (ws/serve env {:on-message send-all!}))]
    (wire/send! c (ws/frame :text "now"))
    (expect= (set (map #(vector :text #{%} 4000) "abcdefgh"))
             (into #{}
                   (map (fn [[kind text]] [kind (set text) (count text)]))
                   (take-while vector? (repeatedly 8 #(ws/read-frame c)))))))

(ns thrum.server.engine.http-kit.websocket-test
  "Websockets without http-kit: a stand-in decodes each byte of the client's as a frame."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server.engine.http-kit.websocket :as websocket]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.input :as input]
   [thrum.server.spi :as engine]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.net InetAddress ServerSocket Socket)
   (java.nio ByteBuffer)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- bytes-of ^bytes [& bs]
  (byte-array (map #(unchecked-byte (int %)) bs)))

(defn- decode
  "Returns the frame that the next byte stands for."
  [^ByteBuffer received]
  (case (char (.get received))
    \t [:text (.getBytes "text")]
    \b [:binary (bytes-of 1 2)]
    \p [:ping (.getBytes "ping")]
    \c [:close (bytes-of 0x03 0xe8 (int \x))]
    \e [:close (bytes-of)]
    \u [:text (.getBytes "close")]
    \! [:flaw 1009]
    \space nil))

(def ^:private ^String long-reason
  "A reason whose 123rd byte is in the middle of a character."
  (apply str (repeat 100 "\u00e9")))

(deftype Trail [events]
  engine/Listener
  (on-open [_ socket] (swap! events conj [:open (engine/open? socket)]))
  (on-text [_ socket message]
    (swap! events conj [:text message])
    (if (= "close" message)
      (engine/close! socket 1000 long-reason)
      (engine/send-text! socket (str message "!"))))
  (on-binary [_ socket message]
    (swap! events conj [:binary (.remaining ^ByteBuffer message)])
    (engine/send-binary! socket message))
  (on-ping [_ socket data] (engine/send-pong! socket data))
  (on-pong [_ _ _])
  (on-error [_ _ _] (swap! events conj [:error]))
  (on-close [_ socket code reason]
    (swap! events conj [:close code reason (engine/open? socket)])))

(def ^:private options
  {:header-timeout-ms 5000
   :idle-timeout-ms 5000
   :max-header-bytes 16384
   :ws-idle-timeout-ms 5000})

(defn- converse
  "Opens a websocket, whose client sends the text and is given to f; returns what the listener got
  and what f returns."
  [options text f]
  (with-open [listener (ServerSocket. 0 1 (InetAddress/getLoopbackAddress))
              socket (Socket. (InetAddress/getLoopbackAddress) (.getLocalPort listener))
              accepted (.accept listener)]
    (let [c (connection/connection accepted accepted options)
          in (input/input c)
          ended (promise)
          events (atom [])
          client (wire/client socket)]
      (when (:watched? options) (input/watch! in (constantly nil)))
      (websocket/open! decode {:connection c, :input in, :key "k"
                               :headers (object-array 0), :listener (Trail. events)
                               :end #(deliver ended true)})
      (is (= 101 (:status (wire/head client))))
      (wire/send! client text)
      (let [found (f client)]
        (is (gate/eventually 5000 #(= :close (first (peek @events)))))
        (is (or (realized? ended) (connection/cut? c)))
        [@events found]))))

(defn- reads [n]
  (fn [client] (vec (wire/read-bytes client n))))

(deftest messages-go-both-ways-and-a-goodbye-is-answered
  (is (= [[[:open true] [:text "text"] [:binary 2] [:close 1000 "x" false]]
          (vec (bytes-of 0x81 5 \t \e \x \t \! 0x82 2 1 2 0x8a 4 \p \i \n \g 0x88 3 0x03 0xe8 \x))]
         (converse options "t bpc" (reads (+ 7 4 6 5))))))

(deftest a-goodbye-without-a-code-is-answered-without-one
  (is (= [[[:open true] [:close 1005 "" false]] (vec (bytes-of 0x88 0))]
         (converse options "e" (reads 2)))))

(deftest a-long-reason-is-cut-at-a-character
  (is (= (into (vec (bytes-of 0x88 124 0x03 0xe8)) (.getBytes (subs long-reason 0 61) "UTF-8"))
         (second (converse options "ue" (reads 126))))))

(deftest what-is-no-frame-ends-the-websocket
  (is (= [[[:open true] [:error] [:close 1009 "" false]] (vec (bytes-of 0x88 2 0x03 0xf1))]
         (converse options "!" (reads 4)))))

(deftest a-silent-client-is-closed
  (is (= [[[:open true] [:close 1001 "Idle for too long" false]] (vec (bytes-of 0x88 19 0x03 0xe9))]
         (converse (assoc options :ws-idle-timeout-ms 50) " " (reads 4)))))

(deftest a-client-that-goes-is-reported-as-1006
  (is (= [[:open true] [:close 1006 "" false]]
         (first (converse options "" wire/close!)))))

(deftest a-websocket-of-a-watched-request-gets-its-messages
  (is (= [[[:open true] [:text "text"] [:binary 2] [:close 1005 "" false]]
          (vec (bytes-of 0x81 5 \t \e \x \t \! 0x82 2 1 2 0x88 0))]
         (converse (assoc options :watched? true) "tbe" (reads (+ 7 4 2))))))

(ns thrum.soak.websockets
  "Websockets whose clients break every rule of RFC 6455."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(defn- length-bytes
  [n mask]
  (cond (< n 126) [(bit-or mask n)]
        (< n 65536) [(bit-or mask 126) (bit-shift-right n 8) (bit-and n 255)]
        :else (cons (bit-or mask 127)
                    (map #(bit-and 255 (bit-shift-right (long n) (long %)))
                         [56 48 40 32 24 16 8 0]))))

(defn- head
  "Returns a frame's head; its payload, masked with zeros, is as it is."
  ([first-byte n]
   (byte-array (map unchecked-byte (concat [first-byte] (length-bytes n 128) [0 0 0 0]))))
  ([first-byte n _unmasked] (byte-array (map unchecked-byte (cons first-byte (length-bytes n 0))))))

(def ^:private small-frames
  (delay (let [frame (concat (head 0x00 10) (repeat 10 (int \a)))]
           (byte-array (map unchecked-byte (apply concat (repeat 11000 frame)))))))

(def ^:private kilobyte (str/join (repeat 1000 "k")))

(def ^:private offences
  "What is sent behind the handshake; each must end the connection."
  {"garbage" #(vector (stage/random-bytes 2000))
   "no mask" #(vector (head 0x81 5 :unmasked) "hello")
   "endless frame" #(vector (head 0x81 (bit-shift-left 1 40)) kilobyte)
   "frame beyond the bound" #(vector (head 0x82 2000000) kilobyte)
   "negative length" #(vector (byte-array (map unchecked-byte
                                               (concat [0x81 0xff] (repeat 8 0xff) [0 0 0 0]))))
   "message beyond the bound"
   #(cons (head 0x01 1000)
          (cons kilobyte (mapcat (fn [_] [(head 0x00 1000) kilobyte]) (range 200))))
   "message of many small frames" #(vector (head 0x01 1) "a" @small-frames)
   "unknown opcode" #(vector (head 0x83 0))
   "reserved bits" #(vector (head 0xf1 0))
   "long ping" #(vector (head 0x89 200) (subs kilobyte 0 200))
   "ping in fragments" #(vector (head 0x09 1) "p")
   "continuation of nothing" #(vector (head 0x80 1) "c")
   "no utf-8" #(vector (head 0x81 2) (byte-array [-1 -2]))
   "short close" #(vector (head 0x88 1) "c")
   "close with a code that is none" #(vector (head 0x88 2) (byte-array [0 5]))})

(defn- listener [^AtomicLong opened ^AtomicLong closed]
  {:on-open (fn [_] (.incrementAndGet opened))
   :on-message (fn [ws message] (server/send! ws (str (count message))))
   :on-error (fn [_ _])
   :on-close (fn [_ _ _] (.incrementAndGet closed))})

(defn- answer [^AtomicLong opened ^AtomicLong closed]
  (fn [request]
    (if (stage/bystander? request)
      (scene/ok request)
      {:ring.websocket/listener (listener opened closed)})))

(defn- drained
  "Reads on until the connection ends; returns how it did."
  [c]
  (let [buffer (byte-array 4096)]
    (.setSoTimeout ^java.net.Socket (:socket c) 15000)
    (loop []
      (let [n (try (.read ^java.io.InputStream (:in c) buffer)
                   (catch java.net.SocketTimeoutException _ :silent)
                   (catch java.io.IOException _ -1))]
        (cond (= :silent n) :silent (neg? (long n)) :ended :else (recur))))))

(defn- offend! [port [what parts]]
  (stage/with-client [c port]
    (let [{:keys [status]} (wire/head (wire/send! c (ws/handshake)))]
      (expect (= 101 status) "a websocket" status)
      (apply wire/try-send! c (parts))
      [what (drained c)])))

(defn- vanish!
  "Opens a websocket, says something, and goes: in one of three ways, perhaps in the middle of a
  frame."
  [port]
  (let [c (wire/connect port)]
    (wire/send! c (ws/handshake))
    (wire/head c)
    (wire/try-send! c (head 0x81 5) (subs "hello" 0 (stage/chance 6)))
    (case (stage/chance 3)
      0 (wire/close! c)
      1 (wire/reset!! c)
      2 (do
          (wire/try-send! c (head 0x88 0))
          (wire/close! c)))
    ["vanished" :ended]))

(defn- expect-closed-once
  [^AtomicLong opened ^AtomicLong closed]
  (scene/eventually 6000 #(= (.get opened) (.get closed)))
  (expect (= (.get opened) (.get closed))
          "on-close once for each on-open"
          {:opened (.get opened), :closed (.get closed)}))

(def ^:private websocket-offences
  {:name "websocket-offences"
   :sentence
   (str "A websocket that breaks a rule is closed, at :ws-idle-timeout-ms where its client does "
        "not answer; each is closed once.")
   :needs #{:websockets}
   :controls [["what is sent is no offence, and answered again and again"
               #(assoc %
                       :offences {"pongs" (fn [] (repeat 12 (head 0x8a 0)))}
                       :options {:ws-idle-timeout-ms 60000})]
              ["ws-idle-timeout-ms is a minute"
               #(assoc-in % [:options :ws-idle-timeout-ms] 60000)]]
   :run (fn [stage]
          (let [opened (AtomicLong.)
                closed (AtomicLong.)
                server (stage/serve stage
                                    (answer opened closed)
                                    {:ws-max-message-bytes 100000, :ws-idle-timeout-ms 3000})
                port (server/port server)
                all (vec (:offences stage offences))
                n (* 6 (count all))
                figures
                (stage/beside-bystanders
                  port
                  #(let [ends
                         (stage/bounded 40 n (fn [i] (offend! port (nth all (mod i (count all))))))
                         ends (into ends (stage/bounded 40 300 (fn [_] (vanish! port))))
                         open (filter (fn [[_ end]] (= :silent end)) ends)]
                     (expect (empty? open) "that each is closed" (frequencies (map first open)))
                     {:clients (count ends)}))]
            (stage/expect-quiet server 6000)
            (expect-closed-once opened closed)
            figures))})

(def ordeals
  "The ordeals of this namespace."
  [websocket-offences])

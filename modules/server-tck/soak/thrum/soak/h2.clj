(ns thrum.soak.h2
  "HTTP/2 by raw frames, over h2c with prior knowledge: floods of frames that cost a client less
  than the server."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.io DataInputStream EOFException IOException InputStream)))

(set! *warn-on-reflection* true)

;; Frames (RFC 9113, 4)

(def ^:private types
  {:data 0, :headers 1, :reset 3, :settings 4, :ping 6, :goaway 7, :window 8, :continuation 9})

(defn- int32 [n]
  (map #(bit-and 255 (bit-shift-right (long n) (long %))) [24 16 8 0]))

(defn- frame
  [type flags stream payload]
  (byte-array
    (map unchecked-byte
         (concat (rest (int32 (count payload))) [(types type) flags] (int32 stream) payload))))

(def ^:private preface "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

(defn- literal
  "Returns a header whose name has an index in the static table, its value not indexed (RFC 7541,
  6.2.2)."
  [index value]
  (concat [index (count value)] (map int value)))

(defn- request
  "Returns the header block of a GET."
  [path]
  (concat [0x82 0x86] (literal 4 path) (literal 1 "localhost")))

(def ^:private end-headers 4)
(def ^:private end-stream 1)

(defn- get-frame [stream path]
  (frame :headers (bit-or end-headers end-stream) stream (request path)))

(defn- read-frame
  "Returns {:type :flags :stream}, or :eof, or :silent."
  [{:keys [^InputStream in]}]
  (try
    (let [data (DataInputStream. in)
          length (bit-or (bit-shift-left (.readUnsignedShort data) 8) (.readUnsignedByte data))
          type (.readUnsignedByte data), flags (.readUnsignedByte data), stream (.readInt data)]
      (.readNBytes data length)
      {:type (or (some (fn [[k v]] (when (= v type) k)) types) type), :flags flags, :stream stream})
    (catch EOFException _ :eof)
    (catch java.net.SocketTimeoutException _ :silent)
    (catch IOException _ :eof)))

(defn- greet! [c]
  (wire/send! c preface (frame :settings 0 0 [])))

(defn- answer
  "Reads until a stream ends; returns :answered when it ended with data or headers, otherwise what
  came instead."
  [c stream]
  (loop []
    (let [{:keys [type flags] :as f} (read-frame c)]
      (cond
        (keyword? f) f
        (and (= stream (:stream f)) (#{:data :headers} type) (odd? (long flags))) :answered
        (#{:goaway :reset} type) f
        :else (recur)))))

(defn- visit! [port]
  (stage/with-client [c port]
    (greet! c)
    (wire/send! c (get-frame 1 "/"))
    (let [end (answer c 1)]
      (expect (= :answered end) "an answer over HTTP/2" end))))

;; Floods

(defn- resets [i]
  (let [stream (inc (* 2 (long i)))]
    [(get-frame stream "/park") (frame :reset 0 stream (int32 8))]))

(def ^:private block (vec (repeat 4000 0)))

(def ^:private floods
  "What is sent first, and the i-th time."
  {"resets" {:again resets}
   "continuations" {:first [(frame :headers end-stream 1 (request "/"))]
                    :again
                    (fn [_] [(frame :continuation 0
                                    1 (concat [0x40 5] (map int "x-abc") [5] (map int "12345")))])}
   "empty continuations" {:first [(frame :headers end-stream 1 (request "/"))]
                          :again (fn [_] [(frame :continuation 0 1 [])])}
   "pings" {:again (fn [_] [(frame :ping 0 0 (take 8 block))])}
   "settings" {:again (fn [_] [(frame :settings 0 0 [])])}
   "empty data" {:first [(frame :headers end-headers 1 (request "/park"))]
                 :again (fn [_] [(frame :data 0 1 [])])}
   "oversized window" {:again (fn [_] [(frame :window 0 0 (int32 0x7fffffff))])}
   "unknown frames"
   {:again (fn [_] [(byte-array (map unchecked-byte (concat [0 0 4 99 0] (int32 0) [1 2 3 4])))])}
   "data on no stream" {:again (fn [_] [(frame :data 0 77 [1 2 3])])}})

(defn- floods-for
  "Tomcat reads past frames of an unknown type, which cost it no more than they cost the client."
  [engine]
  (if (= :tomcat engine) (dissoc floods "unknown frames") floods))

(defn- drain!
  "Reads what the server says, so that it never waits for the client, until the connection ends;
  returns a promise of that."
  [c]
  (stage/start (fn [] (while (map? (read-frame c))))))

(def ^:private most 60000)

(defn- flood!
  "Sends until the connection does not take more; returns how many times that was."
  [port {:keys [first again]}]
  (stage/with-client [c port]
                     (greet! c)
                     (let [drained (drain! c)
                           end (+ (stage/now-ms) 12000)]
                       (run! #(wire/try-send! c %) first)
                       (loop [i 0]
                         (if (and (< i (long most))
                                  (< (stage/now-ms) end)
                                  (not (realized? drained))
                                  (apply wire/try-send! c (again i)))
                           (recur (inc i))
                           i)))))

(defn- expect-stopped [counts]
  (let [taken (filter (fn [[_ n]] (<= (long most) (long n))) counts)]
    (expect (empty? taken) "that each flood is stopped" taken)
    {:floods (into (sorted-map) counts)}))

(defn- park [gate]
  (fn [{:keys [uri] :as request}]
    (when (= "/park" uri) (deref gate 200 nil))
    (scene/ok request)))

(def ^:private h2-floods
  {:name "h2-floods"
   :sentence
   (str "Floods of resets, continuations, pings, settings and empty frames end their connection; "
        "others are served.")
   :needs #{:h2}
   :controls [["a connection may do as much as it likes"
               #(assoc-in % [:options :engine-options] {:h2-max-events 1000000000})]]
   :run (fn [stage]
          (let [server (stage/serve stage (park (promise)) {:h2c? true})
                port (server/port server)
                floods (floods-for (:engine stage))
                names (vec (keys floods))
                flood-all! #(stage/each-busy
                              (count names)
                              (fn [i] [(nth names i) (flood! port (floods (nth names i)))]))
                counts (stage/beside #(visit! port) flood-all!)]
            (stage/expect-quiet server 6000)
            (expect-stopped counts)))})

;; A client that opens no window

(def ^:private big (str/join (repeat 200000 "b")))

(defn- starve! [port]
  (stage/with-client [c port]
    (wire/send! c preface (frame :settings 0 0 (concat [0 4] (int32 0))))
    (doseq [i (range 20)] (wire/send! c (get-frame (inc (* 2 (long i))) "/big")))
    (loop []
      (let [f (read-frame c)]
        (cond
          (map? f) (recur)
          (= :silent f) (recur)
          :else f)))))

(def ^:private h2-closed-window
  {:name "h2-closed-window"
   :sentence
   (str "Answers to a client that never opens its window end at :idle-timeout-ms, and leave "
        "nothing behind.")
   :needs #{:h2}
   :controls [["idle-timeout-ms is a minute" #(assoc-in % [:options :idle-timeout-ms] 60000)]]
   :run (fn [stage]
          (let [server (stage/serve stage
                                    (fn [_]
                                      {:status 200, :headers {}, :body (map identity [big big])})
                                    {:h2c? true})
                port (server/port server)
                clients (mapv (fn [_] (stage/start #(starve! port))) (range 20))]
            (scene/eventually 3000 #(<= 100 (long (:in-flight (server/status server)))))
            (stage/expect-quiet server (+ 8000 (long stage/idle-timeout-ms)))
            (expect (every? #(not= ::late (deref % 20000 ::late)) clients)
                    "that each connection ends"
                    :open)
            {:clients 20, :failed (:failed (server/status server))}))})

(def ordeals
  "The ordeals of this namespace."
  [h2-floods h2-closed-window])

(ns thrum.soak.broken
  "Connections that break: in the head, in an upload, in a download, by a FIN, half a FIN or a RST."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.io InputStream)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(def ^:private block (str/join (repeat 4096 "d")))

(defn- handle [{:keys [uri ^InputStream body] :as request}]
  (case uri
    "/up" {:status 200, :headers {}, :body (str (alength (.readAllBytes body)))}
    "/down" {:status 200, :headers {}, :body (map (fn [_] block) (range 20))}
    (scene/ok request)))

(defn- texts []
  [(wire/get "/plain")
   (wire/get "/down")
   (wire/post "/up" (str/join (repeat (+ 1 (stage/chance 50)) block)))
   (wire/chunked "/up" block block block)
   (wire/head-of "POST" "/up" "Content-Length: 100" "Expect: 100-continue")])

(defn- read-some! [c n]
  (wire/after c 20)
  (let [^InputStream in (:in c)]
    (try (.readNBytes in (int n)) (catch java.io.IOException _ nil))))

(defn- end! [c how]
  (case how
    :fin (wire/close! c)
    :rst (wire/reset!! c)
    :half (do (try (wire/finish! c) (catch java.io.IOException _))
              (wire/response c)
              (wire/close! c))))

(defn- break!
  "Sends a request up to any point, reads some of an answer that there is, and ends the connection
  in one of three ways."
  [port]
  (let [^String text (rand-nth (texts))
        at (if (zero? (stage/chance 3)) (count text) (stage/chance (count text)))
        c (wire/connect port)]
    (wire/try-send! c (subs text 0 at))
    (when (and (= at (count text)) (zero? (stage/chance 2)))
      (read-some! c (inc (stage/chance 20000))))
    (end! c (rand-nth [:fin :rst :half]))))

(defn- expect-descriptors
  "Ends the ordeal unless the connections are closed on the server's side as well."
  [before]
  (scene/eventually 8000 #(<= (stage/open-descriptors) (+ (long before) 20)))
  (let [left (- (stage/open-descriptors) (long before))]
    (expect (<= left 20) "that the sockets are closed" left)
    {:descriptors left}))

(def ^:private broken-connections
  {:name "broken-connections"
   :sentence "Connections that break anywhere leave neither an exchange nor a socket behind."
   :controls [["a handler waits for ever when its client has gone"
               (fn [stage]
                 (let [gate (scene/gate stage)]
                   (assoc stage
                          :wrap
                          (fn [handler]
                            #(try
                               (handler %)
                               (catch java.io.IOException _ (deref gate 60000 nil) nil))))))]]
   :run (fn [stage]
          (let [server (stage/serve stage handle {})
                port (server/port server)
                before (stage/open-descriptors)
                figures (stage/beside-bystanders port
                                                 #(do
                                                    (stage/bounded 128 1500 (fn [_] (break! port)))
                                                    {:connections 1500}))]
            (stage/expect-quiet server 6000)
            (merge figures (expect-descriptors before))))})

;; The same work for long

(def ^:private good
  [(wire/get "/plain") (wire/get "/down") (wire/post "/up" block)
   (wire/chunked "/up" block block block)])

(defn- work!
  "Asks up to 20 times on one connection, as long as the server keeps it."
  [port ^AtomicLong asked]
  (stage/with-client [c port]
    (loop [i 0]
      (let [answer (wire/ask! c (nth good (mod i 4)))]
        (expect (stage/whole-200? answer) "an answer" (dissoc answer :body))
        (.incrementAndGet asked)
        (when (and (< i 20) (not= "close" (wire/header answer "connection"))) (recur (inc i)))))))

(def ^:private steady
  {:name "steady"
   :sentence "A long run leaves the heap as it was."
   :controls [["a handler keeps something of each request"
               #(assoc %
                       :wrap
                       (fn [handler]
                         (let [kept (java.util.concurrent.ConcurrentLinkedQueue.)]
                           (fn [request] (.add kept (byte-array 50000)) (handler request)))))]]
   :run (fn [{:keys [seconds], :as stage}]
          (let [server (stage/serve stage handle {})
                port (server/port server)
                asked (AtomicLong.)]
            (stage/until 16 200 #(work! port asked))
            (let [heap (stage/used-heap)]
              (stage/until 16 (* 1000 (long seconds)) #(work! port asked))
              (stage/expect-quiet server)
              (let [grown (- (stage/used-heap) heap)]
                (expect (< grown 4000000) "less than 4 MB more on the heap" grown)
                {:requests (.get asked), :grown-kb (quot grown 1024)}))))})

(def ordeals
  "The ordeals of this namespace."
  [broken-connections steady])

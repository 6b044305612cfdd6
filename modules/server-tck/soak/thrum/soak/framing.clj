(ns thrum.soak.framing
  "Requests in volume that two servers could read differently, and those that come all at once."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.refusal :refer [hidden lines]]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.io InputStream)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

;; Smuggling

(defn- post [& headers]
  (str (apply lines "POST / HTTP/1.1" "Host: localhost" headers) "0\r\n\r\n"))

(defn- hiding [texts]
  (mapv #(str % hidden) texts))

(def ^:private folded
  "Lines that go on in the next one, which a server may refuse or join (RFC 9112, 5.2): the JDK's
  and Tomcat join them."
  (hiding [(post "X-A: b" " Content-Length: 5")
           (post "X-A: b" "\tTransfer-Encoding: chunked")
           (post "Transfer-Encoding:" " chunked")]))

(def ^:private unseen
  "Inputs that the JDK's parser changes before an adapter can see them: it drops control characters
  around a value, and ends a line at a CR."
  (hiding [(post "Content-Length: \u000b3") (post "Content-Length: 3\u0000")
           (post "Transfer-Encoding: \u000bchunked") (post "Transfer-Encoding: chunked\u0000")
           (post "X-A: b\rContent-Length: 5") (post "X-A: b\rc")
           (lines "G ET / HTTP/1.1" "Host: localhost")]))

(def ^:private seen-by-all
  (hiding
    (concat
      (for [length ["+3" "-1" "3, 3" "0x3" "3a" "3 3" "" "3;3" "18446744073709551619" "1e1" "3."]]
        (post (str "Content-Length: " length)))
      (for [coding ["gzip" "identity" "xchunked" "chunked, chunked" "chunked, gzip" "gzip, chunked"
                    "" "\"chunked\"" "chunked;q=1" ", chunked"]]
        (post (str "Transfer-Encoding: " coding)))
      [(post "Content-Length: 5" "Transfer-Encoding: chunked")
       (post "Transfer-Encoding: chunked" "Content-Length: 5")
       (post "Content-Length: 5" "Content-Length: 0") (post "Content-Length: 5" "Content-Length: 5")
       (post "content-length: 5" "CONTENT-LENGTH: 6")
       (post "Transfer-Encoding: chunked" "Transfer-Encoding: identity")
       (post "Transfer-Encoding: chunked" "Transfer-Encoding: chunked")
       (post "Transfer-Encoding : chunked") (post "Content-Length : 5") (post " Content-Length: 5")
       (post "X-A: b\u0000c") (post "No colon") (post ": no name") (post "X A: space")
       (post "X-A\u0000: nul")
       (lines "POST / HTTP/1.0" "Host: localhost" "Transfer-Encoding: chunked")
       (lines "GET / HTTP/1.1" "X-Host: localhost")
       (lines "GET / HTTP/1.1" "Host: localhost" "Host: elsewhere")
       (lines "GET / HTTP/1.1" "Host: a b")
       (lines "GET / HTTP/1.1" "Host: a/b") (lines "GET / HTTP/1.1" "Host: a@b")
       (lines "GET http://elsewhere/ HTTP/1.1" "Host: localhost")
       (lines "GET / HTTP/3.7" "Host: localhost")
       (lines "GET / HTTP/1.1 " "Host: localhost" "Host: localhost")
       (lines "GET /\u0000 HTTP/1.1" "Host: localhost" "Host: localhost")
       (lines "GET" "Host: localhost") (lines "G@T / HTTP/1.1" "Host: localhost")])))

(defn- shapes-for [engine]
  (case engine
    :jdk seen-by-all
    :tomcat (concat seen-by-all unseen)
    (concat seen-by-all unseen folded)))

(defn- refused? [{:keys [status ended]}]
  (if status (#{400 501 505} status) (#{:eof :reset} ended)))

(defn- smuggle!
  "Sends the shape in two pieces, cut anywhere; returns what is wrong with the answer, or nil."
  [port ^String shape]
  (let [at (stage/chance (count shape))]
    (stage/with-client [c port]
      (wire/try-send! c (subs shape 0 at))
      (let [answer (wire/ask! c (subs shape at))]
        (cond
          (not (refused? answer)) {:shape shape, :answer answer}
          (and (:status answer) (not (wire/closed? c))) {:shape shape, :left :open})))))

(def ^:private smuggling
  {:name "smuggling"
   :sentence
   (str "Each shape of smuggling, cut into pieces anywhere, is answered 400, 501 or 505 or "
        "closed, and no handler is called.")
   :controls [["a plain request is among the shapes"
               #(assoc % :shapes (conj seen-by-all (str (wire/get "/") hidden)))]
              ["a handler is called without an answer"
               (fn [stage] (assoc stage :called (AtomicLong. 1)))]]
   :run (fn [stage]
          (let [^AtomicLong called (:called stage (AtomicLong.))
                shapes (vec (:shapes stage (shapes-for (:engine stage))))
                server (stage/serve stage
                                    #(do
                                       (when-not (stage/bystander? %) (.incrementAndGet called))
                                       (scene/ok %))
                                    {})
                port (server/port server)
                n 2000
                figures
                (stage/beside-bystanders
                  port
                  #(let [wrong (remove
                                 nil?
                                 (stage/bounded
                                   32
                                   n
                                   (fn [i] (smuggle! port (nth shapes (mod i (count shapes)))))))]
                     (expect (empty? wrong) "that each is refused" (take 3 wrong))
                     {:requests n, :shapes (count shapes)}))]
            (expect (zero? (.get called)) "that no handler is called" (.get called))
            (stage/expect-quiet server)
            figures))})

;; Pipelining

(defn- echo
  "Answers with the path, and the length of the body that came."
  [{:keys [uri ^InputStream body] :as request}]
  (if (stage/bystander? request)
    (scene/ok request)
    {:status 200, :headers {}, :body (str uri ":" (alength (.readAllBytes body)))}))

(defn- request-text
  "Returns a request; chunked? where a connection goes on behind a chunked one, which the JDK's does
  not."
  [id n chunked?]
  (let [path (str "/" id), body (str/join (repeat n "b"))]
    (case (int (mod (long id) 4))
      0 (wire/get path)
      1 (wire/post path body)
      2 (if chunked? (wire/chunked path body) (wire/post path body))
      3 (wire/head-of "HEAD" path))))

(defn- expected-body [id n]
  (case (int (mod (long id) 4)) 0 (str "/" id ":0") 3 "" (str "/" id ":" n)))

(defn- send-in-pieces! [c ^String text]
  (loop [at 0]
    (when (< at (count text))
      (let [to (min (count text) (+ at 1 (stage/chance 3000)))]
        (wire/send! c (subs text at to))
        (recur to)))))

(defn- pipeline!
  [port first-id n chunked?]
  (stage/with-client
    [c port]
    (let [ids (range first-id (+ first-id n))
          sizes (zipmap ids (repeatedly #(inc (stage/chance 500))))
          sending (stage/start
                    #(send-in-pieces! c
                                      (str/join (map (fn [id] (request-text id (sizes id) chunked?))
                                                     ids))))]
      (doseq [id ids]
        (let [answer (wire/response c (when (= 3 (mod (long id) 4)) :head))]
          (expect (= [200 (expected-body id (sizes id))] [(:status answer) (:body answer)])
                  (str "the answer to " id)
                  answer)))
      @sending)))

(def ^:private pipelining
  {:name "pipelining"
   :sentence
   (str "Requests that come all at once, cut into pieces anywhere, are answered in their order, "
        "each with its own.")
   :controls [["a handler answers with another's path"
               #(assoc %
                       :wrap
                       (fn [handler]
                         (let [ids (AtomicLong.)]
                           (fn [request]
                             (handler (cond-> request
                                        (zero? (mod (.incrementAndGet ids) 50))
                                        (assoc :uri "/7")))))))]]
   :run (fn [stage]
          (let [port (server/port (stage/serve stage echo {}))
                clients 24
                n 200
                chunked? (not= :jdk (:engine stage))]
            (stage/beside-bystanders
              port
              #(do
                 (stage/each clients (fn [i] (pipeline! port (* 1000 (long i)) n chunked?)))
                 {:requests (* clients n)}))))})

(def ordeals
  "The ordeals of this namespace."
  [smuggling pipelining])

(ns thrum.server.tck.h2
  "Chapter: HTTP/2 by the JDK's client."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect=]]
   [thrum.server.tck.threads :as threads]
   [thrum.server.tck.tls :as tls]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)
   (java.net URI)
   (java.net.http HttpClient HttpClient$Version HttpRequest HttpRequest$BodyPublishers HttpResponse HttpResponse$BodyHandlers)
   (java.time Duration)
   (java.util.concurrent CompletableFuture CountDownLatch ExecutionException)))

(set! *warn-on-reflection* true)

(def ^:private h2
  {:needs #{:h2 :tls}, :refuses {:h2? true}, :uses #{:ssl-port}})

(defn- http-client
  ^HttpClient [env]
  (let [client (-> (HttpClient/newBuilder)
                   (.sslContext (tls/context nil))
                   (.version HttpClient$Version/HTTP_2)
                   .build)]
    (scene/at-end env #(.shutdownNow client))
    client))

(defn- request
  "Returns a request: a GET, or a POST of this text."
  ^HttpRequest [env server path & [text]]
  (let [port (scene/tool env :ssl-port server)
        builder (HttpRequest/newBuilder (URI. (str "https://localhost:" port path)))]
    (when text (.POST builder (HttpRequest$BodyPublishers/ofString text)))
    (.build (.timeout builder (Duration/ofMillis wire/patience-ms)))))

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

(defcase h2-requests-have-a-host "4.2"
  "A request has a host among its headers: its :authority, where it sends none."
  h2
  [env]
  (let [seen (promise)
        server (serve env (fn [r] (deliver seen r) (scene/ok r)))]
    (get! env server "/")
    (expect= [(str "localhost:" (scene/tool env :ssl-port server)) "localhost"]
             [(get-in @seen [:headers "host"]) (:server-name @seen)])))

(defcase h2-body-arrives "4.2"
  "A body arrives whole, both ways."
  h2
  [env]
  (let [text (str/join (repeat 30000 "0123456789"))
        server (serve env
                      (fn [{:keys [^java.io.InputStream body]}]
                        {:status 200, :headers {}, :body (.readAllBytes body)}))
        answer (answer-of (send-async (http-client env) (request env server "/" text)))]
    (expect (= text (.body answer)) "the body that was sent" :another)))

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
                      (scene/routes {"/late" (fn [r] (deref gate 30000 nil) (scene/ok r))})
                      {:request-timeout-ms 1000})
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
        wait (fn [r] (deliver entered true) (deref gate 30000 nil) (scene/ok r))
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

(defn- unfair
  "Returns the ends that no deadline explains."
  [ends]
  (set (remove #{:answered :late :reset} (keys ends))))

(defn- race
  "Calls (one i) twenty times at once, in 8 rounds, or up to 80 until some were answered and some
  late: a busy machine may be late for long. An unfair end is the last round's. Returns how often
  each end was."
  [one]
  (reduce (fn [ends round]
            (if (or (seq (unfair ends))
                    (and (<= 8 (long round)) (every? ends [:answered :late])))
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
        one #(end-of (send-async client (request env server (path %) text)) text)
        ;; Else each of the first would open a connection of its own.
        _ (end-of (send-async client (request env server "/s/0")) "")
        ends (race one)]
    (expect= #{} (unfair ends) ends)
    (expect (every? ends [:answered :late]) "some that are answered, and some that are late" ends)))

;; Without TLS

(defcase h2-by-upgrade "4.2"
  "A request of HTTP/1.1 that asks for HTTP/2 is answered in it, and its handler sees nothing of
  that."
  {:needs #{:h2}, :refuses {:h2c? true}, :uses #{}}
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

(ns thrum.server.tck.drain
  "Chapter: how a server stops."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(defn- expect-stopped [stopping]
  (let [{:keys [thrown]} (scene/within stopping "the end of stop!")]
    (when thrown (scene/fail "a stop! that returns" thrown))))

(defn- expect-prompt-stop [env server]
  (expect (< (long (scene/elapsed-ms #(scene/tool env :stop server))) wire/patience-ms)
          "a stop at once"
          :later))

(defn- kept
  "Returns a client that has had one response on its connection."
  [env server]
  (let [c (scene/client env server)]
    (expect-status 200 (wire/ask! c (wire/get "/")))
    c))

(defn- refused? [env server]
  (try (wire/close! (scene/client env server)) false
       (catch IOException _ true)))

(defn- connection-of [answer]
  (some-> (wire/header answer "connection") str/lower-case))

(defcase stop-returns "4.7"
  "An idle server stops at once, and listens no more."
  [env]
  (let [server (scene/serve env scene/ok {})
        port (scene/port-of env server)]
    (expect-prompt-stop env server)
    (expect (try
              (wire/close! (wire/connect port))
              false
              (catch IOException _ true))
            "a closed port"
            :open)))

(defcase stop-is-idempotent "4.7"
  "Stopping twice is stopping once, also at the same time."
  [env]
  (let [server (scene/serve env scene/ok {})
        both (vec (repeatedly 2 #(scene/stop! env server)))]
    (run! expect-stopped both)
    (expect-stopped (scene/stop! env server))))

(defcase port-is-free-after-stop "4.7"
  "After the stop another server may listen on the port."
  [env]
  ;; None of the ports that systems give to who asks for any: no other process takes it meanwhile.
  (let [[server port] (some #(when-some [server (scene/started env {:port %})] [server %])
                            (repeatedly 20 #(+ 20000 (long (rand-int 10000)))))]
    (scene/ask env server (wire/get "/"))
    (scene/tool env :stop server)
    (expect (scene/started env {:port port}) "a server on the port again" :none)))

(defcase idle-connections-end-with-the-server "4.7"
  "Kept connections that are idle are closed, and do not delay the stop."
  [env]
  (let [server (scene/serve env scene/ok {:shutdown-timeout-ms 9000})
        c (kept env server)]
    (expect-prompt-stop env server)
    (expect-closed c)))

(defcase ready-until-stop "4.7"
  "A server is ready until its stop has begun, and not any more after it."
  {:uses #{:ready?}}
  [env]
  (let [{:keys [server gate]} (scene/waiting env {:shutdown-timeout-ms 5000})
        ready #(boolean (scene/tool env :ready? server))
        before (ready)
        stopping (scene/stop! env server)]
    (expect= true before)
    (expect (scene/eventually #(not (ready))) "not ready while it drains" (ready))
    (deliver gate :open)
    (expect-stopped stopping)
    (expect= false (ready))))

(defcase state-is-told "4.7"
  "The status says :running, :draining and :stopped."
  {:uses #{:status}}
  [env]
  (let [{:keys [server gate]} (scene/waiting env {:shutdown-timeout-ms 5000})
        state #(:state (scene/tool env :status server))
        before (state)
        stopping (scene/stop! env server)]
    (expect= :running before)
    (expect (scene/eventually #(= :draining (state))) ":draining" (state))
    (deliver gate :open)
    (expect-stopped stopping)
    (expect= :stopped (state))))

(defn- draining
  "As scene/waiting, while stop! waits in its :drain-delay-ms."
  [env options]
  (let [{:keys [server], :as scene}
        (scene/waiting env (merge {:drain-delay-ms 3000, :shutdown-timeout-ms 5000} options))
        connection (kept env server)
        stopping (scene/stop! env server)]
    (if (get-in env [:tools :ready?])
      (scene/eventually #(not (scene/tool env :ready? server)))
      (Thread/sleep 100))
    (assoc scene :stopping stopping :kept connection)))

(defcase draining-goes-on-serving "4.7"
  "For :drain-delay-ms new connections and kept ones are served."
  [env]
  (let [{:keys [server kept]} (draining env {})]
    (scene/throughout wire/quiet-ms #(expect-status 200 (scene/ask env server (wire/get "/"))))
    (expect-status 200 (wire/ask! kept (wire/get "/")))))

(defcase draining-closes-connections "4.7"
  "While the server drains, responses carry Connection: close, and their connections are closed."
  [env]
  (let [{:keys [kept]} (draining env {})
        answer (wire/ask! kept (wire/get "/"))]
    (expect= "close" (connection-of answer))
    (expect-closed kept)))

(defcase draining-closes-new-connections "4.7"
  "While the server drains, new connections get Connection: close too."
  [env]
  (let [{:keys [server]} (draining env {})]
    (expect= "close" (connection-of (scene/ask env server (wire/get "/"))))))

(defcase listener-closes-after-the-delay "4.7"
  "After :drain-delay-ms no new connection is taken, while what is in flight goes on."
  [env]
  (let [{:keys [server gate]} (scene/waiting env {:shutdown-timeout-ms 5000})]
    (scene/stop! env server)
    (expect (scene/eventually #(refused? env server)) "a closed listener" :open)
    (expect (not (realized? gate)) "that the request is still in flight" :ended)))

(defcase kept-connections-get-503 "4.7"
  "After the delay a request on a kept connection is answered with 503, or its connection is closed;
  the handler is not called."
  [env]
  (let [calls (AtomicInteger.)
        gate (scene/gate env)
        entered (promise)
        handler (scene/routes {"/wait"
                               (fn [r] (deliver entered true) (deref gate 30000 nil) (scene/ok r))
                               "/late" (fn [r] (.incrementAndGet calls) (scene/ok r))})
        server (scene/serve env handler {:shutdown-timeout-ms 5000})
        c (kept env server)]
    (wire/send! (scene/client env server) (wire/get "/wait"))
    (scene/within entered "a call of the handler")
    (scene/stop! env server)
    (scene/eventually #(refused? env server))
    (scene/expect-refusal #{503} (wire/ask! c (wire/get "/late")))
    (expect-closed c)
    (expect= 0 (.get calls))))

(defcase kept-connections-get-503-beside-streams "4.7"
  "So it is while :drain-streams-ms leaves streams open."
  {:uses #{:status}}
  [env]
  (let [{:keys [server gate]}
        (scene/waiting env {:drain-streams-ms 8000, :shutdown-timeout-ms 9000})
        c (kept env server)]
    (scene/stop! env server)
    (scene/eventually #(refused? env server))
    (scene/expect-refusal #{503} (wire/ask! c (wire/get "/late")))
    (deliver gate :open)))

(defcase in-flight-is-finished "4.7"
  "What is in flight when the stop begins is answered in full, and stop! returns only then."
  [env]
  (let [{:keys [server gate client ended]} (scene/waiting env {:shutdown-timeout-ms 6000})
        stopping (scene/stop! env server)]
    (expect (scene/eventually #(refused? env server)) "a closed listener" :open)
    (expect (not (realized? stopping)) "a stop that waits" :returned)
    (deliver gate :open)
    (let [answer (expect-status 200 (wire/response client))]
      (expect= ["ok" "close"] [(:body answer) (connection-of answer)]))
    (expect= :opened @ended)
    (expect-stopped stopping)))

(defcase streams-in-flight-are-finished "4.7"
  "A response that has begun when the stop begins is sent to its end."
  [env]
  (let [gate (scene/gate env)
        cut (promise)
        body (lazy-seq (cons "some" (lazy-seq (scene/wait! gate cut) ["more"])))
        server (scene/serve env (scene/answering {:body body}) {:shutdown-timeout-ms 6000})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (wire/head c)
    (expect= "some" (wire/chunk c))
    (let [stopping (scene/stop! env server)]
      (expect (scene/eventually #(refused? env server)) "a closed listener" :open)
      ;; A server that gives up what is in flight does so now.
      (deref cut 200 nil)
      (deliver gate :open)
      (expect= ["more" :last] [(wire/chunk c) (wire/chunk c)])
      (expect-stopped stopping))))

(defcase timeout-interrupts "4.7"
  "What is in flight at :shutdown-timeout-ms is interrupted and answered with 503."
  [env]
  (let [{:keys [server client ended]} (scene/waiting env {:shutdown-timeout-ms 200})
        stopping (scene/stop! env server)]
    (expect= 503 (:status (wire/response client)))
    (expect= :interrupted (scene/within ended "an interrupt"))
    (expect-stopped stopping)))

(defcase timeout-interrupts-callbacks "4.7"
  "So are an :error-handler and a :start observer that run at :shutdown-timeout-ms."
  [env]
  (let [gate (scene/gate env)
        boom (fn [_] (throw (ex-info "boom" {})))]
    (doseq [options-of [(fn [f] {:error-handler f}) (fn [f] {:observer {:start f}})]]
      (let [entered (promise), seen (promise)
            callback (fn [& _]
                       (deliver entered true)
                       (scene/wait! gate seen))
            server (scene/serve env boom (assoc (options-of callback) :shutdown-timeout-ms 100))
            client (wire/send! (scene/client env server) (wire/get "/"))]
        (scene/within entered "a call")
        (let [stopping (scene/stop! env server)]
          (expect= 503 (:status (wire/response client)))
          (expect= :interrupted (scene/within seen "an interrupt"))
          (expect-stopped stopping))))))

(defcase timeout-cuts-what-has-begun "4.7"
  "A response that has begun at :shutdown-timeout-ms is cut off."
  [env]
  (let [gate (scene/gate env)
        body (lazy-seq (cons "some" (lazy-seq (deref gate 30000 nil) ["more"])))
        server (scene/serve env (scene/answering {:body body}) {:shutdown-timeout-ms 200})
        c (wire/send! (scene/client env server) (wire/get "/"))
        answer (wire/head c)]
    (expect= 200 (:status answer))
    (scene/stop! env server)
    (expect-cut (wire/body c answer))))

(defcase stubborn-handlers-do-not-stop-the-stop "4.7"
  "A handler that ignores its interrupt does not keep stop! from returning, nor its client from an
  answer."
  [env]
  (let [gate (scene/gate env)
        entered (promise)
        handler (fn [r] (deliver entered true) (scene/stubborn gate) (scene/ok r))
        server (scene/serve env handler {:shutdown-timeout-ms 200})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (scene/within entered "a call of the handler")
    (expect-stopped (scene/stop! env server))
    (expect (not (realized? gate)) "a stop before the handler has ended" :after)
    (scene/expect-refusal #{503} (wire/response c))))

(defcase stop-inside-a-handler "4.7"
  "stop! inside a handler returns at once, the handler's response is sent, and the server stops."
  [env]
  (let [server (promise), returned (promise)
        handler (fn [r] (scene/tool env :stop @server) (deliver returned true) (scene/ok r))]
    (deliver server (scene/serve env handler {:shutdown-timeout-ms 3000}))
    (let [c (wire/send! (scene/client env @server) (wire/get "/"))]
      (scene/within returned "that stop! returns")
      (expect= "ok" (:body (expect-status 200 (wire/response c)))))
    (expect (scene/eventually #(refused? env @server)) "a closed listener" :open)))

(defcase stop-inside-a-handlers-task "4.7"
  "Inside a task of a handler, which the handler waits for, stop! returns at once too."
  {:uses #{:pmap}}
  [env]
  (let [server (promise), returned (promise)
        stop! (fn [_] (scene/tool env :stop @server) (deliver returned true))
        handler (fn [r] (run! identity (scene/tool env :pmap 2 stop! [1])) (scene/ok r))]
    (deliver server (scene/serve env handler {:shutdown-timeout-ms 3000}))
    (let [c (wire/send! (scene/client env @server) (wire/get "/"))]
      (scene/within returned "that stop! returns")
      (expect= "ok" (:body (expect-status 200 (wire/response c)))))))

(defcase no-accepted-request-is-lost "4.7"
  "Under a stop every request whose handler was entered is answered, once."
  [env]
  (let [entered (AtomicInteger.), held (AtomicInteger.), stopping (atom false)
        gate (CountDownLatch. 1), cut (promise)
        work #(if @stopping (do (.incrementAndGet held) (.await gate)) (Thread/sleep 5))
        handler (fn [r]
                  (.incrementAndGet entered)
                  (try (work) (catch InterruptedException e (deliver cut true) (throw e)))
                  (scene/ok r))
        server (scene/serve env handler {:shutdown-timeout-ms 5000})
        ask-on (fn [c] (loop [served 0]
                         (let [answer (try (wire/ask! c (wire/get "/")) (catch IOException _ nil))]
                           (if (= 200 (:status answer)) (recur (inc served)) served))))
        clients (vec (repeatedly 12 #(scene/client env server)))
        served (mapv (fn [c] (scene/start #(ask-on c))) clients)]
    (expect (scene/eventually #(< 50 (.get entered))) "fifty requests" (.get entered))
    (reset! stopping true)
    (expect (scene/eventually #(pos? (.get held))) "a request in flight" :none)
    (let [stopped (scene/stop! env server)]
      (scene/eventually #(refused? env server))
      ;; A server that gives up what is in flight does so now.
      (deref cut 200 nil)
      (.countDown gate)
      (expect-stopped stopped))
    (expect= (.get entered) (reduce + (map #(:value (scene/within % "an end")) served)))))

;; Probes

(def ^:private probed {:health {:live "/livez", :ready "/readyz"}})

(defn- word [answer]
  [(:status answer) (:body answer)])

(defcase probes-are-answered-when-the-server-is-full "4.4"
  "Probes are answered, with a word, where requests are shed."
  [env]
  (let [{:keys [server]} (scene/waiting env (assoc probed :max-concurrent 1))]
    (expect= 503 (:status (scene/ask env server (wire/get "/"))))
    (doseq [path ["/livez" "/readyz?verbose"]]
      (expect= [200 "ok"] (word (scene/ask env server (wire/get path))) path))))

(defcase readiness-ends-with-the-drain "4.7"
  "While the server drains it is alive, and not ready."
  [env]
  (let [{:keys [server]} (draining env probed)]
    (expect= [503 "draining"] (word (scene/ask env server (wire/get "/readyz"))))
    (expect= [200 "ok"] (word (scene/ask env server (wire/get "/livez"))))))

(defcase a-draining-server-is-alive-on-kept-connections "4.7"
  "Behind the delay too, a probe on a kept connection is answered, or its connection is closed."
  [env]
  (let [{:keys [server gate]} (scene/waiting env (assoc probed :shutdown-timeout-ms 9000))
        c (kept env server)]
    (scene/stop! env server)
    (scene/eventually #(refused? env server))
    (scene/expect-refusal #{200} (wire/ask! c (wire/get "/livez")))
    (deliver gate :open)))

(defcase other-methods-are-no-probes "4.4"
  "A HEAD is a probe; what is no GET or HEAD, or asks elsewhere, goes to the handler."
  [env]
  (let [server (scene/serve env (scene/answering {:status 201}) probed)]
    (expect= [200 201 201]
             (map #(:status (scene/ask env server %))
                  [(wire/head-of "HEAD" "/livez") (wire/post "/livez" "x")
                   (wire/get "/livez/")]))))

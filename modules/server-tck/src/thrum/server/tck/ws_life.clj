(ns thrum.server.tck.ws-life
  "Chapter: the threads of a websocket, its bounds, and its end."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.threads :as threads]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws])
  (:import
   (java.io IOException)))

(set! *warn-on-reflection* true)

(defcase ws-close-is-answered "4.9"
  "A close is answered with a close, and on-close is called once, with its code."
  ws/needs
  [env]
  (let [closes (atom [])
        c (ws/open env (ws/serve env {:on-close (fn [_ code _] (swap! closes conj code))}))]
    (wire/send! c (ws/frame :close (ws/code-text 1000)))
    (expect= 1000 (ws/close-code (ws/read-frame c)))
    (expect-closed c)
    (expect (scene/eventually #(= [1000] @closes)) "one :on-close with 1000" @closes)))

(defcase ws-callbacks-inherit-nothing "4.1"
  "Callbacks find nothing of what the requests before have left on their threads, in an
  InheritableThreadLocal or as context class loader."
  ws/needs
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
    (wire/send! c (ws/handshake))
    (expect= 101 (:status (wire/head c)))
    (expect= [] (scene/within seen "a call of :on-open"))))

(defcase ws-server-may-close "4.9"
  "The server's side may close, with a code and a reason."
  (assoc ws/needs :uses #{:send! :close!})
  [env]
  (let [c (ws/open env
            (ws/serve env {:on-open (fn [socket] (scene/tool env :close! socket 4001 "enough"))}))
        [name payload :as found] (ws/read-frame c)]
    (expect= [:close 4001 "enough"] [name (ws/close-code found) (subs (str payload) 2)])))

(defcase ws-servers-close-is-told "4.9"
  "A close of the server's side that the client answers at once is one :on-close, with its code and
  reason."
  (assoc ws/needs :uses #{:send! :close!})
  [env]
  (let [closes (atom [])
        server (ws/serve env
                         {:on-open (fn [socket] (scene/tool env :close! socket 4001 "enough"))
                          :on-close (fn [_ code reason] (swap! closes conj [code reason]))})]
    (dotimes [_ 20]
      (let [c (ws/open env server)
            [_ payload] (ws/read-frame c)]
        (wire/send! c (ws/frame :close payload))
        (expect-closed c)))
    (expect (scene/eventually #(= (repeat 20 [4001 "enough"]) @closes))
            "twenty times :on-close with 4001"
            @closes)))

(defcase ws-lost-clients-are-closed "4.9"
  "A client that vanishes is an :on-close, once."
  ws/needs
  [env]
  (let [closes (atom 0)
        opened (promise)
        c (ws/open env
            (ws/serve env
              {:on-open (fn [_] (deliver opened true))
               :on-close (fn [_ _ _] (swap! closes inc))}))]
    (scene/within opened "an :on-open")
    (wire/reset!! c)
    (expect (scene/eventually #(= 1 @closes)) "one :on-close" @closes)))

(defcase ws-send-throws-when-closed "4.9"
  "send! throws IOException on a websocket that is closed, which says so."
  (assoc ws/needs :uses #{:send! :open?})
  [env]
  (let [thrown (promise)
        on-close (fn [socket _ _]
                   (deliver thrown
                            [(scene/tool env :open? socket)
                             (try
                               (scene/tool env :send! socket "late")
                               :sent
                               (catch Throwable t t))]))
        c (ws/open env (ws/serve env {:on-close on-close}))]
    (wire/send! c (ws/frame :close (ws/code-text 1000)))
    (let [[open? t] (scene/within thrown "an :on-close")]
      (expect= false open?)
      (expect (instance? IOException t) "an IOException" t))))

(defcase ws-callbacks-run-on-virtual-threads "4.1"
  "Every callback of a websocket runs on a virtual thread."
  ws/needs
  [env]
  (let [seen (atom {})
        note! (fn [k] (swap! seen assoc k (Thread/.isVirtual (Thread/currentThread))))
        listener {:on-open (fn [_] (note! :open))
                  :on-message (fn [_ _] (note! :message))
                  :on-pong (fn [_ _] (note! :pong))
                  :on-close (fn [_ _ _] (note! :close))}
        c (ws/open env (ws/serve env listener))]
    (wire/send! c (ws/frame :text "x") (ws/frame :pong "") (ws/frame :close (ws/code-text 1000)))
    (expect (scene/eventually #(= {:open true, :message true, :pong true, :close true} @seen))
            "four virtual threads"
            @seen)))

(defcase ws-leaves-max-concurrent "4.5"
  "An open websocket does not count against :max-concurrent, but against :max-streams."
  ws/needs
  [env]
  (let [handler (fn [{:keys [headers], :as r}]
                  (if (headers "upgrade") {:ring.websocket/listener (ws/echo env)} (scene/ok r)))
        ;; The one before may hold its permit a moment longer than its client waits.
        server (scene/serve env handler {:max-concurrent 1, :max-queued 1, :max-streams 1})]
    (ws/open env server)
    (scene/expect-served-soon env server)
    (expect= 503 (:status (wire/head (wire/send! (scene/client env server) (ws/handshake)))))))

(defcase ws-outlives-the-deadline "4.5"
  "An open websocket is not cut at :request-timeout-ms."
  ws/needs
  [env]
  (let [c (ws/open env (ws/serve env (ws/echo env) {:request-timeout-ms 500}))]
    (expect= :silent (wire/after c 800))
    (wire/send! c (ws/frame :text "still"))
    (expect= [:text "still"] (ws/read-frame c))))

(defcase ws-closes-with-the-server "4.7"
  "When the server stops, an open websocket is closed with 1001, on-close is called, and the stop is
  not delayed."
  ws/needs
  [env]
  (let [closes (atom 0)
        listener {:on-close (fn [_ _ _] (swap! closes inc))}
        server (ws/serve env listener {:shutdown-timeout-ms 9000})
        c (ws/open env server)
        stopping (scene/stop! env server)]
    (expect= 1001 (ws/close-code (ws/read-frame c)))
    (wire/try-send! c (ws/frame :close (ws/code-text 1001)))
    (scene/within stopping "the end of stop!")
    (expect (scene/eventually #(= 1 @closes)) "one :on-close" @closes)))

(defcase ws-silent-clients-do-not-stop-the-stop "4.7"
  "A websocket whose client does not answer that close is cut."
  ws/needs
  [env]
  (let [server (ws/serve env {} {:shutdown-timeout-ms 9000})
        c (ws/open env server)
        stopping (scene/stop! env server)]
    (expect= 1001 (ws/close-code (ws/read-frame c)))
    (expect-closed c)
    (scene/within stopping "the end of stop!")))

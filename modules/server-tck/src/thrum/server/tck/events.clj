(ns thrum.server.tck.events
  "Chapter: server-sent events from a plain handler."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException)))

(set! *warn-on-reflection* true)

(defn- streaming
  "Returns a handler whose response is a stream fed by (f send!)."
  [env options f]
  (fn [_] (scene/tool env :sse options (fn [events] (f #(scene/tool env :send! events %))))))

(defn- stream-of
  "Returns the whole response of a stream that is fed by (f send!)."
  [env f]
  (expect-status 200 (scene/ask env (scene/serve env (streaming env {} f) {}) (wire/get "/"))))

(defcase events-have-their-type "4.5"
  "A stream of events is text/event-stream, and ends when its function returns."
  {:uses #{:sse}}
  [env]
  (let [answer (stream-of env (fn [send!] (send! "hello")))]
    (expect (str/starts-with? (str (wire/header answer "content-type")) "text/event-stream")
            "text/event-stream"
            answer)
    (expect (str/includes? (:body answer) "data: hello\n\n") "an event" (:body answer))))

(defcase events-have-fields "4.5"
  "An event has its id, name and retry, and one data line for each line of its text."
  {:uses #{:sse}}
  [env]
  (let [event {:event "tick", :id "7", :retry 1500, :data "one\ntwo\r\nthree"}
        {:keys [body]} (stream-of env (fn [send!] (send! event)))
        lines (set (str/split-lines body))]
    (expect (every? lines
                    ["event: tick" "id: 7" "retry: 1500" "data: one" "data: two" "data: three"])
            "all fields"
            body)))

(defn- expect-event
  "Reads chunks up to one that holds text."
  [c text]
  (let [chunk (wire/chunk c)]
    (cond
      (keyword? chunk) (scene/fail (str "an event of " text) chunk)
      (not (str/includes? chunk text)) (recur c text))))

(defcase events-are-sent-at-once "4.5"
  "An event reaches the client before the next one is sent."
  {:uses #{:sse}}
  [env]
  (let [gate (scene/gate env)
        handler
        (streaming env {} (fn [send!] (send! "first") (deref gate 30000 nil) (send! "second")))
        c (wire/send! (scene/client env (scene/serve env handler {})) (wire/get "/"))]
    (wire/head c)
    (expect-event c "first")
    (expect (not (realized? gate)) "the event before the gate opens" :after)))

(defcase events-reach-http-1-0 "4.5"
  "On HTTP/1.0 too an event reaches the client before the next one is sent; the stream ends with the
  connection, and does not say that it is kept."
  {:uses #{:sse}, :needs #{:http-1.0}}
  [env]
  (let [gate (scene/gate env)
        handler (streaming env {} (fn [send!] (send! "first") (deref gate 30000 nil)))
        c (wire/send! (scene/client env (scene/serve env handler {}))
                      "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer (wire/head c)
        first-event (wire/bytes-of "data: first\n\n")]
    (expect= [200 :close] (map answer [:status :framing]))
    (expect (not= "keep-alive" (wire/header answer "connection")) "no keep-alive" answer)
    (expect= (seq first-event) (seq (wire/read-bytes c (alength first-event))))
    (deliver gate :open)
    (scene/expect-closed c)))

(defcase events-cannot-be-injected "4.8"
  "A line's end in an event's name or id throws, or is left out: it never begins another field."
  {:uses #{:sse}}
  [env]
  (doseq [event [{:event "a\ndata: evil", :data "x"} {:id "1\r\ndata: evil", :data "x"}
                 {:data "a\rdata: evil"}]]
    (let [{:keys [body]} (scene/ask
                           env
                           (scene/serve env (streaming env {} (fn [send!] (send! event))) {})
                           (wire/get "/"))]
      (expect (not-any? #{"data: evil"} (str/split (str body) #"\r\n|\r|\n"))
              "no injected field"
              body))))

(defcase send-throws-when-the-client-has-gone "4.5"
  "send! throws IOException when the client has gone."
  {:uses #{:sse}}
  [env]
  (let [thrown (promise)
        feed (fn [send!]
               (try
                 (dotimes [i 2000]
                   (send! (str i))
                   (Thread/sleep 2))
                 (catch Throwable t (deliver thrown t) (throw t))))
        c (wire/send! (scene/client env (scene/serve env (streaming env {} feed) {}))
                      (wire/get "/"))]
    (wire/head c)
    (wire/chunk c)
    (wire/reset!! c)
    (let [t (scene/within thrown "an exception from send!")]
      (expect (instance? IOException t) "an IOException" t))))

(defcase silent-streams-have-a-heartbeat "4.5"
  "A stream that is silent sends a comment now and then."
  {:uses #{:sse}}
  [env]
  (let [gate (scene/gate env)
        handler (streaming env {:heartbeat-ms 50} (fn [_] (deref gate 30000 nil)))
        c (wire/send! (scene/client env (scene/serve env handler {})) (wire/get "/"))]
    (wire/head c)
    (let [chunk (wire/chunk c)]
      (expect (and (string? chunk) (str/starts-with? chunk ":")) "a comment" chunk))))

(defn- open-stream
  "Opens a stream that stays open; returns its client."
  [env server]
  (let [c (wire/send! (scene/client env server) (wire/get "/stream"))]
    (expect-status 200 (assoc (wire/head c) :ended :whole))
    (expect-event c "first\n\n")
    c))

(defn- long-streams [env options]
  (let [gate (scene/gate env)
        feed (fn [send!] (send! "first") (deref gate 30000 nil) (send! "last"))
        server (scene/serve env (scene/routes {"/stream" (streaming env {} feed)}) options)]
    {:server server, :gate gate}))

(defcase streams-leave-max-concurrent "4.5"
  "An open stream does not count against :max-concurrent."
  {:uses #{:sse}}
  [env]
  (let [{:keys [server]} (long-streams env {:max-concurrent 1})]
    (open-stream env server)
    (scene/expect-served-soon env server)))

(defcase streams-are-bounded "4.5"
  "A stream beyond :max-streams is answered with 503; when one ends, there is room again."
  {:uses #{:sse}}
  [env]
  (let [{:keys [server gate]} (long-streams env {:max-streams 1})]
    (open-stream env server)
    (expect= 503 (:status (scene/ask env server (wire/get "/stream"))))
    (deliver gate :open)
    (scene/expect-served-soon env server "/stream")))

(defcase streams-that-are-shed-are-over "4.5"
  "A stream that was answered with 503 is in flight no more."
  {:uses #{:sse :status}}
  [env]
  (let [{:keys [server]} (long-streams env {:max-streams 1, :max-concurrent 4})
        in-flight #(:in-flight (scene/tool env :status server))]
    (open-stream env server)
    (expect= 503 (:status (scene/ask env server (wire/get "/stream"))))
    (expect (scene/eventually #(= 1 (in-flight))) "the open stream alone" (in-flight))))

(defcase streams-outlive-the-deadline "4.5"
  "An open stream is not cut at :request-timeout-ms."
  {:uses #{:sse}}
  [env]
  (let [{:keys [server gate]} (long-streams env {:request-timeout-ms 500})
        c (open-stream env server)]
    (expect= :silent (wire/after c 800))
    (deliver gate :open)
    (expect-event c "last")))

(defn- expect-cancelled
  "Opens a stream whose handler waits for something else, and leaves it by (leave! client): the
  handler is interrupted, and all is released."
  [env options leave!]
  (let [gate (scene/gate env)
        ended (promise)
        wait (fn [send!] (send! "first") (scene/wait! gate ended))
        server
        (scene/serve env (scene/routes {"/stream" (streaming env {:heartbeat-ms 30} wait)}) options)
        c (open-stream env server)]
    (leave! c)
    (expect= :interrupted (scene/within ended "an interrupt"))
    (expect
      (scene/eventually #(= [0 0] ((juxt :in-flight :streams) (scene/tool env :status server))))
      "nothing in flight, no stream"
      (scene/tool env :status server))))

(defcase streams-of-clients-that-have-gone-are-cancelled "4.6"
  "A stream whose client has gone is cancelled, also where its handler waits for something else."
  {:uses #{:sse :status}}
  [env]
  (run! #(expect-cancelled env {} %) [wire/reset!! wire/close!]))

(defcase streams-beyond-the-deadline-are-cancelled "4.6"
  "So is one that has outlived its deadline."
  {:uses #{:sse :status}}
  [env]
  (expect-cancelled env {:request-timeout-ms 500, :max-concurrent 1, :max-streams 1}
                    (fn [c]
                      (dotimes [_ 30] (expect-event c ":"))
                      (wire/reset!! c))))

(defcase failing-streams-are-cut "4.3"
  "A stream whose function throws is cut off."
  {:uses #{:sse}}
  [env]
  (let [handler (streaming env {} (fn [send!] (send! "first") (throw (ex-info "secret" {}))))]
    (expect-cut (scene/ask env (scene/serve env handler {}) (wire/get "/")))))

(defn- stopping
  "Starts the stop of a server with one open stream; returns {:c client, :gate gate, :stopping
  promise}."
  [env options]
  (let [{:keys [server gate]} (long-streams env (merge {:shutdown-timeout-ms 9000} options))
        c (open-stream env server)]
    {:server server, :c c, :gate gate, :stopping (scene/stop! env server)}))

(defcase streams-end-with-the-server "4.7"
  "When the server stops, an open stream ends as a whole response, and does not delay the stop."
  {:uses #{:sse}}
  [env]
  (let [{:keys [c stopping]} (stopping env {})]
    (expect= :last (wire/chunk c))
    (scene/within stopping "the end of stop!")))

(defcase streams-may-end-later "4.7"
  "For :drain-streams-ms a stream goes on when the server stops."
  {:uses #{:sse}}
  [env]
  (let [{:keys [c gate]} (stopping env {:drain-streams-ms 8000})]
    (expect= :silent (wire/after c 300))
    (deliver gate :open)
    (expect-event c "last")
    (expect= :last (wire/chunk c))))

(defcase streams-end-in-time "4.7"
  ":drain-streams-ms does not outlast :shutdown-timeout-ms."
  {:uses #{:sse}}
  [env]
  (let [{:keys [c stopping]} (stopping env {:drain-streams-ms 9000, :shutdown-timeout-ms 200})]
    (expect= :last (wire/chunk c))
    (scene/within stopping "the end of stop!")))

(defcase stubborn-streams-are-cut "4.7"
  "A stream whose function does not end when the server stops is cut, and does not keep stop! from
  returning."
  {:uses #{:sse}}
  [env]
  (let [gate (scene/gate env)
        feed (fn [send!] (send! "first") (scene/stubborn gate))
        server (scene/serve env
                            (scene/routes {"/stream" (streaming env {} feed)})
                            {:shutdown-timeout-ms 9000})
        c (open-stream env server)
        stopping (scene/stop! env server)]
    (expect= true (contains? #{:eof :reset} (wire/chunk c)))
    (scene/within stopping "the end of stop!")))

(defcase stuck-streams-are-cut "4.7"
  "A stream whose client takes nothing does not keep stop! from returning."
  {:uses #{:sse}}
  [env]
  (let [event (apply str (repeat 100000 "x"))
        begun (atom (System/nanoTime))
        feed (fn [send!] (while true (reset! begun (System/nanoTime)) (send! event)))
        server (scene/serve env (streaming env {} feed) {:shutdown-timeout-ms 9000})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (expect-status 200 (assoc (wire/head c) :ended :whole))
    (expect (scene/eventually 9000 #(< 300000000 (- (System/nanoTime) (long @begun))))
            "a write that blocks"
            :none)
    (scene/within (scene/stop! env server) "the end of stop!")))

(ns thrum.server.tck.scene
  "What a case is made of: a sentence, servers and clients that end with it, and expectations that
  say what was found.

  A case is a map: :id, :section, :sentence, :run, a function of the scene's env, and where given
  :needs, the capabilities it asks for; :refuses, the options that must throw at start where they
  are absent; :uses, the tools without which it is skipped; :alone?, that it counts what others
  would disturb."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)
   (java.net SocketException)
   (java.util.concurrent CountDownLatch TimeUnit)))

(set! *warn-on-reflection* true)

;; Cases

(defmacro defcase
  "Defines a case: (defcase name \"4.3\" \"One sentence.\" attributes? [env] body…), where
  attributes is a form of a map. The sentence may go over several lines."
  [name section sentence & more]
  (let [sentence (str/replace sentence #"\s+" " ")
        [attributes [[env] & body]]
        (if (vector? (first more)) [{} more] [(first more) (rest more)])]
    `(def ~(vary-meta name assoc ::case true :doc sentence)
       (merge {:id ~(keyword name), :section ~section, :sentence ~sentence, :run (fn [~env] ~@body)}
              ~attributes))))

(defn cases-in
  "Returns the cases of a namespace in the order of their definition."
  [ns-sym]
  (->> (vals (ns-publics ns-sym))
       (filter (comp ::case meta))
       (sort-by (comp :line meta))
       (mapv deref)))

;; Expectations

(defn fail
  "Ends the case: what was expected, and what was found."
  [expected found]
  (throw (ex-info (str "Expected " expected ", found " (pr-str found))
                  {::failed true, :expected expected, :found found})))

(defn expect
  "Fails unless ok?; returns it."
  [ok? expected found]
  (or ok? (fail expected found)))

(defn expect=
  "Fails unless the two are equal; context is shown beside."
  ([expected found] (expect= expected found nil))
  ([expected found context]
   (when-not (= expected found)
     (fail (pr-str expected) (if context [found context] found)))))

(defn expect-status
  "Fails unless the response is complete and has the status; returns it."
  [status answer]
  (expect= status (:status answer) answer)
  (expect (wire/complete? answer) "a complete response" answer)
  answer)

(defn expect-cut
  "Fails if a reader would take the response for a whole one; returns it."
  [{:keys [status] :as answer}]
  (expect (not (and status (wire/complete? answer))) "a response that is visibly cut off" answer)
  (expect (not= :silent (:ended answer)) "that the connection ends" answer)
  answer)

(defn expect-refusal
  "Fails unless the response has one of these statuses, or the connection has ended in its place;
  context is shown beside."
  ([statuses answer] (expect-refusal statuses answer nil))
  ([statuses {:keys [status ended] :as answer} context]
   (expect (or (statuses status) (#{:eof :reset} ended))
           (str "status " (str/join " or " statuses) ", or a closed connection")
           (if context [context answer] answer))))

(defn expect-closed
  "Fails unless the server closes the connection."
  [client]
  (expect (wire/closed? client) "that the server closes the connection" :open))

(defn skip
  "Ends the case as skipped."
  [why]
  (throw (ex-info why {::skipped true})))

;; Waiting

(defn eventually
  "Returns the first truthy value of (f), called every 2 ms for at most ms, those of a client's
  patience where none are given; its last, falsy one when there is none. From one call to the next
  at most a second counts, where the whole process stood still, but after three times ms it ends."
  ([f] (eventually wire/patience-ms f))
  ([ms f]
   (let [begun (System/nanoTime), most (* 1000000 (long ms))]
     (loop [left most, at begun]
       (or (f)
           (if (and (pos? left) (< (- at begun) (* 3 most)))
             (do
               (Thread/sleep 2)
               (let [now (System/nanoTime)]
                 (recur (- left (min 1000000000 (- now at))) now)))
             (f)))))))

(defn throughout
  "Calls (f) again and again for so many ms, at least once."
  [ms f]
  (let [end (+ (System/nanoTime) (* 1000000 (long ms)))]
    (loop []
      (f)
      (when (neg? (- (System/nanoTime) end)) (recur)))))

(defn within
  "Returns the value of a promise; fails when it does not come."
  [promise what]
  (let [value (deref promise wire/patience-ms ::late)]
    (if (= ::late value) (fail what :nothing) value)))

(defn elapsed-ms
  "Returns how long (f) took, in ms."
  [f]
  (let [start (System/nanoTime)]
    (f)
    (quot (- (System/nanoTime) start) 1000000)))

(defn thread
  "Starts a thread that calls f; returns it. It is no virtual one: what is tested may hold every
  carrier, as where clients that are slow keep them before JDK 24, and clients go on."
  ^Thread [f]
  (-> (Thread/ofPlatform) .daemon (.start f)))

(defn start
  "Calls f on a thread of its own, as thread starts it or start-thread does; returns a promise of
  {:value v} or {:thrown t}."
  ([f] (start thread f))
  ([start-thread f]
   (let [outcome (promise)]
     (start-thread #(deliver outcome (try {:value (f)} (catch Throwable t {:thrown t}))))
     outcome)))

;; The stage

(defn at-end
  "Has (f) called when the case has ended, last in, first out."
  [{:keys [endings]} f]
  (swap! endings conj f))

(defn serve
  "Starts a server that ends with the case; returns it."
  [{:keys [run-server options tools endings]} handler case-options]
  (let [server (run-server handler (merge options case-options))]
    ;; First among the endings, so called last: what its handlers wait for is over by then.
    (swap! endings #(into [(fn [] ((:stop tools) server))] %))
    server))

(defn tool
  "Calls one of the caller's functions."
  [env k & args]
  (apply (get-in env [:tools k]) args))

(defn stop!
  "Starts the stop of a server; returns a promise of its end, as start does."
  [env server]
  (start #(tool env :stop server)))

(defn port-of
  "Returns the server's port."
  [env server]
  (tool env :port server))

(defn client
  "Returns a client of the server that ends with the case."
  [env server]
  (let [client (wire/connect (port-of env server))]
    (at-end env #(wire/close! client))
    client))

(defn ask
  "Asks on a connection of its own; returns the response, {:ended :refused} where there is no
  connection to be had."
  [env server & parts]
  (if-let [c (try (client env server) (catch SocketException _ nil))]
    (try (apply wire/ask! c parts)
         (finally (wire/close! c)))
    {:ended :refused}))

(defn asked
  "As ask, on a thread of its own; returns a promise of {:value response}."
  [env server & parts]
  (start #(apply ask env server parts)))

(defn gate
  "Returns a promise that is delivered when the case has ended, so that no handler waits for ever."
  [env]
  (let [gate (promise)]
    (at-end env #(deliver gate :ended))
    gate))

(defn latch
  "Returns a latch that is open when the case has ended."
  [env n]
  (let [latch (CountDownLatch. n)]
    (at-end env #(dotimes [_ n] (.countDown latch)))
    latch))

(defn await-latch
  "Waits for a latch; returns whether it opened."
  [^CountDownLatch latch]
  (.await latch wire/patience-ms TimeUnit/MILLISECONDS))

(defn wait!
  "Waits for a gate; delivers to ended how that ended: :opened or :interrupted."
  [gate ended]
  (try (deref gate 30000 nil)
       (deliver ended :opened)
       (catch InterruptedException e (deliver ended :interrupted) (throw e))))

(defn stubborn
  "Waits for a gate and ignores interrupts; leaves none behind."
  [gate]
  (let [end (+ (System/nanoTime) 30000000000)]
    (while (and (not (realized? gate)) (neg? (- (System/nanoTime) end)))
      (try (deref gate 50 nil) (catch InterruptedException _ nil)))))

(defn end!
  "Ends what the case has started."
  [{:keys [endings]}]
  (let [fs @endings]
    (doseq [f (reverse fs)]
      (try (f) (catch Throwable _ nil)))))

;; Handlers

(defn ok
  "A handler: 200 and ok."
  ([_] {:status 200, :headers {"Content-Type" "text/plain"}, :body "ok"})
  ([request respond _] (respond (ok request))))

(defn started
  "Starts a server that answers ok, and ends with the case; returns it, or nil where that throws."
  [env case-options]
  (try (serve env ok case-options) (catch Exception _ nil)))

(defn expect-served-soon
  "Fails unless a request for the path is answered with 200 within a client's patience."
  ([env server] (expect-served-soon env server "/"))
  ([env server path]
   (expect (eventually #(= 200 (:status (ask env server (wire/get path))))) "200" :none)))

(defn answering
  "Returns a handler with this response."
  [response]
  (constantly (merge {:status 200, :headers {}} response)))

(defn answer-of
  "Returns what a client of its own gets from a server whose handler returns this response."
  [env response & parts]
  (apply ask env (serve env (answering response) {}) (or parts [(wire/get "/")])))

(defn routes
  "Returns a handler that picks another by :uri; ok where there is none."
  [by-uri]
  (fn [{:keys [uri] :as request}]
    ((get by-uri uri ok) request)))

(defn waiting
  "Starts a server with a request, of this text, a GET where none is given, that waits at /wait for
  :gate once its body is read. Returns {:server :client :gate :ended}, the last of how the wait
  ended; the response comes to :client."
  [env options & [text]]
  (let [gate (gate env), entered (promise), ended (promise)
        wait (fn [{:keys [^InputStream body] :as request}]
               (some-> body .readAllBytes)
               (deliver entered true)
               (wait! gate ended)
               (ok request))
        server (serve env (routes {"/wait" wait}) options)
        client (wire/send! (client env server) (or text (wire/get "/wait")))]
    (within entered "a call of the handler")
    {:server server, :client client, :gate gate, :ended ended}))

(defn received
  "Returns the request as a handler gets it, its body read to the end as :text."
  [env & parts]
  (let [seen (promise)
        handler (fn [{:keys [^InputStream body] :as request}]
                  (deliver seen (assoc request :text (some-> body .readAllBytes wire/text-of)))
                  (ok request))
        answer (apply ask env (serve env handler {}) parts)]
    (expect-status 200 answer)
    @seen))

(defn noting-uris
  "Returns [client uris]: a client of a server with this handler, and an atom with the :uri of each
  request that it was given."
  [env handler & [options]]
  (let [uris (atom [])
        noting (fn [request] (swap! uris conj (:uri request)) (handler request))]
    [(client env (serve env noting (or options {}))) uris]))

(defn shows
  "Whether the text of a response, headers and body, holds any of these words, in any case."
  [{:keys [headers body line]} words]
  (let [text (str/lower-case (str line headers body))]
    (seq (filter #(str/includes? text (str/lower-case %)) words))))

(def telltale
  "What an error page must not show."
  ["exception" "jetty" "http-kit" "thrum" "clojure" "java." "at thrum" "stack" "secret"])

(ns thrum.server.tck.deadline
  "Chapter: the deadline of a request, and the interrupt that it sends."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)))

(set! *warn-on-reflection* true)

(def ^:private limit {:request-timeout-ms 200})

(defn- waits
  "Returns a handler that waits for the gate, and delivers to seen how the wait ended."
  [gate seen]
  (fn [request]
    (scene/wait! gate seen)
    (scene/ok request)))

(defn- ignores
  "Returns a handler that waits for the gate and ignores interrupts."
  [gate]
  (fn [request] (scene/stubborn gate) (scene/ok request)))

(defcase late-handler-is-503 "4.5"
  "A handler that is not done at the deadline is answered with 503."
  [env]
  (let [server (scene/serve env (waits (scene/gate env) (promise)) limit)
        answer (promise)
        ms (scene/elapsed-ms #(deliver answer (scene/ask env server (wire/get "/"))))]
    (expect-status 503 @answer)
    (expect (<= 150 ms wire/patience-ms) "an answer after about 200 ms" ms)))

(defcase late-heads-have-no-body "4.5"
  "The 503 at the deadline has no body where it answers a HEAD, and the connection ends behind it,
  also while the handler still runs."
  [env]
  (doseq [handler [(waits (scene/gate env) (promise)) (ignores (scene/gate env))]
          :let [c (scene/client env (scene/serve env handler limit))]]
    (expect-status 503 (wire/ask! c (wire/head-of "HEAD" "/")))
    (expect-closed c)))

(defcase late-handlers-that-have-read-are-503 "4.5"
  "So is one that has read the request's body, to its end or in part."
  [env]
  (doseq [[length read!] [[3 #(.readAllBytes ^InputStream %)] [100 #(.readNBytes ^InputStream % 3)]]
          :let [gate (scene/gate env)
                handler (fn [{:keys [body] :as r}] (read! body) (deref gate 30000 nil) (scene/ok r))
                server (scene/serve env handler limit)
                head (wire/head-of "POST" "/" (str "Content-Length: " length))
                ;; On a busy machine the deadline may come before the body is read.
                late? #(= 503 (:status (scene/ask env server head "abc")))]]
    (expect (scene/eventually late?) "503" :none)))

(defcase late-handler-is-interrupted "4.6"
  "A handler that is not done at the deadline is interrupted."
  [env]
  (let [seen (promise)]
    (scene/ask env (scene/serve env (waits (scene/gate env) seen) limit) (wire/get "/"))
    (expect= :interrupted (scene/within seen "an interrupt"))))

(defcase deadline-does-not-wait-for-the-handler "4.5"
  "503 comes at the deadline even while the handler ignores its interrupt."
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env (ignores gate) limit)]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (expect (not (realized? gate)) "an answer before the handler has ended" :after)))

(defcase overdue-handler-keeps-its-permit "4.5"
  "The permit of a handler that ignores its interrupt is held until its thread ends."
  [env]
  (let [gate (scene/gate env)
        handler (scene/routes {"/late" (ignores gate)})
        server (scene/serve env handler (assoc limit :max-concurrent 1))]
    (expect-status 503 (scene/ask env server (wire/get "/late")))
    ;; More than once: a permit that is given back too early may be so a moment after the answer.
    (dotimes [_ 20] (expect-status 503 (scene/ask env server (wire/get "/"))))
    (deliver gate :open)
    (scene/expect-served-soon env server)))

(defcase overdue-handlers-are-counted "4.5"
  "The status counts handlers that are overdue, until they have ended, and requests that timed out."
  {:uses #{:status}}
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env (ignores gate) limit)
        counts #((juxt :overdue :timed-out) (scene/tool env :status server))]
    (scene/ask env server (wire/get "/"))
    (expect (scene/eventually #(= [1 1] (counts))) "1 overdue, 1 timed out" (counts))
    (deliver gate :open)
    (expect (scene/eventually #(= [0 1] (counts))) "0 overdue, 1 timed out" (counts))))

(defcase queue-time-counts "4.5"
  "The time in the queue counts: the deadline strikes a request that still waits."
  [env]
  (let [gate (scene/gate env)
        entered (promise)
        handler (fn [r] (deliver entered true) (scene/stubborn gate) (scene/ok r))
        server (scene/serve env
                            handler
                            (assoc limit :max-concurrent 1 :max-queued 1 :queue-timeout-ms 8000))]
    (scene/asked env server (wire/get "/"))
    (scene/within entered "a call of the handler")
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (expect (not (realized? gate)) "an answer at the deadline" :later)))

(defcase deadline-while-the-body-is-read "4.5"
  "At the deadline a request whose body is still being read ends with its connection."
  [env]
  (let [thrown (promise)
        handler (fn [{:keys [^InputStream body] :as r}]
                  (try (.readAllBytes body) (catch Throwable t (deliver thrown t) (throw t)))
                  (scene/ok r))
        c (scene/client env (scene/serve env handler limit))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 100") "ten bytes.")
    (let [answer (wire/response c)]
      (expect (not= :silent (:ended answer)) "an end" answer)
      (expect (contains? #{nil 408 503} (:status answer)) "no success" answer))
    (expect-closed c)
    (scene/within thrown "an exception from the body")))

(defcase deadline-after-commit-cuts "4.5"
  "At the deadline a response that has begun and is still being made is cut off, also where that
  does not react to its interrupt, or the request's body has not come."
  [env]
  (let [gate (scene/gate env)
        upload (wire/head-of "POST" "/" "Content-Length: 10")]
    (doseq [[request headers wait!] [[(wire/get "/") {} #(deref gate 30000 nil)]
                                     [(wire/get "/") {} #(scene/stubborn gate)]
                                     [upload {"Content-Length" "100"} #(scene/stubborn gate)]]]
      (let [body #(lazy-seq (cons "some" (lazy-seq (wait!) ["more"])))
            server (scene/serve env (fn [_] {:status 200, :headers headers, :body (body)}) limit)
            ;; On a busy machine the deadline may come before the head is sent.
            answers (repeatedly 10 #(scene/ask env server request))
            begun (first (filter #(= 200 (:status %)) answers))]
        (expect begun "a response that has begun" :none)
        (expect-cut begun)))))

(defcase deadline-cuts-what-the-client-does-not-take "4.5"
  "At the deadline a response that its client does not read is cut off, and its permit comes back."
  [env]
  (doseq [request [(wire/get "/large") (wire/head-of "POST" "/large" "Content-Length: 10")]]
    (let [entered (promise)
          answer {:status 200, :headers {}, :body (byte-array 30000000)}
          large (fn [_] (deliver entered true) answer)
          server (scene/serve env (scene/routes {"/large" large}) (assoc limit :max-concurrent 1))
          served? #(= 200 (:status (scene/ask env server (wire/get "/"))))]
      (wire/send! (scene/client env server) request)
      (scene/within entered "a call of the handler")
      (expect (scene/eventually served?) "a permit that comes back" request))))

(defn- served-for?
  "Whether the connection is served, and still so many ms later, and all the time between."
  [c ms]
  (let [served? #(= 200 (:status (wire/ask! c (wire/get "/"))))
        begun (served?)
        end (+ (System/nanoTime) (* 1000000 (long ms)))]
    (and begun
         (loop []
           (let [last-one (neg? (- end (System/nanoTime)))]
             (and (served?) (or last-one (recur))))))))

(defcase in-time-is-untouched "4.5"
  "A request that is done before its deadline is served, and so are the ones after it on the
  connection."
  [env]
  (let [server (scene/serve env scene/ok limit)]
    ;; On a busy machine a request may be late itself.
    (expect (scene/eventually #(served-for? (scene/client env server) 450))
            "200 for 450 ms"
            :none)))

(defcase queued-too-long-never-starts "4.5"
  "A request that reached its deadline in the queue never reaches the handler."
  [env]
  (let [gate (scene/gate env)
        uris (atom [])
        handler (fn [{:keys [uri], :as r}] (swap! uris conj uri) (scene/stubborn gate) (scene/ok r))
        server (scene/serve env
                            handler
                            (assoc limit :max-concurrent 1 :max-queued 1 :queue-timeout-ms 8000))]
    (scene/asked env server (wire/get "/first"))
    (expect (scene/eventually #(= ["/first"] @uris)) "a call of the handler" @uris)
    (expect-status 503 (scene/ask env server (wire/get "/queued")))
    (deliver gate :open)
    (scene/expect-served-soon env server "/last")
    (expect (not-any? #{"/queued"} @uris) "that /queued never starts" @uris)))

(defcase late-result-is-dropped "4.5"
  "What a handler returns after its deadline is never sent: the answer is one 503."
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env (ignores gate) limit)
        c (scene/client env server)]
    (expect-status 503 (wire/ask! c (wire/get "/")))
    (deliver gate :open)
    (expect (not= :data (wire/after c wire/quiet-ms)) "nothing more" :data)))

(defcase deadline-is-inherited "4.5"
  "What runs inside the handler sees the deadline."
  {:uses #{:remaining-ms}}
  [env]
  (let [seen (promise)
        handler (fn [r] (deliver seen [(scene/tool env :remaining-ms)]) (scene/ok r))]
    (scene/ask env (scene/serve env handler {:request-timeout-ms 3000}) (wire/get "/"))
    (let [[ms] (scene/within seen "a call of the handler")]
      (expect (and ms (<= 1 ms 3000)) "at most 3000 ms" ms))))

(defn- waiting-callback
  "Returns a function of any arguments that waits for the gate and delivers to seen how that
  ended."
  [env seen]
  (let [gate (scene/gate env)]
    (fn [& _] (scene/wait! gate seen))))

(defn- expect-late
  "A server with these options has a callback that waits: 503 is answered at the deadline, and the
  callback interrupted."
  [env seen handler options]
  (let [server (scene/serve env handler (merge limit options))]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (expect= :interrupted (scene/within seen "an interrupt"))))

(defcase error-handlers-are-inside-the-deadline "4.5"
  "An :error-handler that is not done at the deadline is interrupted, and 503 is answered."
  [env]
  (let [seen (promise)]
    (expect-late env
                 seen
                 (fn [_] (throw (ex-info "boom" {})))
                 {:error-handler (waiting-callback env seen)})))

(defcase observers-are-inside-the-deadline "4.5"
  "So is a :start observer, and the handler is not called any more."
  [env]
  (let [seen (promise)
        called (promise)]
    (expect-late env
                 seen
                 (fn [r] (deliver called true) (scene/ok r))
                 {:observer {:start (waiting-callback env seen)}})
    (expect= :never (deref called wire/quiet-ms :never))))

(defcase observers-do-not-delay-the-deadline "4.5"
  "A :timeout observer that blocks delays neither the 503 nor the interrupt."
  [env]
  (let [seen (promise), told (promise), gate (scene/gate env)
        observer {:timeout (fn [_] (deliver told true) (scene/stubborn gate))}
        server (scene/serve env (waits (scene/gate env) seen) (assoc limit :observer observer))]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (expect= :interrupted (scene/within seen "an interrupt"))
    (scene/within told "a call of the observer")
    (expect (not (realized? gate)) "an observer that still blocks" :ended)))

(defcase answered-requests-never-start "4.5"
  "A request that is answered as it gets its turn never reaches the handler, however close the
  race."
  [env]
  (let [gate (atom nil)
        uris (atom [])
        handler (fn [{:keys [uri], :as r}]
                  (swap! uris conj uri)
                  (when (= "/first" uri) (scene/stubborn @gate))
                  (scene/ok r))
        server (scene/serve
                 env
                 handler
                 {:request-timeout-ms 30, :max-concurrent 1, :max-queued 1, :queue-timeout-ms 8000})
        asks #(:status (scene/ask env server (wire/get %)))
        ;; On a busy machine the first one may be late itself.
        begun? (fn []
                 (reset! uris [])
                 (reset! gate (scene/gate env))
                 (let [first-one (scene/asked env server (wire/get "/first"))]
                   (scene/eventually #(or (seq @uris) (realized? first-one))))
                 (= ["/first"] @uris))]
    (dotimes [_ 20]
      (expect (scene/eventually begun?) "a call of the handler" @uris)
      (expect= 503 (asks "/queued"))
      (deliver @gate :open)
      (scene/expect-served-soon env server "/last")
      (expect (not-any? #{"/queued"} @uris) "that /queued never starts" @uris))))

;; The interrupt

(defn- notes-interrupt
  "Returns a handler that notes in leaked when it is entered interrupted; at /late it waits as long
  as the query says, in ms."
  [leaked]
  (fn [{:keys [uri query-string] :as r}]
    (when (Thread/interrupted) (swap! leaked conj uri))
    (when query-string
      (let [end (+ (System/nanoTime) (* 1000000 (long (parse-long query-string))))]
        (while (neg? (- (System/nanoTime) end)) (Thread/yield))))
    (scene/ok r)))

(defcase interrupts-never-reach-the-next-request "4.6"
  "An interrupt at the deadline never reaches the next request on the connection, however close the
  race."
  [env]
  (let [leaked (atom [])
        server (scene/serve env (notes-interrupt leaked) {:request-timeout-ms 20})
        c (atom (scene/client env server))]
    (doseq [ms [18 19 19 20 20 20 21 21 19 20 20 20 20 21 19 20]]
      (let [answer (wire/ask! @c (wire/get (str "/late?" ms)) (wire/get "/next"))
            next (when (wire/complete? answer) (wire/response @c))]
        (expect (contains? #{200 503 nil} (:status answer)) "200 or 503" answer)
        (expect (contains? #{200 503 nil} (:status next)) "200, 503 or a closed connection" next)
        (when-not (= 200 (:status next)) (reset! c (scene/client env server)))))
    (expect= [] @leaked)))

(defcase handlers-own-interrupt-does-not-leak "4.6"
  "A handler that leaves its thread interrupted is answered, and the next request on the connection
  is not interrupted."
  [env]
  (let [leaked (atom [])
        handler (fn [r] (when (Thread/interrupted) (swap! leaked conj (:uri r)))
                  (.interrupt (Thread/currentThread))
                  {:status 200, :headers {}, :body (str/join (repeat 10000 "x"))})
        c (scene/client env (scene/serve env handler {}))]
    (dotimes [_ 4] (expect-status 200 (wire/ask! c (wire/get "/"))))
    (expect= [] @leaked)))

(defcase handlers-own-interrupt-does-not-cut-a-stream "4.6"
  "A handler that leaves its thread interrupted still has its seq sent whole."
  [env]
  (let [handler (fn [_]
                  (.interrupt (Thread/currentThread))
                  {:status 200, :headers {}, :body (map str (range 10))})
        answer (scene/ask env (scene/serve env handler {}) (wire/get "/"))]
    (expect= "0123456789" (:body (expect-status 200 answer)))))

(defcase one-interrupt-a-request "4.6"
  "A handler is interrupted at most once."
  [env]
  (let [interrupts (atom 0)
        done (promise)
        wait #(try
                (Thread/sleep (long %))
                (catch InterruptedException _ (swap! interrupts inc)))
        server
        (scene/serve env (fn [r] (wait 3000) (wait 250) (deliver done true) (scene/ok r)) limit)]
    (scene/ask env server (wire/get "/"))
    (scene/within done "the handler's end")
    (expect= 1 @interrupts)))

(defcase interrupted-io-is-no-success "4.5"
  "A handler whose own I/O fails by the interrupt is still answered with 503."
  [env]
  (let [handler (fn [_]
                  (try
                    (Thread/sleep 4000)
                    (catch InterruptedException _ (throw (IOException. "interrupted")))))]
    (expect-status 503 (scene/ask env (scene/serve env handler limit) (wire/get "/")))))

;; What a handler starts belongs to its exchange

(defcase a-lazy-body-may-be-computed-by-tasks "4.6"
  "A lazy body that tasks of the handler compute is sent whole: they end after the last byte, not
  before."
  {:uses #{:pmap}}
  [env]
  (let [handler (fn [_] {:status 200, :headers {}, :body (scene/tool env :pmap 2 str (range 50))})
        answer (scene/ask env (scene/serve env handler {}) (wire/get "/"))]
    (expect= (str/join (range 50)) (:body (expect-status 200 answer)))))

(defcase tasks-end-with-their-exchange "4.6"
  "A task that the handler has started and left is interrupted when the exchange has ended."
  {:uses #{:pmap}}
  [env]
  (let [gate (scene/gate env), begun (promise), seen (promise)
        task (fn [i] (if (zero? (long i))
                       (deref begun 4000 nil)
                       (do (deliver begun true) (scene/wait! gate seen))))
        handler (fn [r] (first (scene/tool env :pmap 3 task (range 3))) (scene/ok r))]
    (expect-status 200 (scene/ask env (scene/serve env handler {}) (wire/get "/")))
    (expect= :interrupted (scene/within seen "an interrupt of the task"))))

;; Async handlers

(def ^:private async-limit (assoc limit :async? true))

(defcase async-late-is-503 "4.5"
  "An async handler that has not responded at the deadline is answered with 503."
  [env]
  (expect-status 503 (scene/ask env (scene/serve env (fn [_ _ _]) async-limit) (wire/get "/"))))

(defcase async-late-respond-is-ignored "4.5"
  "What an async handler responds after the deadline is ignored, and does not throw."
  [env]
  (let [responds (promise)
        server (scene/serve env (fn [_ respond _] (deliver responds respond)) async-limit)
        c (scene/client env server)]
    (expect-status 503 (wire/ask! c (wire/get "/")))
    (@responds {:status 200, :headers {}, :body "late"})
    (expect (not= :data (wire/after c wire/quiet-ms)) "nothing more" :data)))

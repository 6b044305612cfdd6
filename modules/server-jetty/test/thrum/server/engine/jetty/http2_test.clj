(ns thrum.server.engine.jetty.http2-test
  "HTTP/2 by Jetty, frame by frame: what ends one request leaves the others of its connection alone;
  floods end it."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.engine.jetty :as jetty]
   [thrum.server.engine.jetty.frames :as frames]
   [thrum.server.impl.options :as options]
   [thrum.server.spi :as engine]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.io IOException InputStream)
   (java.net URI)
   (java.net.http HttpClient HttpClient$Version HttpRequest HttpResponse HttpResponse$BodyHandlers)))

(set! *warn-on-reflection* true)

(def ^:dynamic *engine*
  "The engine that is tested; Tomcat's tests bind it."
  :jetty)

(use-fixtures :each leak/no-leaks)

(defn- serve
  [handler options]
  (server/run-server
    handler
    (merge {:engine *engine*, :port 0, :h2c? true, :stop-on-shutdown? false, :shutdown-timeout-ms 0}
           options)))

(defn- ok [_]
  {:status 200, :headers {}, :body "ok"})

(defmacro ^:private with-client
  "Evaluates body with a client of a server with this handler and these options."
  [[client handler options & [settings server]] & body]
  `(with-open [server# ^java.lang.AutoCloseable (serve ~handler ~options)]
     (let [~client (frames/connect (server/port server#) ~settings)
           ~(or server '_) server#]
       (try ~@body
            (finally (frames/close! ~client))))))

(defn- answer
  "Returns how the answer on a stream ends: its data as text, or the frame that broke it off."
  [client stream]
  (loop [text ""]
    (let [{:keys [kind flags payload] :as f} (frames/next-of client #{:headers :data :reset} stream)
          text (if (= :data kind) (str text (String. ^bytes payload)) text)]
      (cond
        (not (#{:headers :data} kind)) f
        (odd? flags) text
        :else (recur text)))))

(deftest prior-knowledge-is-answered
  (with-client [c ok {}]
    (frames/get! c 1 "/")
    (is (= "ok" (answer c 1)))))

(deftest websockets-over-http-2-are-not-offered
  (with-client [c ok {}]
    ;; SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441, 3): a browser would open them here.
    (let [settings (partition 6 (:payload (frames/next-of c #{:settings})))]
      (is (seq settings))
      (is (not-any? #{[8 1]} (map (juxt second last) settings))))))

(deftest an-upgrade-is-answered
  (with-open [^java.lang.AutoCloseable s (serve ok {})
              client (HttpClient/newHttpClient)]
    (let [^HttpResponse answer (.send client
                                      (-> (HttpRequest/newBuilder
                                            (URI. (str "http://127.0.0.1:" (server/port s) "/")))
                                          (.version HttpClient$Version/HTTP_2)
                                          (.build))
                                      (HttpResponse$BodyHandlers/ofString))]
      (is (= [HttpClient$Version/HTTP_2 "ok"] [(.version answer) (.body answer)])))))

(deftest http-2-without-tls-has-to-be-asked-for
  (with-client [c ok {:h2c? false}]
    ;; The connection may have been closed at the preface.
    (try (frames/get! c 1 "/") (catch java.io.IOException _))
    (is (not= "ok" (answer c 1)))))

(defn- failing-body
  [_]
  {:status 200
   :headers {}
   :body (lazy-seq (cons (apply str (repeat 20000 "x"))
                         (lazy-seq (throw (ex-info "half-way" {})))))})

(deftest a-body-that-fails-resets-its-stream-alone
  (with-client [c #(if (= "/fails" (:uri %)) (failing-body %) (ok %)) {}]
    (frames/get! c 1 "/fails")
    (is (= :reset (:kind (answer c 1))))
    (frames/get! c 3 "/")
    (is (= "ok" (answer c 3)))))

(deftest a-stream-that-is-reset-interrupts-its-handler-alone
  (let [entered (promise), outcome (promise), gate (promise)
        handler (fn [{:keys [uri] :as r}]
                  (when (= "/wait" uri)
                    (deliver entered true)
                    (try
                      (deliver outcome (deref gate 8000 :never))
                      (catch InterruptedException e (deliver outcome :interrupted) (throw e))))
                  (ok r))]
    (with-client [c handler {:interrupt-on-disconnect? true}]
      (frames/get! c 1 "/wait")
      (is (deref entered 5000 nil))
      (frames/reset!! c 1)
      (is (= :interrupted (deref outcome 5000 :nothing)))
      (frames/get! c 3 "/")
      (is (= "ok" (answer c 3))))))

(def ^:private no-window
  "SETTINGS_INITIAL_WINDOW_SIZE is 0: nothing may be sent on a stream."
  (byte-array [0 4 0 0 0 0]))

(defn- warm-up!
  "Has the server answer a first request, on stream 1, which may take longer than a deadline."
  [client]
  (frames/get! client 1 "/")
  (answer client 1))

(deftest a-deadline-during-a-write-leaves-the-other-streams-alone
  (with-client [c
                #(if (= "/big" (:uri %))
                   {:status 200, :headers {}, :body (apply str (repeat 100000 "x"))}
                   {:status 204, :headers {}}) {:request-timeout-ms 1000} no-window]
               (warm-up! c)
               (frames/get! c 3 "/big")
               (is (= :reset (:kind (answer c 3))))
               (frames/get! c 5 "/")
               (is (= "" (answer c 5)))))

(deftest a-deadline-during-a-read-leaves-the-other-streams-alone
  (with-client [c
                (fn [{:keys [uri ^InputStream body], :as r}]
                  (when (= "/upload" uri) (.readAllBytes body))
                  (ok r)) {:request-timeout-ms 1000}]
               (warm-up! c)
               (frames/frame! c :headers 4 3 (frames/head "POST" "/upload"))
               (frames/frame! c :data 0 3 (byte-array 10))
               (is (= :reset (:kind (answer c 3))))
               (frames/get! c 5 "/")
               (is (= "ok" (answer c 5)))))

;; The engine by itself: thrum.server would clear such an interrupt away.

(defn- send-text! [wire ^String text]
  (engine/send! wire 200 (object-array 0) (.getBytes text)))

(defmacro ^:private with-engine
  "Evaluates body with a client of the engine, which calls serve."
  [[client serve] & body]
  `(let [running#
         ((:start jetty/engine) (options/checked jetty/engine {:port 0, :h2c? true}) ~serve)]
     (try
       (let [~client (frames/connect (engine/port running#))]
         (try
           ~@body
           (finally
             (frames/close! ~client))))
       (finally
         (engine/stop! running#)))))

(defn- interrupted
  "Calls (f wire) on a thread that is interrupted, if the target is /interrupted; answers the rest."
  [f]
  (fn [wire]
    (if (= "/interrupted" (engine/target wire))
      (try (f wire) (catch IOException _ (engine/abort! wire)) (finally (Thread/interrupted)))
      (send-text! wire "ok"))))

(deftest a-thread-that-is-interrupted-writes-to-nobodys-harm
  (with-engine [c (interrupted (fn [wire]
                                 (.interrupt (Thread/currentThread))
                                 (send-text! wire "never")))]
    (frames/get! c 1 "/interrupted")
    (frames/next-of c #{:headers :reset} 1)
    (frames/get! c 3 "/")
    (is (= "ok" (answer c 3)))))

(def ^:private more-than-half-the-window
  "How many frames of 16 KiB make the server widen the window when they are read."
  20)

(deftest a-thread-that-is-interrupted-reads-to-nobodys-harm
  (let [gate (promise)]
    (with-engine [c (interrupted (fn [wire]
                                   (let [body (engine/body wire)]
                                     (deref gate 5000 nil)
                                     (.interrupt (Thread/currentThread))
                                     (.readAllBytes body))))]
      (is (= :settings (:kind (frames/next-of c #{:settings}))))
      (frames/frame! c :headers 4 1 (frames/head "POST" "/interrupted"))
      (dotimes [_ more-than-half-the-window] (frames/frame! c :data 0 1 (byte-array 16384)))
      ;; Answered when the server has got all that was sent before.
      (frames/get! c 3 "/")
      (is (= "ok" (answer c 3)))
      (deliver gate :open)
      (is (= :reset (:kind (answer c 1))))
      (frames/get! c 5 "/")
      (is (= "ok" (answer c 5))))))

(deftest a-body-that-is-cut-off-is-a-failure
  (let [entered (promise)
        read (promise)]
    (with-client [c
                  (fn [{:keys [^InputStream body]}]
                    (deliver entered (.read body))
                    (deliver read
                             (try
                               (alength (.readAllBytes body))
                               (catch java.io.IOException _ :failed)))
                    (ok nil)) {}]
                 (frames/frame! c :headers 4 1 (frames/head "POST" "/"))
                 (frames/frame! c :data 0 1 (byte-array 10))
                 (is (= 0 (deref entered 5000 nil)))
                 (frames/reset!! c 1)
                 (is (= :failed (deref read 5000 :nothing))))))

;; What is announced, and what comes

(def ^:private trailers
  "The block of a header that comes behind the body."
  (byte-array (concat [0 1] (.getBytes "a") [1] (.getBytes "b"))))

(deftest a-body-that-is-shorter-than-announced-is-not-taken-for-whole
  (let [read (atom [])
        handler (fn [{:keys [^InputStream body] :as r}]
                  (swap! read conj (alength (.readAllBytes body)))
                  (ok r))
        head (frames/head "POST" "/" "content-length" "10")]
    (with-client [c handler {}]
      (frames/frame! c :headers 5 1 head)
      (is (not= "ok" (answer c 1)) "it ends with its head"))
    (doseq [n [0 9 10]]
      (with-client [c handler {}]
        (frames/frame! c :headers 4 1 head)
        (when (pos? (long n)) (frames/frame! c :data 0 1 (byte-array n)))
        (frames/frame! c :headers 5 1 trailers)
        (is (= (= 10 n) (= "ok" (answer c 1))) (str n " bytes, and trailers"))))
    (is (= [10] @read))))

(def ^:private most-credit
  "A WINDOW_UPDATE: the second one is more than a window may have."
  [:window 0 (byte-array [0x7f -1 -1 -1])])

(defn- data
  "Of at least 1 KiB, or the last: smaller ones end the connection on Tomcat."
  [n end?]
  [:data (if end? 1 0) (byte-array n)])

(deftest a-body-that-breaks-the-protocol-ends-its-exchange-alone
  (doseq [[flaw sent] {"short" [(data 4000 true)]
                       "long" [(data 11000 false)]
                       "long in the end" [(data 4000 false) (data 7000 false)]
                       "short in the end" [(data 4000 false) (data 0 true)]
                       "a window beyond the bound" [most-credit most-credit]}]
    (let [begun (promise), read (promise), over (promise)
          handler (fn [{:keys [uri ^InputStream body] :as r}]
                    (when (= "/upload" uri)
                      (deliver begun true)
                      (deliver read
                               (try (alength (.readAllBytes body)) (catch IOException _ :cut))))
                    (ok r))
          end #(when (= "/upload" (:uri (:request %))) (deliver over true))]
      (with-client [c handler {:observer {:end end}}]
        (frames/frame! c :headers 4 1 (frames/head "POST" "/upload" "content-length" "10000"))
        (is (deref begun 5000 nil))
        (doseq [[kind flags payload] sent]
          (frames/frame! c kind flags 1 payload))
        (is (= :cut (deref read 5000 :waits)) flaw)
        (is (deref over 5000 nil) flaw)
        (frames/get! c 3 "/")
        (is (= "ok" (answer c 3)) flaw)))))

(deftest a-body-in-small-frames-is-read-and-its-connection-goes-on
  (with-client [c (fn [{:keys [body]}] {:status 200, :headers {}, :body (slurp body)}) {}]
    (doseq [stream [1 3]]
      (frames/frame! c :headers 4 stream (frames/head "POST" "/"))
      (dotimes [_ 100] (frames/frame! c :data 0 stream (.getBytes "x")))
      (frames/frame! c :data 1 stream (byte-array 0))
      (is (= (apply str (repeat 100 "x")) (answer c stream))))))

(deftest answers-before-the-body-has-come-leave-the-connection-to-the-others
  (let [gate (promise)]
    (with-client [c #(do (when (= "/slow" (:uri %)) (deref gate 5000 nil)) (ok %))
                  {:max-body-bytes 100}]
                 (frames/get! c 1 "/slow")
                 (doseq [stream (range 3 103 2)]
                   (frames/frame! c :headers 4 stream
                                  (frames/head "POST" "/" "content-length" "1000"))
                   (is (#{:headers :reset} (:kind (frames/next-of c #{:headers :reset} stream)))))
                 (deliver gate :open)
                 (is (= "ok" (answer c 1))))))

(deftest streams-beyond-the-bound-are-refused
  ;; A gate for each: an answer that is read past is lost.
  (let [gates {"/1" (promise), "/3" (promise)}]
    (with-client [c (fn [{:keys [uri], :as r}] (deref (gates uri) 5000 nil) (ok r))
                  {:engine-options {:h2-max-streams 2}}]
                 (doseq [stream [1 3 5]] (frames/get! c stream (str "/" stream)))
                 (is (= :reset (:kind (answer c 5))))
                 (deliver (gates "/1") :open)
                 (is (= "ok" (answer c 1)))
                 (deliver (gates "/3") :open)
                 (is (= "ok" (answer c 3))))))

(defn- turned-away?
  "Calls (f n) again and again, n counting up, until the server has ended the connection or sent
  GOAWAY."
  [client f]
  (let [[thread] (gate/start "flood"
                             #(try
                                (dotimes [n 20000] (f n))
                                (catch java.io.IOException _)))]
    (try
      (contains? #{:go-away :end} (:kind (frames/next-of client #{:go-away})))
      (finally
        (frames/close! client)
        (.join ^Thread thread 5000)))))

(deftest floods-end-the-connection-and-nothing-else
  (doseq [[flood f]
          {"resets" (fn [c n] (frames/get! c (inc (* 2 n)) "/") (frames/reset!! c (inc (* 2 n))))
           "settings" (fn [c _] (frames/frame! c :settings 0 0 (byte-array 0)))
           "pings" (fn [c _] (frames/frame! c :ping 0 0 (byte-array 8)))
           "continuations"
           (fn [c n] (frames/frame! c (if (zero? n) :headers :continuation) 0 1 (byte-array 0)))
           "headers without an end"
           (fn [c n]
             (frames/frame! c (if (zero? n) :headers :continuation) 0 1 (frames/head "GET" "/")))}]
    (with-client [c ok {} nil s]
                 (is (turned-away? c #(f c %)) flood)
                 (let [other (frames/connect (server/port s))]
                   (frames/get! other 1 "/")
                   (is (= "ok" (answer other 1)) flood)
                   (frames/close! other))
                 (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))) flood))))

(ns thrum.server.tck.controls
  "Broken servers, by name."
  (:require
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.tck.broken :as broken])
  (:import
   (java.io ByteArrayInputStream FilterInputStream IOException InputStream)
   (java.net URI URLDecoder)
   (java.util Locale)
   (java.util.concurrent LinkedBlockingQueue SynchronousQueue ThreadPoolExecutor TimeUnit)
   (java.util.concurrent.locks ReentrantLock)
   (javax.net.ssl SSLContext)))

(set! *warn-on-reflection* true)

;; Requests

(defn- header [f]
  (broken/request #(update % :headers f)))

(defn- after [^String s mark]
  (subs s (inc (long (or (str/last-index-of s mark) -1)))))

(defn- lower-by-locale [headers]
  (update-keys headers #(String/.toLowerCase (String/.toUpperCase % Locale/ROOT))))

(defn- masked [^InputStream in]
  (ByteArrayInputStream. (byte-array (map #(bit-and 127 (int %)) (.readAllBytes in)))))

(defn- at-most [n ^InputStream in]
  (ByteArrayInputStream. (.readNBytes in (int n))))

(def ^:private requests
  {:upper-case-methods (broken/request
                         #(update % :request-method (comp keyword str/upper-case name)))
   :unknown-methods-are-get
   (broken/request #(update % :request-method (fn [m] (if (#{:get :post :head} m) m :get))))
   :decodes-uris (broken/request
                   #(update % :uri (fn [uri] (URLDecoder/decode ^String uri "UTF-8"))))
   :replaces-bytes-beyond-ascii
   (broken/request #(update % :uri str/replace #"[^\x00-\x7f]" "?"))
   :merges-slashes (broken/request #(update % :uri str/replace #"/+" "/"))
   :resolves-dots
   (broken/request
     #(update % :uri (fn [uri] (if (re-find #"\.\." uri) (str (.normalize (URI. uri))) uri))))
   :keeps-absolute-forms (broken/request
                           #(cond-> % (= "/x/y" (:uri %)) (assoc :uri "http://localhost/x/y")))
   :leaves-paths-empty (broken/request
                         #(cond-> % (= ["/" "q=1"] [(:uri %) (:query-string %)]) (assoc :uri "")))
   :decodes-queries (broken/request #(update %
                                             :query-string
                                             (fn [q]
                                               (some-> ^String q
                                                       (URLDecoder/decode "UTF-8")))))
   :invents-queries (broken/request #(update % :query-string str))
   :lower-cases-by-locale (header lower-by-locale)
   :lower-cases-values (header #(update-vals % str/lower-case))
   :last-header-wins (header #(update-vals % (fn [v] (after v ","))))
   :joins-cookies-with-commas (header #(cond-> %
                                         (% "cookie") (update "cookie" str/replace ";" ",")))
   :keeps-blanks (header #(update-vals % (fn [v] (str v " "))))
   :drops-empty-headers (header #(into {} (remove (comp empty? val)) %))
   :drops-headers (header #(into {} (take 50) %))
   :tells-the-peer-with-its-port (broken/request
                                   #(update % :remote-addr (fn [a] (str "/" a ":4711"))))
   :believes-forwarded-for
   (broken/request #(assoc % :remote-addr (get-in % [:headers "x-forwarded-for"] "127.0.0.1")))
   :names-the-host-with-its-port (broken/request
                                   #(assoc % :server-name (get-in % [:headers "host"])))
   :ports-are-strings (broken/request #(update % :server-port str))
   :believes-forwarded-proto
   (broken/request #(assoc % :scheme (keyword (get-in % [:headers "x-forwarded-proto"] "http"))))
   :short-protocols (broken/request #(update % :protocol str/replace "HTTP/" ""))
   :certificates-everywhere (broken/request #(assoc % :ssl-client-cert :certificate))
   :no-empty-bodies (broken/request #(cond-> % (= :get (:request-method %)) (dissoc :body)))
   :no-bodies-on-1-0 (broken/request #(cond-> %
                                        (= "HTTP/1.0" (:protocol %))
                                        (assoc :body (InputStream/nullInputStream))))
   :seven-bit-bodies (broken/request #(update % :body masked))
   :short-bodies (broken/request #(update % :body (fn [in] (at-most 10000 in))))
   :no-content-keys (broken/request #(dissoc % :content-type :content-length :character-encoding))
   :lengths-are-ints (broken/request #(update %
                                              :content-length
                                              (fn [n]
                                                (some-> n
                                                        unchecked-int))))
   :vars-are-read-once (broken/handler #(if (var? %) @% %))})

;; Responses

(defn- body [pred f]
  (broken/response #(cond-> % (pred (:body %)) (update :body f))))

(defn- stream? [x] (instance? InputStream x))

(defn- headers-of [f]
  (broken/response #(cond-> % (map? (:headers %)) (update :headers f))))

(defn- open-stream [in]
  (proxy [FilterInputStream] [in] (close [])))

(defn- swallowing-stream
  [^InputStream in]
  (let [read1 #(try
                 (.read in)
                 (catch Exception _ -1))]
    (proxy [InputStream] []
      (read ([] (read1))
            ([bs]
             (let [b (int (read1))]
               (if (neg? b)
                 -1
                 (do
                   (aset ^bytes bs 0 (unchecked-byte b))
                   1))))
            ([bs off _]
             (let [b (int (read1))]
               (if (neg? b)
                 -1
                 (do
                   (aset ^bytes bs (int off) (unchecked-byte b))
                   1))))))))

(defn- swallowing-seq [s]
  (lazy-seq (when-let [s (try (seq s) (catch Exception _ nil))]
              (cons (first s) (swallowing-seq (rest s))))))

(defn- swallow-body
  [{:keys [body], :as response}]
  (cond (stream? body) (-> response
                           (assoc :body (swallowing-stream body))
                           (update :headers dissoc "Content-Length"))
        (seq? body) (update response :body swallowing-seq)
        :else response))

(defn- valid?
  [{:keys [status headers body], :as response}]
  (and (map? response)
       (int? status)
       (<= 100 status 599)
       (not-any? keyword? (vals headers))
       (not (map? body))
       (not (instance? java.io.File body))))

(defn- mend [response]
  (if (valid? response) response {:status 200, :headers {}, :body "mended"}))

(defn- telling
  [h]
  (fn ([request]
       (try
         (h request)
         (catch Throwable t {:status 500, :headers {}, :body (ex-message t)})))
      ([request respond raise] (h request respond raise))))

(defn- mending-what-has-no-message [h]
  (fn [request]
    (try
      (h request)
      (catch Throwable t
        (if (try (ex-message t) (catch Throwable _ nil)) (throw t) (mend nil))))))

(defn- open-when-silent [{:keys [request-method]} {:keys [status] :as response}]
  (cond-> response (or (= :head request-method) (= 204 status)) (dissoc :body)))

(defn- empty-when-silent [{:keys [request-method]} {:keys [body] :as response}]
  (cond-> response
    (and (= :head request-method) (seq? body)) (assoc-in [:headers "Content-Length"] "0")))

(defn- realise-elsewhere
  [{:keys [body], :as response}]
  (cond (stream? body)
        (assoc response :body (ByteArrayInputStream. @(future (.readAllBytes ^InputStream body))))
        (seq? body) (assoc response :body (lazy-seq @(future (doall body))))
        :else response))

(def ^:private responses
  {:odd-statuses-are-200 (broken/response #(cond-> % (= 299 (:status %)) (assoc :status 200)))
   :single-blanks (headers-of #(update-vals %
                                            (fn [v] (if (string? v) (str/replace v "  " " ") v))))
   :first-value-only (headers-of #(update-vals % (fn [v] (if (sequential? v) (first v) v))))
   :strings-are-latin-1 (body string? #(String/.getBytes % "ISO-8859-1"))
   :strings-are-utf-8 (body string? #(String/.getBytes % "UTF-8"))
   :bytes-are-seven-bit (body bytes? #(byte-array (map (fn [b] (bit-and 127 (int b))) %)))
   :first-element-only (body seq? #(take 1 %))
   :drops-long-headers (headers-of #(into {} (filter (fn [[_ v]] (< (count v) 900))) %))
   :no-empty-seqs (body seq? #(or (seq %) "empty"))
   :seqs-are-joined (body seq? str/join)
   :files-are-cut (body #(instance? java.io.File %)
                        #(at-most 1000 (java.io.FileInputStream. ^java.io.File %)))
   :streams-stay-open (body stream? open-stream)
   :nil-is-a-word (body nil? (constantly "nil"))
   :forgets-lengths (headers-of #(dissoc % "Content-Length"))
   :strings-are-streamed (body string? list)
   :forgets-silent-bodies (broken/exchange open-when-silent)
   :heads-are-of-nothing (broken/exchange empty-when-silent)
   :forgets-connection-close (headers-of #(dissoc % "Connection"))
   :names-itself (headers-of #(assoc % "Server" "Thrum/1.0"))
   :drops-server (headers-of #(dissoc % "Server"))
   :swallows-body-failures (broken/response swallow-body)
   :mends-responses (broken/handler #(comp mend (telling %)))
   :mends-what-has-no-message (broken/handler mending-what-has-no-message)
   :tells-what-was-thrown (broken/handler telling)
   :bodies-elsewhere (broken/response realise-elsewhere)
   :ring-bodies-are-printed (body #(re-find #"Written" (str (class %))) str)})

;; On the wire

(defn- says [pattern replacement]
  (broken/wire identity #(str/replace % pattern replacement)))

(def ^:private twice
  #(str % "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))

(defn- hangs-up-after
  "Thrum's server behind a proxy that answers nothing which comes later than ms after the
  connection's first bytes."
  [ms]
  (let [start (atom {})]
    (broken/wire
      identity
      (fn [text]
        (let [now (System/nanoTime)
              first-time (get (swap! start update (Thread/currentThread) #(or % now))
                              (Thread/currentThread))]
          (when (< (* 1000000 (long ms)) (- now (long first-time)))
            (throw (IOException. "hung up")))
          text)))))

(defn- cuts-after
  "Thrum's server behind a proxy that cuts a connection after so many bytes of responses."
  [n]
  (let [sent (atom {})]
    (broken/wire
      identity
      (fn [text]
        (let [thread (Thread/currentThread)
              all (get (swap! sent update thread (fnil + 0) (count text)) thread)]
          (when (< (long n) (long all)) (throw (IOException. "cut")))
          text)))))

(def ^:private wires
  {:answers-twice (broken/wire identity twice)
   :cuts-long-responses (cuts-after 100000)
   :continues-what-it-refuses
   (says #"HTTP/1.1 (413|503)" "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 $1")
   :continues-only
   (broken/wire #(str/replace % #"(\r\n\r\n)(abc|3\r\nabc\r\n0\r\n\r\n)$" "$1") identity)
   :keeps-draining-connections (says #"(?i)connection: close" "X-Was: close")
   :continues-within-responses (says "first" "HTTP/1.1 100 Continue\r\n\r\nfirst")
   :sends-bodies-with-503 (says #"(?s)(HTTP/1.1 503.*\r\n\r\n)$" "$1service unavailable")
   :no-retry-after (says #"(?i)retry-after" "X-Was")
   :names-its-product (says #"(HTTP/1.1 [45].*\r\n)" "$1Server: jetty\r\n")
   :hangs-up (hangs-up-after 250)
   :hangs-up-on-half-closed (broken/wire #(if (= "" %) (throw (IOException. "half closed")) %)
                                         identity)
   :reads-once (broken/wire #(if (str/includes? % "\r\n\r\n") % "") identity)
   :knows-no-capitals (broken/wire #(str/replace % ": Chunked" ": gzip") identity)
   :trailers-are-headers (broken/wire #(str/replace %
                                                    #"(?s)Host: localhost(.*)\r\nHost: elsewhere"
                                                    "Host: elsewhere$1\r\nX: y")
                                      identity)
   :knows-no-empty-lines (broken/wire #(str/replace % #"^[\r\n]+" " ") identity)
   :knows-no-zeros (broken/wire #(str/replace % "\r\n0003" "\r\nz003") identity)
   :knows-few-spellings (broken/wire #(str/replace % #"cONTENT|tRANSFER|hOST" "X-Odd") identity)
   :knows-no-extensions (broken/wire #(str/replace % ";a=b" "x") identity)})

(defn- early-end [{:keys [body], :as response}]
  (cond-> response
    (stream? body) (assoc :body (with-open [^InputStream in body] (at-most 100000 in)))))

(def ^:private naives
  (into {:naive (broken/naive)
         :streams-end-early (update (broken/naive)
                                    :run-server
                                    (fn [run] (fn [handler options]
                                                (run (comp early-end handler) options))))
         :knows-no-framing (broken/naive :framing-is-ours)
         :naive-folded-headers (broken/naive :no-fold :coding-is-chunked)
         :naive-any-coding (broken/naive :one-coding :coding-is-chunked)}
        (for [rule [:request-line :has-colon :no-blank-before-colon :no-nul :no-cr :no-control
                    :has-host :host-is-a-host :no-connect :one-host :host-is-authority
                    :length-or-coding :one-length :length-is-digits :coding-is-chunked
                    :no-coding-on-1-0 :cut-body-throws :chunk-size :wide-chunks :chunk-end :trailers
                    :continue :chunks-on-1-0 :head-is-silent :no-content-is-silent :closes
                    :skips-unread-body :one-at-a-time :one-thread-each]]
          [(keyword (str "naive-" (name rule))) (broken/naive rule)])))

;; Bounds, deadlines, callbacks

(defn- limited-by
  "A server that lets (f calls) decide, by how often it was called, whether a request is answered
  with 503."
  [f]
  (broken/handler
    (fn [h]
      (let [calls (atom 0)]
        (if (fn? h)
          (fn ([r] (if (f (swap! calls inc)) {:status 503, :headers {}} (h r)))
              ([r respond raise]
               (if (f (swap! calls inc)) (respond {:status 503, :headers {}}) (h r respond raise))))
          h)))))

(defn- new-threads
  "Returns a pool of as many platform threads as there are calls, none of which is there already:
  those of futures may be, and last for a minute."
  ^ThreadPoolExecutor []
  (ThreadPoolExecutor. 0 Integer/MAX_VALUE 5 TimeUnit/SECONDS (SynchronousQueue.)))

(defn- elsewhere [f]
  (let [pool (new-threads)]
    (fn [& args] (.get (.submit pool ^Callable #(apply f args))))))

(defn- one-thread
  "Returns a pool of one virtual thread, which is there already."
  ^ThreadPoolExecutor []
  (let [factory (.factory (Thread/ofVirtual))]
    (doto (ThreadPoolExecutor. 1 1 0 TimeUnit/SECONDS (LinkedBlockingQueue.) factory)
      (.prestartAllCoreThreads))))

(defn- reusing-a-thread
  "A server that has all requests, and what is called for them, on one thread, which it has made
  when it was started."
  []
  {:run-server (fn [h options]
                 (let [pool (one-thread)
                       on-it (fn [f] (fn [& args] (.get (.submit pool ^Callable #(apply f args)))))
                       heard #(cond-> %
                                (:ring.websocket/listener %)
                                (update :ring.websocket/listener update-vals on-it))]
                   (server/run-server
                     (comp heard (on-it h))
                     (cond-> options (:observer options) (update :observer update-vals on-it)))))})

(defn- interrupted-first [h]
  (fn [request] (.interrupt (Thread/currentThread)) (h request)))

(defn- interrupted-again [h]
  (fn [request]
    (let [thread (Thread/currentThread), done (promise)]
      (Thread/startVirtualThread #(when-not (deref done 330 nil) (.interrupt thread)))
      (try (h request) (finally (deliver done true))))))

(defn- observing-on-the-handlers-thread
  "A server whose :timeout observer is called on the thread that its handler was interrupted on."
  []
  {:run-server (fn [h options]
                 (let [observe (get-in options [:observer :timeout])]
                   (server/run-server
                     (fn [r] (try (h r) (catch InterruptedException e (observe {}) (throw e))))
                     (dissoc options :observer))))})

(defn- starting-what-it-answered
  "A server that lets requests wait for their turn, one at a time, beyond their deadline."
  []
  {:run-server (fn [h options]
                 (let [turn (ReentrantLock. true)]
                   (server/run-server
                     (fn [r] (.lock turn) (try (h r) (finally (.unlock turn))))
                     (dissoc options :max-concurrent :max-queued :queue-timeout-ms))))})

(defn- failing-when-observed
  "A server that answers 500 once its observer has thrown."
  []
  {:run-server (fn [h {:keys [observer], :as options}]
                 (let [thrown (atom false)
                       noting (fn [f]
                                #(try
                                   (f %)
                                   (catch Exception e (reset! thrown true) (throw e))))]
                   (server/run-server (fn [r] (if @thrown {:status 500, :headers {}} (h r)))
                                      (cond-> options
                                        observer (update :observer update-vals noting)))))})

(defn- observing [f]
  (broken/callbacks (fn [g] (fn [& args] (apply g (map #(if (map? %) (f %) %) args))))))

(defn- lenient
  "A server that starts with any options."
  [h options]
  (try
    (server/run-server h options)
    (catch Exception _
      (server/run-server (fn [_] {:status 200, :headers {}, :body "lenient"}) {:port 0}))))

(def ^:private bounds
  (into {:allows-one (broken/setting :max-concurrent 1)
         :counts-failures (limited-by #(< 1 (long %)))
         :tiny-headers (broken/setting :max-header-bytes 1024)
         :tiny-bodies (broken/setting :max-body-bytes 99)
         :elsewhere (broken/handler elsewhere)
         :callbacks-elsewhere (broken/callbacks elsewhere)
         :interrupted-first (broken/handler interrupted-first)
         :interrupted-responses-fail (broken/response #(if (.isInterrupted (Thread/currentThread))
                                                         (throw (InterruptedException.))
                                                         %))
         :scopes-end-early (broken/handler (fn [h] (fn [r] (t/with-scope [_] (h r)))))
         :interrupted-again (broken/handler interrupted-again)
         :reuses-a-thread (reusing-a-thread)
         :bound-handlers (broken/handler (fn [h] (fn [r] (binding [*print-length* 1] (h r)))))
         :waits-for-bodies (broken/request #(do (.readAllBytes ^InputStream (:body %)) %))
         :keeps-permits-of-pipelines (limited-by #(< 1 (long %)))
         :fails-when-observed (failing-when-observed)
         :observes-on-the-handlers-thread (observing-on-the-handlers-thread)
         :starts-what-it-answered (starting-what-it-answered)
         :observes-garbage (observing #(-> %
                                           (assoc-in [:request :uri] "/another")
                                           (dissoc :status :bytes :throwable)))
         :observes-no-start (broken/options #(update % :observer dissoc :start))
         :lenient {:run-server lenient}
         :overload-is-503 (broken/setting :on-overload 503)
         :leaks-from-overload (broken/callbacks
                                (fn [f]
                                  (fn [& args]
                                    (try
                                      (apply f args)
                                      (catch Exception e {:status 500, :body (ex-message e)})))))
         :slow-shutdown (broken/options #(assoc % :shutdown-timeout-ms 9000))
         :no-grace (broken/options #(assoc % :min-bytes-per-second 1000000000 :rate-grace-ms 1))
         :streams-hold-the-stop (broken/options
                                  #(assoc % :drain-streams-ms 9000 :shutdown-timeout-ms 9000))
         :fast-shutdown (broken/options #(assoc % :shutdown-timeout-ms 1))}
        (for [k [:max-concurrent :max-queued :max-body-bytes :max-header-bytes :header-timeout-ms
                 :max-streams :request-timeout-ms :drain-delay-ms :drain-streams-ms :async?
                 :trusted-proxies :forwarded-headers :request-id? :health :min-bytes-per-second]]
          [(keyword (str "no-" (name k))) (broken/without k)])))

;; Async handlers

(defn- async [f]
  (broken/handler (fn [h] (fn ([r] (h r)) ([r respond raise] (f h r respond raise))))))

(defn- once-only [respond]
  (let [done (atom false)]
    #(if (compare-and-set! done false true) (respond %) (throw (IllegalStateException. "twice")))))

(defn- on-this-thread
  "Returns the function that calls f on the calling thread, and does nothing on another."
  [f]
  (let [thread (Thread/currentThread)]
    #(when (identical? thread (Thread/currentThread)) (f %))))

(def ^:private asyncs
  {:respond-throws (async (fn [h r respond raise] (h r (once-only respond) raise)))
   :respond-throws-on-garbage (async (fn [h r respond raise]
                                       (h r
                                          #(do
                                             (respond %)
                                             (long (:status %)))
                                          raise)))
   :throwing-wins (async (fn [h r respond raise]
                           (let [given (atom nil)]
                             (h r (comp (on-this-thread #(reset! given %)) vector) raise)
                             (when @given (respond (first @given))))))
   :last-wins (async (fn [h r respond raise]
                       (let [end (atom nil)
                             note! (on-this-thread #(reset! end %))]
                         (h r #(note! [respond %]) #(note! [raise %]))
                         (when-let [[f x] @end] (f x)))))
   :ignores-raise (async (fn [h r respond _]
                           (h r respond (fn [_] (respond {:status 200, :headers {}})))))
   :waits-for-respond (async (fn [h r respond raise]
                               (let [done (promise)]
                                 (h r
                                    #(do
                                       (respond %)
                                       (deliver done true))
                                    raise)
                                 (deref done 9000 nil))))
   :async-mends (async (fn [h r respond raise]
                         (try
                           (h r (comp respond mend) raise)
                           (catch Exception _ (respond (mend nil))))))
   :reads-before (async
                   (fn [h r respond raise]
                     (h (assoc r :body (ByteArrayInputStream. (byte-array 0))) respond raise)))})

;; The functions beside the server

(defn- naive-sse
  [_ f]
  (let [events (atom [])]
    (f events)
    {:status 200
     :headers {"Content-Type" "text/event-stream"}
     :body (map (fn [{:keys [event id data], :as e}]
                  (if (map? e) (str "event: " event "\nid: " id "\ndata: " data "\n\n") (str e)))
                @events)}))

(def ^:private stopped (atom {}))

(defn- stop-once [s]
  (if (get (first (swap-vals! stopped assoc s true)) s)
    (throw (IllegalStateException. "stopped already"))
    (server/stop! s)))

(defn- unheard
  "A stream whose function runs where no interrupt reaches it."
  [options f]
  (server/sse options
              (fn [events]
                (let [outcome (promise)]
                  (Thread/startVirtualThread #(deliver outcome
                                                       (try
                                                         (f events)
                                                         (catch Throwable t t))))
                  (while (not (realized? outcome))
                         (try
                           (deref outcome 50 nil)
                           (catch InterruptedException _ nil)))))))

(defn- naive-log [^java.io.Writer out & _]
  {:end (fn [{{:keys [request-method uri query-string headers]} :request}]
          (.write out (str (name request-method) " " uri " ?" query-string headers "\n")))})

(defn- swallowing-send [to x]
  (try
    (server/send! to x)
    (catch IOException _ nil)))

(def ^:private tools
  {:stop-does-nothing (broken/tools {:stop (fn [_])})
   :stop-throws-twice (broken/tools {:stop stop-once})
   :stop-joins (broken/tools {:stop (fn [s] (server/stop! s) (server/join s)), :pmap t/pmap})
   :always-ready (broken/tools {:ready? (constantly true)})
   :counts-nothing (broken/tools {:status (constantly {:state :running, :in-flight 0, :shed 0})})
   :no-port (broken/tools {:port (constantly 0)})
   :naive-events (broken/tools {:sse naive-sse, :send! #(swap! %1 conj %2)})
   :naive-log (broken/tools {:access-log naive-log})
   :unheard-streams (broken/tools {:sse unheard})
   :no-heartbeat (broken/tools {:sse (fn [_ f] (server/sse f))})
   :tasks-are-lazy (broken/tools {:pmap (fn [_ f coll] (map f coll))})
   :send-swallows (broken/tools {:send! swallowing-send})
   :knows-no-deadline (broken/tools {:remaining-ms (constantly nil)})})

;; What the JDK's engine has not

(defn- listener [f]
  (broken/response #(cond-> % (:ring.websocket/listener %) (update :ring.websocket/listener f))))

(defn- heard [k f]
  (listener #(cond-> % (k %) (update k f))))

(defn- not-websocket [{:keys [headers]} response]
  (if (and (:ring.websocket/listener response) (not= "13" (get headers "sec-websocket-version")))
    {:status 200, :headers {}, :body "taken for granted"}
    response))

(defn- frames [from to]
  (broken/wire #(str/replace % from to) identity))

(def ^:private websockets
  {:ws-wrong-accept (says #"(?i)(sec-websocket-accept: )...." "$1evil")
   :ws-changes-text (heard :on-message (fn [f] #(f %1 (if (string? %2) (str %2 "!") %2))))
   :ws-bytes-are-text (heard :on-message (fn [f] #(f %1 (if (string? %2) %2 "text"))))
   :ws-no-pongs (listener #(assoc % :on-ping (fn [_ _])))
   :ws-late-pongs (broken/tools {:pong! (fn [ws data]
                                          (future (Thread/sleep 50) (server/pong! ws data)))})
   :ws-closes-twice (heard :on-close
                           (fn [f]
                             #(do
                                (f %1 %2 %3)
                                (f %1 %2 %3))))
   :ws-closes-with-1000 (broken/tools {:close! (fn [ws _ _] (server/close! ws))})
   :ws-checks-nothing (broken/tools {:pong! (fn [ws data]
                                              (when (< (count data) 126) (server/pong! ws data)))})
   :ws-loses-messages (broken/tools {:send! (fn [ws message]
                                              (when-not (str/starts-with? message "a")
                                                (server/send! ws message)))})
   :ws-any-size (broken/without :ws-max-message-bytes)
   :ws-masks-frames (frames "\u0081\u0005hello" "\u0081\u0085\u0000\u0000\u0000\u0000hello")
   :ws-mends-text (frames "\u00c3(" "ok")
   :ws-any-origin (broken/options #(assoc % :ws-origins :any))
   :ws-needs-no-handshake (broken/exchange not-websocket)
   :ws-forgets-the-protocol (broken/response #(dissoc % :ring.websocket/protocol))
   :ws-send-swallows (broken/tools {:send! swallowing-send, :open? (constantly true)})
   :ws-calls-elsewhere (listener #(update-vals % elsewhere))
   :ws-calls-all-at-once (heard :on-message
                                (fn [f] (fn [ws m] (Thread/startVirtualThread #(f ws m)))))
   :ws-no-max-streams (broken/without :max-streams)
   :ws-hangs-up (hangs-up-after 150)
   :ws-stop-does-nothing (broken/tools {:stop (fn [_])})
   :ws-holds-the-stop (broken/options #(assoc % :drain-streams-ms 9000 :shutdown-timeout-ms 9000))
   :ws-mends-responses (broken/response #(cond-> % (= 401 (:status %)) (assoc :status 200)))})

(def ^:private disconnects
  {:no-idle-timeout-ms (broken/without :idle-timeout-ms)
   :no-interrupt-on-disconnect (broken/without :interrupt-on-disconnect?)
   :always-interrupts (broken/options #(assoc % :interrupt-on-disconnect? true))
   :drops-what-is-pipelined (broken/wire #(if (str/includes? % "/second") "" %) identity)})

(defn- gone-after
  "Returns a function of a server: its TLS port, at the first n calls, then one that is closed."
  [n]
  (let [calls (atom {})]
    (fn [s]
      (if (<= (long (get (swap! calls update s (fnil inc 0)) s)) (long n)) (server/ssl-port s) 1))))

(def ^:private secured
  {:tls-is-http (broken/request #(assoc % :scheme :http))
   :tls-lenient {:run-server lenient}
   :tls-knows-names (broken/options #(assoc % :engine-options {:sni-host-check? true}))
   :tls-dies-of-garbage (broken/tools {:ssl-port (gone-after 3)})
   :tls-another-context
   (broken/options #(cond-> % (:ssl-context %) (assoc :ssl-context (SSLContext/getDefault))))
   :tls-not-alone (broken/options #(cond-> % (contains? % :port) (update :port (fnil identity 0))))
   :tls-swallows-body-failures (broken/response swallow-body)
   :tls-certificates-are-lists (broken/request #(update % :ssl-client-cert list))
   :tls-no-header-timeout-ms (broken/without :header-timeout-ms)
   :tls-needs-none (broken/setting :client-auth :none)
   :tls-needs-all (broken/setting :client-auth :need)})

(defn- cut-at-a-reset
  [text]
  (if (re-find #"\u0000\u0000\u0004\u0003\u0000" text)
    (throw (IOException. "a stream was reset"))
    text))

(def ^:private no-error
  "A RST_STREAM that is no fault of the client's."
  #"(?s)(\u0000\u0000\u0004\u0003\u0000....)\u0000\u0000\u0000\u0000")

(defn- cancel-early
  [text]
  (str/replace text no-error "$1\u0000\u0000\u0000\u0008"))

(defn- reset-at-the-end
  "Returns the frames with a reset behind the end of stream 1."
  [text]
  (str/replace text #"\x00\x01\x00\x00\x00\x01ok"
               "$0\u0000\u0000\u0004\u0003\u0000\u0000\u0000\u0000\u0001\u0000\u0000\u0000\u0000"))

(defn- cut-at-a-length
  [text]
  (if (str/includes? text "content-length")
    (throw (IOException. "a request had a length"))
    text))

(def ^:private second-version
  {:h2-cuts-connections (broken/wire identity cut-at-a-reset)
   :h2-cuts-at-a-flaw (broken/wire cut-at-a-length identity)
   :h2-cancels (broken/wire identity cancel-early)
   :h2-stops-whole-bodies (broken/wire identity reset-at-the-end)
   :h2-cleartext-never (broken/setting :h2c? false)
   :h2-never (broken/setting :h2? false)
   :h2-no-host (broken/request #(update % :headers dissoc "host"))
   :h2-forgives (broken/wire #(reduce (fn [text [from to]] (str/replace text from to))
                                      %
                                      {"elsewhere" "localhost"
                                       "connection" "x-nnection"
                                       "CONNECT" "TUNNEL-"
                                       "/a b" "/a_b"})
                             identity)
   :h2-short-bodies (broken/request #(update % :body (fn [in] (at-most 1000 in))))
   :h2-allows-one (broken/options #(assoc % :max-concurrent 1))
   :h2-swallows-body-failures (broken/response swallow-body)
   :h2-no-request-timeout (broken/without :request-timeout-ms)
   :h2-no-max-concurrent (broken/without :max-concurrent)
   :h2-dies (limited-by #(< 0 (long %)))
   :reuses-a-thread-on-jetty (reusing-a-thread)
   :drops-date-on-jetty (headers-of #(dissoc % "Date"))
   :impatient-on-jetty (broken/options #(assoc % :request-timeout-ms 100))
   :naive-log-on-jetty (broken/tools {:access-log naive-log})
   :h2-black-hole (broken/wire #(if (str/starts-with? % "GET") % "") identity)})

(def ^:private kept
  "What :jdk cannot break: it has one :max-connections a JVM, and ends a connection behind a request
  in chunks."
  {:loses-a-place (broken/setting :max-connections 2)
   :trailers-end-at-a-fold (broken/wire #(str/replace % "X: a\r\n GET" "\r\nGET") identity)})

(def ^:private on-jetty
  (update-vals (merge websockets disconnects secured second-version kept)
               #(assoc % :options {:engine :jetty})))

(def all
  "Name -> what tck/run takes."
  (merge requests responses wires naives bounds asyncs tools on-jetty))

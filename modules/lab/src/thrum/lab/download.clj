(ns thrum.lab.download
  "Downloads one URL with the JDK's HttpClient and says how it went: always an outcome, never an
  exception (an interrupt excepted). An outcome is {:status :bytes}, with :kind and :message added
  when it failed."
  (:require
   [clojure.string :as str]
   [thrum.lab.text :as text])
  (:import
   (java.net ConnectException URI UnknownHostException)
   (java.net.http HttpClient HttpClient$Redirect HttpClient$Version HttpConnectTimeoutException HttpRequest HttpResponse HttpResponse$BodyHandler HttpResponse$BodySubscriber HttpTimeoutException)
   (java.nio ByteBuffer)
   (java.nio.channels UnresolvedAddressException)
   (java.time Duration)
   (java.util.concurrent CompletableFuture ExecutionException Executors Flow$Subscription TimeUnit TimeoutException)
   (java.util.concurrent.atomic AtomicLong)
   (javax.net.ssl SSLException)))

(set! *warn-on-reflection* true)

(defn client
  "Returns an HttpClient on virtual threads: HTTP/1.1, redirects not followed. Close it with
  `close!`."
  ^HttpClient []
  (-> (HttpClient/newBuilder)
      (.version HttpClient$Version/HTTP_1_1)
      (.followRedirects HttpClient$Redirect/NEVER)
      (.connectTimeout (Duration/ofSeconds 20))
      (.executor (Executors/newVirtualThreadPerTaskExecutor))
      (.build)))

(defn close!
  "Ends the client and every request that it still has."
  [^HttpClient client]
  (.shutdownNow client))

(defn- counting-subscriber []
  (let [total (AtomicLong.), done (CompletableFuture.)]
    (reify HttpResponse$BodySubscriber
      (onSubscribe [_ subscription] (.request ^Flow$Subscription subscription Long/MAX_VALUE))
      (onNext [_ buffers] (run! (fn [^ByteBuffer b] (.addAndGet total (.remaining b))) buffers))
      (onError [_ t] (.completeExceptionally done t))
      (onComplete [_] (.complete done (.get total)))
      (getBody [_] done))))

(def ^:private counting
  "Receives every byte of a body, keeps none, and gives back how many there were."
  (reify HttpResponse$BodyHandler
    (apply [_ _] (counting-subscriber))))

(defn- causes [^Throwable t]
  (take 20 (take-while some? (iterate ex-cause t))))

(def ^:private kinds-by-message
  [[#"(?i)too many open files" :too-many-open-files]
   [#"(?i)reset" :connection-reset]
   [#"(?i)EOF|closed|no bytes|broken pipe" :connection-closed]
   [#"(?i)refused" :connection-refused]
   [#"(?i)assign requested address" :no-free-port]])

(defn- kind-of-message [message]
  (some (fn [[pattern kind]] (when (re-find pattern message) kind)) kinds-by-message))

(defn- kind-of-class [t]
  (condp instance? t
    HttpConnectTimeoutException :connect-timeout
    HttpTimeoutException :timeout
    TimeoutException :timeout
    UnknownHostException :unknown-host
    UnresolvedAddressException :unknown-host
    SSLException :tls
    OutOfMemoryError :out-of-memory
    nil))

(defn kind
  "Returns the kind of a failed download, a keyword: from the first cause that is known by class,
  then by message; :connection-refused for any other ConnectException, else the class name of the
  innermost cause."
  [^Throwable t]
  (let [chain (causes t)]
    (or (some kind-of-class chain)
        (some #(kind-of-message (str (ex-message %))) chain)
        (when (some #(instance? ConnectException %) chain) :connection-refused)
        (keyword (text/class-word (last chain))))))

(defn- failure [t]
  {:kind (kind t), :message (str (ex-message (last (causes t))))})

(defn- await-response
  "Waits for the response; cancels the exchange on a timeout and on an interrupt."
  ^HttpResponse [^CompletableFuture response timeout-ms]
  (try
    (.get response timeout-ms TimeUnit/MILLISECONDS)
    (catch ExecutionException e (throw (ex-cause e)))
    (finally (.cancel response true))))

(defn- request ^HttpRequest [^URI uri]
  (.build (HttpRequest/newBuilder uri)))

(defn- outcome
  [^HttpResponse response]
  (let [status (.statusCode response)
        location (-> response
                     .headers
                     (.firstValue "location")
                     (.orElse nil))]
    (cond-> {:status status, :bytes (.body response)}
      (and location (<= 300 status 399)) (assoc :location location)
      (<= 400 status) (assoc :kind (keyword (str "http-" status))
                             :message (str "HTTP status " status)))))

(defn fetch
  "Downloads uri and returns its outcome; blocks for at most timeout-ms. Throws InterruptedException
  only."
  [^HttpClient client ^URI uri timeout-ms]
  (try
    (outcome (await-response (.sendAsync client (request uri) counting) timeout-ms))
    (catch InterruptedException e (throw e))
    (catch Throwable t (failure t))))

(defn fetch-deaf
  "As fetch, but nothing stops it: no interrupt, no timeout. What a call into an old driver is
  like."
  [^HttpClient client ^URI uri]
  (try
    (outcome (.join (.sendAsync client (request uri) counting)))
    (catch Throwable t (failure t))))

(defn expect-bytes
  "Returns the outcome, failed with :wrong-byte-count if it ended well with another number of bytes
  than expected."
  [outcome expected]
  (if (or (:kind outcome) (= expected (:bytes outcome)))
    outcome
    (assoc outcome
           :kind :wrong-byte-count
           :message (str "expected " expected " bytes, received " (:bytes outcome)))))

(defn kind-label
  "Returns a kind as words: :too-many-open-files is \"too many open files\"."
  [kind]
  (str/replace (name kind) "-" " "))

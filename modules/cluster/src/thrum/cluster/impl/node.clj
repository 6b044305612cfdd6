(ns thrum.cluster.impl.node
  "A node of the cluster: its engine, what it runs for others, what it calls, and its beat; how it
  joins and leaves."
  {:no-doc true}
  (:require
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.impl.crew :as crew]
   [thrum.cluster.impl.failure :as failure]
   [thrum.cluster.impl.function :as function]
   [thrum.cluster.impl.member :as member]
   [thrum.cluster.impl.pending :as pending]
   [thrum.cluster.impl.pulse :as pulse]
   [thrum.cluster.impl.seal :as seal]
   [thrum.cluster.impl.settings :as settings]
   [thrum.cluster.impl.silence :as silence]
   [thrum.cluster.impl.wire :as wire]
   [thrum.cluster.spi :as engine]
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.lang AutoCloseable)
   (java.util.concurrent CompletableFuture CompletionException ConcurrentHashMap ExecutionException TimeUnit TimeoutException)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (thrum.cluster.impl.caller Caller)))

(set! *warn-on-reflection* true)

(declare close!)

;; left: nil, or the CompletableFuture of its leaving.
(deftype Node [name engine member caller stop-pulse drain-timeout-ms ^AtomicReference left]
  AutoCloseable
  (close [this] (close! this))
  Object
  (toString [_] (str "#<cluster node " name ">")))

(defmethod print-method Node [node ^java.io.Writer w]
  (.write w (str node)))

;; Joining

(defn- unique-name [{:keys [name allow]}]
  (let [unique (str name "-" (Long/toString (rand-int 1679616) 36))]
    (if (seq allow) unique (engine/caller-name unique))))

(defn- handler
  "Returns the function from sealed request to sealed answer."
  [member node secret]
  (fn [sealed]
    (let [request (seal/open secret sealed)]
      (seal/seal secret
                 (if request
                   (member/handle! member request)
                   (wire/answer :refused "it" (failure/data (function/refused-secret node))))))))

;; Else it would not show where the join is called.
(defn- with-trace-here
  "Returns the throwable of another thread, with the frames of this one behind its own."
  ^Throwable [^Throwable t]
  (doto t
    (.setStackTrace (into-array StackTraceElement
                                (concat (.getStackTrace t) (.getStackTrace (Throwable.)))))))

;; An engine that is interrupted while it starts may drop the interrupt, and throw something else.
(defn- on-a-thread
  "Returns what f returns, called on a thread of its own. An interrupt of this one is passed on to
  it. Then, when it has ended, throws InterruptedException, after undo! of what f has returned, if
  it has."
  [f undo!]
  (let [end (CompletableFuture.)        ; of what f returns, and what it throws
        run (bound-fn* #(.complete end (try [(f) nil] (catch Throwable t [nil t]))))
        ;; A daemon or not, as this one: the engine's threads inherit it.
        thread (.start (.name (Thread/ofPlatform) "thrum-cluster-join") run)
        [value thrown] (try
                         (.get end)
                         (catch InterruptedException e
                           (.interrupt thread)
                           (some-> (first (.join end)) undo!)
                           (throw e)))]
    (if thrown (throw (with-trace-here thrown)) value)))

(defn- started
  "Returns the engine, started."
  [start settings]
  (let [started (on-a-thread #(start settings)
                             #(when (satisfies? engine/Engine %) (engine/close! %)))]
    (if (satisfies? engine/Engine started)
      started
      (throw (spi/invalid (str "The :engine returned " (spi/text started)
                            "; it must return an Engine of thrum.cluster.spi")
               {:option :engine, :value started, :accepts "a function of the settings"})))))

;; A caller has a member too, which allows nothing and takes no part: requests come to it as well.
(defn- start!
  [{:keys [node engine allow heartbeat-ms lease-ms drain-timeout-ms secret] :as settings}]
  (let [silence (silence/silence heartbeat-ms pulse/beat-ms)
        pending (ConcurrentHashMap.)
        settings (assoc settings
                   :silence silence
                   :pending pending
                   :waits? #(pending/waits-for? pending %))
        member (member/member settings)
        engine (started engine (assoc settings :handler (handler member node secret)))
        worker (when (seq allow) member)
        caller (caller/caller (assoc settings :engine engine, :member worker))
        stop-pulse (pulse/start! {:caller caller, :member member, :silence silence
                                  :heartbeat-ms heartbeat-ms, :lease-ms lease-ms})]
    (Node. node engine worker caller stop-pulse drain-timeout-ms (AtomicReference.))))

(def ^:private ^:const answer-ms "How long a node may take to say how it is." 1000)

(defn- ask
  "Asks another node a question without more, as :status; returns [status x], nil where it does not
  answer soon. Throws ExecutionException where no answer can come."
  [^Caller caller member question]
  (try
    (wire/answered (.get (caller/send! caller member (wire/plain question (.-node caller)))
                         answer-ms
                         TimeUnit/MILLISECONDS))
    (catch TimeoutException _)))

(defn- status-of
  "Returns what the member says of itself, or nil where it says nothing. Throws :thrum/refused."
  [caller member]
  (let [[status x] (try
                     (ask caller member :status)
                     (catch ExecutionException e
                       (when (= :thrum/refused (:type (ex-data (ex-cause e))))
                         (throw (ex-cause e)))))]
    (case status
      :refused (throw (failure/throwable x))
      x)))

(defn- check-welcome!
  "Throws :thrum/refused where a member has another secret or version."
  [^Node node]
  (when-some [other (first (remove #{(.-name node)} (engine/workers (.-engine node))))]
    (status-of (.-caller node) other)))

(defn join!
  "Returns the node of these options; see thrum.cluster/join!."
  [options]
  (let [settings (settings/checked options)
        node (start! (assoc settings :node (unique-name settings)))]
    (try
      (check-welcome! node)
      node
      (catch Throwable t (close! node) (throw t)))))

(defn- node ^Node [x]
  (if (instance? Node x)
    x
    (throw (spi/invalid (str "What is expected here is a node, as cluster/join! returns it, not "
                          (spi/text x))
             {:value x, :accepts "a node of a cluster"}))))

(defn caller
  "Returns the calling side of the node. Throws :thrum/invalid for anything that is no node."
  [x]
  (.-caller (node x)))

;; Leaving

(defn drain!
  "See thrum.cluster/drain!."
  [x timeout-ms]
  (when-not (nat-int? timeout-ms)
    (throw (spi/invalid (str "The timeout of drain! is " (spi/text timeout-ms)
                          "; it must be an integer of ms, not negative")
             {:option :timeout-ms, :value timeout-ms, :accepts "an integer, not negative"})))
  (if-some [member (.-member (node x))]
    (member/drain! member timeout-ms)
    true))

(def ^:private ^:const stop-ms "How long work that is stopped may take to end." 1000)

(def ^:private ^:const quiet-ms
  "A caller that waits has shown that it is there in the last so many ms."
  1500)

(defn- waits?
  "Returns whether the caller waits for an answer of this node; true where it does not say so soon."
  [^Node node caller]
  (try
    (contains? #{nil [:done true]} (ask (.-caller node) caller :waits))
    (catch ExecutionException _ false)))

;; What has ended here has its answer on the way, which an engine that leaves may not have sent.
(defn- await-received!
  "Waits until no caller that is there waits for an answer of this node, or until the end."
  [^Node node end]
  (while (and (not (spi/passed? end))
              (some #(waits? node %)
                    (remove #{(.-name node)} (member/recent (.-member node) quiet-ms))))
    (Thread/sleep 10)))

;; What runs here may call the cluster through this node, so the caller's side closes after it. Work
;; that must be stopped is stopped first: it is for another member, and has not failed.
(defn- leave! [^Node node]
  (let [member (.-member node), drain-ms (long (.-drain-timeout-ms node))
        end (spi/deadline-in drain-ms)
        ended? (or (nil? member) (member/drain! member drain-ms))]
    (when-not ended? (member/stop-all! member :closing))
    (caller/close! (.-caller node))
    (when (and member (or ended? (member/drain! member stop-ms)))
      (await-received! node (max end (spi/deadline-in stop-ms)))))
  ((.-stop-pulse node))
  (engine/close! (.-engine node)))

;; On a thread that is not interrupted: else a node could stay half-closed.
(defn- leave-on-a-thread! [node ^CompletableFuture end]
  (.start (.unstarted (Thread/ofPlatform)
                      #(try
                         (leave! node)
                         (.complete end nil)
                         (catch Throwable t (.completeExceptionally end t))))))

(defn close!
  "See thrum.cluster/close!."
  [x]
  (let [node (node x), end (CompletableFuture.), ^AtomicReference left (.-left node)]
    (when (.compareAndSet left nil end) (leave-on-a-thread! node end))
    (try
      (.join ^CompletableFuture (.get left))
      (catch CompletionException e (throw (ex-cause e))))
    nil))

;; Status

(defn status
  "See thrum.cluster/status."
  [x]
  (let [^Caller caller (doto (caller x) (caller/check-open!))
        loads (crew/loads (.-crew caller))]
    {:node (.-node caller)
     :members (t/pmapv 16
                       #(merge {:member %, :in-flight (get loads % 0)} (status-of caller %))
                       (sort (caller/workers caller)))
     :re-runs (.get ^AtomicLong (.-re-runs caller))}))

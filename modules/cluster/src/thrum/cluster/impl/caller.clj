(ns thrum.cluster.impl.caller
  "The caller's side: one call of the map is one request to one member, waited for. Where the member
  is lost it is sent to another."
  {:no-doc true}
  (:require
   [thrum.cluster.impl.crew :as crew]
   [thrum.cluster.impl.failure :as failure]
   [thrum.cluster.impl.function :as function]
   [thrum.cluster.impl.member :as member]
   [thrum.cluster.impl.pending :as pending]
   [thrum.cluster.impl.rerun :as rerun]
   [thrum.cluster.impl.seal :as seal]
   [thrum.cluster.impl.silence :as silence]
   [thrum.cluster.impl.wire :as wire]
   [thrum.cluster.spi :as engine]
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.util Set)
   (java.util.concurrent CompletableFuture ConcurrentHashMap ExecutionException TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong AtomicReference)
   (thrum.cluster.impl.pending Pending)))

(set! *warn-on-reflection* true)

(deftype Caller [engine
                 node
                 member                       ; this node's own, or nil
                 crew
                 trial                        ; the permit of work that runs alone
                 ^Set explained               ; members whose loss is the fault of a known item
                 silence
                 secret
                 members-timeout-ms
                 ^ConcurrentHashMap pending   ; see thrum.cluster.impl.pending
                 ^AtomicLong runs
                 ^AtomicLong re-runs
                 ^AtomicBoolean closed])

(defn caller
  "Returns a caller that has called nothing yet. pending: an empty ConcurrentHashMap."
  [{:keys [engine node member silence secret members-timeout-ms pending]}]
  (Caller. engine
           node
           member
           (crew/crew)
           (t/limiter 1)
           (ConcurrentHashMap/newKeySet)
           silence
           secret
           members-timeout-ms
           pending
           (AtomicLong.)
           (AtomicLong.)
           (AtomicBoolean.)))

;; One request

;; On a thread without this one's bindings: it is the same as on another node.
(defn- locally [member request]
  (let [answer (CompletableFuture.)
        run #(try
               (.complete answer (member/handle! member request))
               (catch Throwable t (.completeExceptionally answer t)))]
    (.start (spi/clean-thread (spi/unique-name "cluster-itself") run))
    answer))

(defn- opened [^Caller caller worker answer]
  (silence/broken! (.-silence caller) worker)
  (or (seal/open (.-secret caller) answer)
      (throw (function/refused-secret worker))))

(defn- remotely [^Caller caller worker request]
  (-> ^CompletableFuture
      (engine/invoke (.-engine caller) worker (seal/seal (.-secret caller) request))
      (.thenApply (fn [answer] (opened caller worker answer)))))

(defn send!
  "Sends the request to the member. Returns a CompletableFuture of the answer, which fails with
  :thrum/refused where the member has another secret."
  ^CompletableFuture [^Caller caller worker request]
  (if (= worker (.-node caller))
    (locally (.-member caller) request)
    (try
      (remotely caller worker request)
      (catch InterruptedException e (throw e))
      (catch Exception e (CompletableFuture/failedFuture e)))))

(defn send-cancel!
  "Asks the member to stop the run."
  [^Caller caller run ^Pending pending]
  (let [ms (pending/next-cancel-ms pending)]
    (.set ^AtomicReference (.-cancel pending)
          (-> (send! caller (.-worker pending) (wire/cancel (.-node caller) run))
              (.thenApply (fn [answer] (second (wire/answered answer))))
              (.orTimeout ms TimeUnit/MILLISECONDS)))))

;; The run has ended when the answer is there: joined, as core's tasks are.
(defn- cancel-and-join! [caller run ^Pending pending]
  (send-cancel! caller run pending)
  (try
    (.join ^CompletableFuture (.-answer pending))
    (catch java.util.concurrent.CompletionException _)
    (catch java.util.concurrent.CancellationException _)))

(defn- await-answer! [^Pending pending on-interrupt]
  (try
    (.get ^CompletableFuture (.-answer pending))
    (catch InterruptedException e
      (on-interrupt pending)
      (throw e))))

(defn- unanswered [cause]
  (if (= :thrum/refused (:type (ex-data cause)))
    [:refused (failure/data cause)]
    [:unanswered]))

(defn- complete-from! [^CompletableFuture answer ^CompletableFuture sent]
  (.whenComplete sent (fn [bytes t]
                        (if t (.completeExceptionally answer t) (.complete answer bytes)))))

;; Pending before it is sent: a member that leaves asks who waits for it.
(defn- exchange!
  "Returns [status x], or [:unanswered]. send: sends, and returns the CompletableFuture of the
  answer. on-interrupt: called with the Pending when this thread is interrupted."
  [^Caller caller worker function run send on-interrupt]
  (let [pending (pending/pending worker function)
        registration (spi/register! :cluster-call pending pending/shown)]
    (.put ^ConcurrentHashMap (.-pending caller) run pending)
    (try
      (complete-from! (.-answer pending) (send))
      (wire/answered (await-answer! pending on-interrupt))
      (catch ExecutionException e (unanswered (ex-cause e)))
      (catch java.util.concurrent.CancellationException _ [:unanswered])
      (finally
        (.remove ^ConcurrentHashMap (.-pending caller) run)
        (spi/unregister! registration)))))

;; Which member

(defn check-open!
  "Throws :thrum/closed where the caller's node has left the cluster."
  [^Caller caller]
  (when (.get ^AtomicBoolean (.-closed caller))
    (throw (ex-info "The cluster has been left, nothing can run on it any more"
                    {:type :thrum/closed, :scope (.-node caller)}))))

(defn- no-members [^Caller caller sentence]
  (ex-info (str sentence " for " (.-members-timeout-ms caller) " ms")
           {:type :thrum/no-members, :waited-ms (.-members-timeout-ms caller)}))

(defn- await!
  "As crew/await!. Throws :thrum/closed where the caller's node has left the cluster."
  [^Caller caller timeout-ms look]
  (crew/await! (.-crew caller) timeout-ms #(do (check-open! caller) (look))))

(defn- await-member! [^Caller caller look sentence]
  (or (await! caller (.-members-timeout-ms caller) look)
      (throw (no-members caller sentence))))

(defn- ask-engine
  "Returns (question engine). Throws :thrum/closed where the engine has no answer: it is closed."
  [^Caller caller question]
  (try
    (question (.-engine caller))
    (catch Exception e (check-open! caller) (throw e))))

(defn workers
  "Returns the names of the members that the engine has and that are not silent."
  [^Caller caller]
  (silence/answering (.-silence caller) (ask-engine caller engine/workers)))

(defn- take-member! [^Caller caller avoid]
  (let [look #(crew/take! (.-crew caller) (workers caller) avoid)]
    (check-open! caller)
    (or (look) (await-member! caller look "No member has taken work"))))

(defn- decision [^Caller caller history]
  (rerun/decision history #(.contains ^Set (.-explained caller) %)))

(defn- cleared
  "Returns :cleared where the work is no suspect any more: what it is suspected of is explained."
  [caller history]
  (when-not (= :alone (decision caller history)) :cleared))

(defn- await-second!
  "Waits until two members take work, or until what the work is suspected of is explained."
  [^Caller caller history]
  (await-member! caller
                 #(or (cleared caller history)
                      (next (crew/available (.-crew caller) (workers caller))))
                 (str "Two members were lost with this work, so it runs only where two members"
                      " take work; they were not there")))

(defn- gone? [^Caller caller member]
  (and (not= member (.-node caller))
       (or (ask-engine caller #(engine/lost? % member))
           (silence/silent? (.-silence caller) member))))

(defn- await-empty!
  "Returns :empty when nothing of this caller's runs on the member, which is reserved, or :gone."
  [^Caller caller member]
  (or (await! caller
              (.-members-timeout-ms caller)
              #(cond (gone? caller member) :gone
                     (crew/empty-handed? (.-crew caller) member) :empty))
      (recur caller member)))

(defn- reserve-empty!
  "Returns a member that runs nothing of this caller's, reserved; nil where none is left for it."
  [^Caller caller history]
  (let [crew (.-crew caller)]
    (when-some [member (crew/reserve! crew (workers caller) (:last history))]
      (if (= :empty (try (await-empty! caller member)
                         (catch Throwable e (crew/free! crew member) (throw e))))
        member
        (crew/free! crew member)))))

(defn- with-member [^Caller caller avoid f]
  (let [member (take-member! caller avoid)]
    (try (f member) (finally (crew/give-back! (.-crew caller) member)))))

(defn- on-reserved [^Caller caller member f]
  (let [crew (.-crew caller)]
    (try
      (crew/take-reserved! crew member)
      (try (f member) (finally (crew/give-back! crew member)))
      (finally (crew/free! crew member)))))

;; The permit is held by work that has a member: what waits for members waits without.
(defn- with-member-alone [^Caller caller history f]
  (await-second! caller history)
  (t/with-permit (.-trial caller)
    (if-some [member (when-not (cleared caller history) (reserve-empty! caller history))]
      (on-reserved caller member f)
      {:history history})))

;; What an answer means

(def ^:private ^:const suspect-ms
  "How long a member that has not answered may take to be missed."
  1000)

(defn- missed?
  "Returns whether a member that has not answered is gone. One that is not is spared for a while."
  [^Caller caller worker]
  (or (await! caller suspect-ms #(gone? caller worker))
      (do (crew/rest! (.-crew caller) worker suspect-ms) false)))

(defn- on-member [^Throwable t node]
  (doto t
    (.addSuppressed (ex-info (str "It was thrown on the member " node)
                             {:type :thrum/remote, :member node}))))

;; The member's clock came first: the caller's own deadline cancels this thread in a moment.
(defn- late! []
  (Thread/sleep 1000)
  (throw (ex-info "The deadline has passed on the member" {:type :thrum/timeout})))

(defn- foreign?
  "Returns whether the refusal is that of a node with another secret."
  [refusal]
  (= :secret (:reason (:data refusal))))

(defn- without
  "Returns how to go on without the member, or nil where there is no other."
  [^Caller caller worker before]
  (let [crew (.-crew caller)]
    (crew/drains! crew worker)
    (when (seq (crew/available crew (workers caller)))
      {:history before})))

(defn- step
  "Returns {:results [...], :thrown t} where the answer ends the matter, else the {:history h} to go
  on with. before: the history without this start."
  [^Caller caller worker before history [status x]]
  (case status
    :done {:results (wire/results x)}
    :failed (let [[parts failure node] x]
              {:results (wire/results parts)
               :thrown (on-member (failure/throwable failure) node)})
    :refused (or (when (foreign? x) (without caller worker before))
                 {:results [], :thrown (failure/throwable x)})
    :draining (do (crew/drains! (.-crew caller) worker) {:history before})
    :stopped (if (= :late x) (late!) {:history history})
    :unanswered {:history (if (missed? caller worker) (rerun/lost history) history)}))

(defn- next-run! [^Caller caller]
  (.incrementAndGet ^AtomicLong (.-runs caller)))

(defn- send-work!
  [^Caller caller {:keys [function code drop?]} items before worker]
  (let [run (next-run! caller)
        request (wire/run {:from (.-node caller), :run run, :function function, :code code
                           :items items, :drop? drop?, :remaining-ms (t/remaining-ms)})]
    (when (pos? (long (:starts before))) (.incrementAndGet ^AtomicLong (.-re-runs caller)))
    (step caller
          worker
          before
          (rerun/started (dissoc before :unmet-since) worker)
          (exchange! caller worker function run
                     #(send! caller worker request)
                     #(cancel-and-join! caller run %)))))

(def ^:private ^:const greeting-ms
  "How long a member may take to answer a greeting, before another is asked."
  5000)

(defn- left-ms
  "Returns for how many ms work still waits that no member has answered."
  ^long [^Caller caller {:keys [unmet-since]}]
  (- (long (.-members-timeout-ms caller))
     (quot (- (System/nanoTime) (long unmet-since)) 1000000)))

(defn- unmet
  "Returns the history of work whose member is there and has not answered a greeting. Throws where
  that has been so for too long."
  [caller history]
  (when-not (pos? (left-ms caller history))
    (throw (no-members caller "No member has answered")))
  history)

(defn- ask-status! ^CompletableFuture [^Caller caller worker ms]
  (.orTimeout (send! caller worker (wire/plain :status (.-node caller))) ms TimeUnit/MILLISECONDS))

(defn- greet!
  "Has the member answer. Returns nil when it has; otherwise as step does."
  [^Caller caller before worker]
  (let [waiting (update before :unmet-since #(or % (System/nanoTime)))
        ms (max 1 (min (long greeting-ms) (left-ms caller waiting)))
        ;; Nothing runs there for it: an interrupt has nothing to wait for.
        [status :as answer]
        (exchange! caller worker "a greeting" (next-run! caller)
                   #(ask-status! caller worker ms)
                   (constantly nil))]
    (case status
      :done (do (crew/met! (.-crew caller) worker) nil)
      :unanswered {:history (if (missed? caller worker) before (unmet caller waiting))}
      (step caller worker before before answer))))

(defn- attempt!
  "Has the member run the items, when it has answered this caller before: were it lost without an
  answer, as a node with another secret that leaves again, innocent work would be suspected."
  [^Caller caller function items before worker]
  (or (when-not (or (= worker (.-node caller)) (crew/met? (.-crew caller) worker))
        (greet! caller before worker))
      (send-work! caller function items before worker)))

(declare call!)

(defn- one-by-one!
  "Calls the items each for itself, until one throws."
  [caller function items history]
  (reduce (fn [acc item]
            (let [{:keys [results thrown]} (call! caller function [item] history)
                  acc (update acc :results into results)]
              (if thrown (reduced (assoc acc :thrown thrown)) acc)))
          {:results []}
          items))

(defn- convict!
  "The losses are explained by this work: other suspects are cleared of them."
  [^Caller caller function items {:keys [lost] :as history}]
  (.addAll ^Set (.-explained caller) lost)
  (crew/wake! (.-crew caller))
  {:results [], :thrown (rerun/poison history (:function function) items)})

(defn- next-step!
  [caller function items history]
  (let [attempt #(attempt! caller function items history %)]
    (case (decision caller history)
      (:run :elsewhere) (with-member caller (:last history) attempt)
      :alone (if (next items)
               (one-by-one! caller function items history)
               (with-member-alone caller history attempt))
      :poison (convict! caller function items history)
      :give-up {:results [], :thrown (rerun/given-up history (:function function) items)})))

(defn call!
  "Calls the function, {:function name, :code fingerprint, :drop? b}, on each of the items, vectors
  of arguments, on a member. Returns {:results [...]}, and :thrown where an item has failed: those
  after it were not called. Throws :thrum/no-members, :thrum/closed, and :thrum/invalid where an
  argument cannot be carried."
  ([caller function items] (call! caller function items rerun/fresh))
  ([caller function items history]
   (let [{:keys [history] :as outcome} (next-step! caller function items history)]
     (if history
       (recur caller function items history)
       outcome))))

;; The end

(def ^:private ^:const stop-ms "How long what runs on the members may take to end." 1000)

(defn show-alive!
  "Shows the node that this one is there, and has it say which of the entries, pending for it, it
  runs: see thrum.cluster.impl.pending/count-absences!. What it says after within-ms counts as not
  said: where functions compute on all processors of a member, a run has not begun yet, or its
  answer is not sent."
  [^Caller caller node entries most-absences within-ms]
  (let [sent (System/nanoTime)]
    (.thenAccept (send! caller node (wire/plain :alive (.-node caller)))
                 (fn [answer]
                   (let [[status runs] (wire/answered answer)
                         late? (< (* 1000000 (long within-ms)) (- (System/nanoTime) sent))]
                     (when (and (= :done status) (vector? runs))
                       (pending/count-absences! entries
                                                (when-not late? (set runs))
                                                most-absences)))))))

(defn- await-no-pending! [^Caller caller]
  (crew/await! (.-crew caller)
               stop-ms
               #(.isEmpty ^ConcurrentHashMap (.-pending caller))))

(defn close!
  "Has what waits fail with :thrum/closed, when what runs for it was stopped."
  [^Caller caller]
  (.set ^AtomicBoolean (.-closed caller) true)
  (doseq [[run pending] (.-pending caller)] (send-cancel! caller run pending))
  (crew/wake! (.-crew caller))
  (when-not (await-no-pending! caller)
    (run! #(pending/fail! % "The cluster has been left") (vals (.-pending caller)))))

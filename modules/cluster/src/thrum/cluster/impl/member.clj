(ns thrum.cluster.impl.member
  "The member's side: runs what callers ask for, stops it when they cancel or are gone, and drains."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.cluster.impl.codec :as codec]
   [thrum.cluster.impl.failure :as failure]
   [thrum.cluster.impl.function :as function]
   [thrum.cluster.impl.silence :as silence]
   [thrum.cluster.impl.wire :as wire]
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.io OutputStream)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong AtomicReference)))

(set! *warn-on-reflection* true)

(deftype Member [node registry wrap silence
                 waits?                          ; whether this node waits for an answer of another
                 ^ConcurrentHashMap runs         ; [caller run] -> Run
                 ^ConcurrentHashMap callers      ; caller -> nanoTime of its last request
                 ^AtomicBoolean draining
                 ^AtomicLong finished])

;; stopped: nil, or why; scope: nil until it is open.
(deftype Run [caller ^AtomicReference stopped ^AtomicReference scope])

(defn member
  "Returns a member that runs functions of the namespaces in allow, which it loads."
  [{:keys [node allow wrap silence waits?]}]
  (Member. node
           (function/registry node allow)
           wrap
           silence
           waits?
           (ConcurrentHashMap.)
           (ConcurrentHashMap.)
           (AtomicBoolean.)
           (AtomicLong.)))

;; Stopping

(defn- stop! [^Run run reason]
  (when (.compareAndSet ^AtomicReference (.-stopped run) nil reason)
    (some-> (.get ^AtomicReference (.-scope run)) (t/cancel! reason))))

(defn- open! [^Run run scope]
  (.set ^AtomicReference (.-scope run) scope)
  (when-some [reason (.get ^AtomicReference (.-stopped run))]
    (t/cancel! scope reason)))

(defn stop-caller!
  "Stops all runs of the caller."
  [^Member member caller reason]
  (doseq [^Run run (vals (.-runs member)) :when (= caller (.-caller run))]
    (stop! run reason)))

(defn stop-all!
  "Stops all runs."
  [^Member member reason]
  (run! #(stop! % reason) (vals (.-runs member))))

;; Running

(def ^:private scope-name "cluster-run")

(defn- late? [t]
  (and (= :thrum/timeout (spi/type-of t))
       (str/starts-with? (str (:scope (ex-data t))) (str scope-name "-"))))

(defn- overdue? []
  (some-> (t/remaining-ms) zero?))

(defn- in-scope
  "Calls the thunk in a scope that the run's stop cancels, and that has the caller's deadline."
  [run remaining-ms thunk]
  (t/with-scope [scope (cond-> {:name scope-name} remaining-ms (assoc :timeout-ms remaining-ms))]
    (open! run scope)
    (thunk)))

;; Answers

(defn- carried? [x]
  (try
    (codec/write! (OutputStream/nullOutputStream) "a part" x)
    true
    (catch Throwable t
      ;; What the run's stop interrupts ends it; what the data itself throws is a part of the data.
      (when (and (instance? InterruptedException t) (t/cancelled?)) (throw t))
      false)))

(defn- plain [t]
  (-> (failure/data t) (failure/plain carried?)))

(defn- failed
  "Returns the answer with the results before the failure. A failure that cannot be written is given
  by its class: the caller waits for an answer."
  [node results t]
  (try
    (wire/answer :failed "the failure" [results (plain t) node])
    (catch Throwable _ (wire/answer :failed "the failure" [results (failure/bare t) node]))))

(defn- drop-interrupt!
  "Drops an interrupt that a call has left behind: neither the writing of its result nor the next
  item must meet it. That of a stop stays: it comes after the stop itself can be seen."
  []
  (when (and (Thread/interrupted) (t/cancelled?))
    (.interrupt (Thread/currentThread))))

;; A result is written as soon as it is there: one that is lazy does its work here, and may leave an
;; interrupt behind too.
(defn- call-one [f item {:keys [function drop?]}]
  (try
    (let [result (try (apply f item) (finally (drop-interrupt!)))]
      (when-not drop? (wire/result function result)))
    (finally (drop-interrupt!))))

(defn- call-each
  "Calls f on each of the items, until the run is stopped, and returns the answer. Where a call
  throws, or its result cannot be written, that is the failure of its item. Throws what is thrown
  after the deadline, for the scope to judge."
  [node f items request]
  (let [results (reduce (fn [results item]
                          (when (seq results) (t/checkpoint))
                          (try
                            (conj results (call-one f item request))
                            (catch Throwable t
                              (when (overdue?) (throw t))
                              (reduced (failed node results t)))))
                        []
                        items)]
    (if (vector? results)
      (wire/answer :done "the results" results)
      results)))

(defn- answered
  "Returns what the :wrap's thunk has returned, if it is an answer."
  [node x]
  (if (bytes? x)
    x
    (throw (spi/invalid (str "The :wrap of the member " node " returned a thunk that returns "
                          (spi/text x) "; it must return what the thunk given to it returns")
             {:option :wrap, :value x, :accepts "a function from thunk to thunk"}))))

(defn- outcome [^Member member ^Run run {:keys [remaining-ms function code] :as request}]
  (let [node (.-node member)
        f (function/resolve! (.-registry member) function code)
        items (wire/items request)
        thunk (spi/wrapped-once (.-wrap member) #(call-each node f items request))
        answer (in-scope run remaining-ms thunk)]
    (when (.get ^AtomicReference (.-stopped run)) (throw (InterruptedException.)))
    (answered node answer)))

(defn- answer-to-run [^Member member ^Run run request]
  (try
    (outcome member run request)
    (catch Throwable t
      (let [reason (.get ^AtomicReference (.-stopped run))]
        (cond
          reason (wire/answer :stopped "the reason" reason)
          (late? t) (wire/answer :stopped "the reason" :late)
          (= :thrum/refused (spi/type-of t)) (wire/answer :refused "it" (plain t))
          :else (failed (.-node member) [] t))))))

(defn- run-request! [^Member member {:keys [from run] :as request}]
  (let [^ConcurrentHashMap runs (.-runs member)
        entry (Run. from (AtomicReference.) (AtomicReference.))]
    (.put runs [from run] entry)
    (try
      (if (.get ^AtomicBoolean (.-draining member))
        (wire/answer :draining "it" nil)
        (answer-to-run member entry request))
      (finally
        (.remove runs [from run])
        (.incrementAndGet ^AtomicLong (.-finished member))))))

;; Requests

(defn status
  "Returns {:member name, :running n, :finished n, :draining? b}."
  [^Member member]
  {:member (.-node member)
   :running (.size ^ConcurrentHashMap (.-runs member))
   :finished (.get ^AtomicLong (.-finished member))
   :draining? (.get ^AtomicBoolean (.-draining member))})

;; In the answer to :alive: a caller whose run is not among them waits for an answer that is lost.
(defn- runs-of
  "Returns the numbers of the caller's runs."
  [^Member member caller]
  (into [] (keep (fn [[from run]] (when (= from caller) run)))
        (keys (.-runs member))))

;; The cancel may come before the run. Then the caller sends it again.
(defn- cancel-request! [^Member member {:keys [from run]}]
  (let [run (.get ^ConcurrentHashMap (.-runs member) [from run])]
    (some-> run (stop! :cancelled))
    (wire/answer :done "it" (some? run))))

(defn handle!
  "Returns the answer to a request, both bytes. Blocks while it runs."
  [^Member member ^bytes bs]
  (let [{:keys [op from] :as request} (wire/request bs)]
    (when from
      (.put ^ConcurrentHashMap (.-callers member) from (System/nanoTime))
      (silence/broken! (.-silence member) from))
    (case op
      :run (run-request! member request)
      :cancel (cancel-request! member request)
      :alive (wire/answer :done "it" (runs-of member from))
      :status (wire/answer :done "it" (status member))
      :waits (wire/answer :done "it" ((.-waits? member) from))
      :version (wire/answer :refused
                            "it"
                            (failure/data (function/refused-version (.-node member)
                                                                    (:theirs request)
                                                                    wire/version))))))

;; Callers that are gone

(defn expired?
  "Returns whether nothing has come from the caller for so many ms."
  [^Member member caller ms]
  (let [last-ns (long (.getOrDefault ^ConcurrentHashMap (.-callers member) caller 0))]
    (<= (long ms) (quot (- (System/nanoTime) last-ns) 1000000))))

(defn callers
  "Returns the callers that have work here."
  [^Member member]
  (into #{} (map #(.-caller ^Run %)) (vals (.-runs member))))

(defn recent
  "Returns the callers from which something has come in the last ms."
  [^Member member ms]
  (into [] (remove #(expired? member % ms)) (keys (.-callers member))))

(defn expire!
  "Stops the work of callers from which nothing has come for lease-ms, and forgets callers without
  work. This node's own calls have no lease: it shows itself nothing."
  [^Member member lease-ms]
  (let [working (callers member)]
    (doseq [caller (disj working (.-node member)) :when (expired? member caller lease-ms)]
      (stop-caller! member caller :lease))
    (.removeIf (.keySet ^ConcurrentHashMap (.-callers member))
               #(and (not (working %)) (expired? member % lease-ms)))))

;; Draining

(defn drain!
  "Takes no new work from now on. Returns whether all has ended within timeout-ms."
  [^Member member timeout-ms]
  (.set ^AtomicBoolean (.-draining member) true)
  (let [end (spi/deadline-in timeout-ms)]
    (loop []
      (cond
        (.isEmpty ^ConcurrentHashMap (.-runs member)) true
        (spi/passed? end) false
        :else (do (Thread/sleep 10) (recur))))))

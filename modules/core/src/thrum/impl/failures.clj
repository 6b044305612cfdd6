(ns thrum.impl.failures
  "Several failures of one call: recorded as they come, then attached to the one that is thrown. The
  caller chooses that one: for fan-outs thrum.impl.fanout/failure-to-throw does."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error]
   [thrum.impl.task])
  (:import
   (java.util ArrayList)
   (java.util.concurrent ExecutionException)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

(def ^:private most-suppressed
  "How many other failures are suppressed on the one that is thrown."
  16)

;; A failure is a map: :throwable, and for a task :task, its name, and :index.
;; No protocol: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).
(definterface IFailures
  (record [failure])
  (^java.util.List kept [])
  (^long total []))

(defn- wrapper-of?
  "True if t is the wrapper in which deref throws the other throwable."
  [t other]
  (and (instance? ExecutionException t) (identical? other (error/cause-of t))))

(defn- known? [failure kept]
  (let [t (:throwable failure)]
    (some #(or (identical? t (:throwable %)) (wrapper-of? t (:throwable %))) kept)))

;; kept: nil before the first, for most calls have none. No field is volatile, which would cost a
;; fence: a failure is recorded before its task has an outcome, and asked for after that.
(deftype Failures [^:unsynchronized-mutable ^ArrayList kept
                   ^:unsynchronized-mutable ^long total]
  IFailures
  (record [this failure]
    (locking this
      (when-not kept (set! kept (ArrayList.)))
      (when-not (known? failure kept)
        (set! total (inc total))
        (when (<= (.size kept) (long most-suppressed))
          (.add kept failure)))))
  (kept [this]
    (locking this (if kept (ArrayList. kept) (ArrayList.))))
  (total [_] total))

(defn failures
  "Returns an empty record, in the order of time. It keeps the first few failures and counts the
  others."
  ^Failures []
  (Failures. nil 0))

(defn of-task
  "Returns the failure of a task that threw t."
  [^ITask task t]
  {:throwable t, :task (.taskName task), :index (.index task)})

(defn root
  "Returns the earliest failure on record, or nil. A scope throws it; a fan-out may throw another,
  see thrum.impl.fanout/failure-to-throw."
  [^Failures failures]
  (when (pos? (.total failures))
    (first (.kept failures))))

(defn- suppress! [^Throwable root ^Throwable other]
  (.addSuppressed root other))

(defn- others
  "Returns the throwables that are neither root nor suppressed on it, each once."
  [^Throwable root throwables]
  (loop [seen (into [root] (.getSuppressed root)), fresh [], [t & more] throwables]
    (cond
      (nil? t) fresh
      (some #(identical? t %) seen) (recur seen fresh more)
      :else (recur (conj seen t) (conj fresh t) more))))

(defn- room-on ^long [^Throwable root]
  (- (long most-suppressed) (alength (.getSuppressed root))))

(defn merged
  "Returns the throwable of one failure, the same instance. The other failures on record are
  suppressed on it, each instance once and at most 16 of them. If the failure is an item's, one more
  ex-info {:type :thrum/context, :task name, :index i, :dropped n} names the item; its stack trace
  shows where the result was asked for."
  ^Throwable [{:keys [throwable index], :as failure} ^Failures failures]
  (let [throwables (map :throwable (.kept failures))
        riders (take (room-on throwable) (others throwable throwables))
        ;; One that came behind those that are kept is itself none that was dropped.
        same (max 1 (count (filter #(identical? throwable %) throwables)))]
    (run! #(suppress! throwable %) riders)
    (when (and index (<= 0 (room-on throwable)))
      (suppress! throwable (error/context failure (- (.total failures) same (count riders)))))
    throwable))

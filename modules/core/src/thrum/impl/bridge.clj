(ns thrum.impl.bridge
  "Tasks as CompletableFutures of the JDK's, and the other way, with cancels in both directions."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.task :as task])
  (:import
   (java.util.concurrent CancellationException CompletableFuture CompletionException CompletionStage)
   (java.util.function BiConsumer)
   (thrum.impl.task Cancelled Done Failed ITask Task)))

(set! *warn-on-reflection* true)

(defn- on-completion! [^CompletionStage stage f]
  (.whenComplete stage (reify BiConsumer (accept [_ value throwable] (f value throwable)))))

;; A task's end as a future's

(defn- complete! [^CompletableFuture future ^ITask task]
  (let [{:keys [value error cancelled]} (task/outcome-data task)]
    (cond
      error (.completeExceptionally future error)
      cancelled (.completeExceptionally future (error/cancelled (.taskName task) cancelled))
      :else (.complete future value))))

(defn- complete-elsewhere!
  "Completes the future on a thread of its own: what depends on it runs there, and not in the task
  or in a cancel."
  [future ^ITask task]
  (let [f #(complete! future task)]
    (try
      (.start (jdk/virtual-thread (str (.taskName task) "-completion") f))
      (catch Throwable _ (f)))))

(defn ->completable-future
  "Returns a future that ends as the task does. Its cancel cancels the task."
  ^CompletableFuture [^Task task]
  (let [future (CompletableFuture.)
        on-end #(complete-elsewhere! future task)]
    (on-completion! future
                    (fn [_ _]
                      (task/off-outcome! task on-end)
                      ;; Not where the task's own cancel was the first: it may interrupt nothing.
                      (when (and (.isCancelled future) (not (.isDone task)))
                        (.cancelWith task :future-cancel true))))
    (task/on-outcome! task on-end)
    future))

;; A stage's end as a task's

(defn- outcome [value throwable]
  (let [t (when throwable (error/beneath #(instance? CompletionException %) throwable))]
    (cond
      (nil? t) (Done. value)
      (instance? CancellationException t) (Cancelled. (or (error/reason-of t) :future-cancel))
      :else (Failed. t))))

(defn ->task
  "Returns a task that ends as the stage does. Its cancel cancels what the stage's
  toCompletableFuture returns: a CompletableFuture itself, a copy of a minimal stage."
  ^Task [^CompletionStage stage]
  (let [task (task/latch (task/unique-name "stage"))]
    (task/on-outcome! task #(when (.isCancelled task)
                              (.cancel (.toCompletableFuture stage) true)))
    (on-completion! stage (fn [value throwable] (.settle task (outcome value throwable))))
    task))

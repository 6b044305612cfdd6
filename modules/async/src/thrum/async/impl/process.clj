(ns thrum.async.impl.process
  "Threads whose outcome a channel delivers: detached ones, and those of a scope."
  {:no-doc true}
  (:require
   [clojure.core.async :as async]
   [thrum.async.impl.handler :as handler]
   [thrum.spi :as spi]))

(set! *warn-on-reflection* true)

(defn- deliver!
  "Puts the value or the throwable of an outcome, if there is one, into the channel and closes it."
  [channel {:keys [value error]}]
  (when-some [v (or error value)]
    (async/put! channel v))
  (async/close! channel))

(defn detached
  "Starts f on a virtual thread of its own. Returns a channel of its value or its throwable.
  Options: :name, :wrap."
  [options f]
  (let [channel (async/chan 1)]
    (spi/start! (assoc options :on-end #(deliver! channel %)) f)
    channel))

(defn- close-one!
  "Closes the channel. Returns the throwable of a close before, or else its own, or nil."
  [^Throwable thrown channel]
  (try
    (async/close! channel)
    thrown
    (catch Throwable t
      (when-not (or (nil? thrown) (identical? thrown t)) (.addSuppressed thrown t))
      (or thrown t))))

(defn- close-all!
  "Closes each channel, even if another cannot be closed. The first throwable is thrown, with the
  others as suppressed."
  [channels]
  (some-> (reduce close-one! nil channels) throw))

(defn of-scope
  "Starts f as a daemon of the scope. Returns a channel of its value or its throwable. :closes - the
  channels that are closed with it."
  [scope {:keys [closes] :as options} f]
  (let [channel (async/chan 1)
        end! (fn [outcome]
               (try
                 (close-all! closes)
                 (finally (deliver! channel outcome))))]
    (spi/fork! scope (-> options (dissoc :closes) (assoc :daemon? true, :on-end end!)) f)
    channel))

(defn- cancel-elsewhere!
  "Cancels the task, unless it has ended, on a thread of its own: the calling one holds a lock."
  [task]
  (when-not (future-done? task)
    (try
      (.start (spi/clean-thread "async-cancel" #(future-cancel task)))
      (catch Throwable _
        ;; No memory for a thread.
        (future-cancel task)))))

(defn in-current-scope
  "Starts f on a virtual thread that belongs to the calling thread's scope, if there is one. When f
  has ended, puts what it threw, unless a cancel caused it, into the channel and closes it. The
  close of the channel cancels f."
  [name channel f]
  (let [task (spi/start-in-scope! {:name name
                                   :on-failed #(async/put! channel %)
                                   :on-end (fn [_] (async/close! channel))}
                                  f)]
    (handler/watch-close! channel task #(cancel-elsewhere! task))))

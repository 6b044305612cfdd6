(ns thrum.server.impl.events
  "Server-sent events: a response's body that a plain function writes, event by event, and that a
  heartbeat keeps alive."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.sink :as sink]
   [thrum.server.spi.lock :refer [holding]]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (java.io IOException OutputStream)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(defprotocol Feed
  "What a stream of events is written through, by its function and by the heartbeat."
  (write! [feed text]
    "Sends the text, after what other threads send. Throws IOException when the stream has ended;
    InterruptedException, and sends nothing, where the calling thread is interrupted before it is
    its turn.")
  (expect! [feed alarm] "Keeps the alarm of the next heartbeat.")
  (end! [feed cancel]
    "Ends the stream from another thread: nothing more is sent. Calls (cancel), which ends the
    function, while nothing is written. Blocks as long as a write does.")
  (finish! [feed] "The function has returned.")
  (ended? [feed] "True if end! has ended the stream.")
  (open? [feed] "True if more can be sent.")
  (sent [feed] "Returns how many bytes have been sent."))

;; A body: f is called with what events are sent through.
(deftype Stream [f heartbeat-ms])

;; state: :open, :ended, by end!, or :finished.
(deftype Events [target ^OutputStream out ^ReentrantLock lock ^:unsynchronized-mutable state
                 ^:unsynchronized-mutable ^long sent ^:unsynchronized-mutable alarm]
  Feed
  (write! [_ text]
    (let [bytes (.getBytes ^String text StandardCharsets/UTF_8)]
      ;; Also where the lock is free: not every engine looks, and a sender that is cancelled would
      ;; send on.
      (.lockInterruptibly lock)
      (try
        (when-not (= :open state) (throw (IOException. "The stream of events has ended")))
        (sink/reporting target (.write out bytes) (.flush out))
        (set! sent (+ sent (alength bytes)))
        nil
        (finally (.unlock lock)))))
  (expect! [_ a]
    (holding lock
      (set! alarm a)
      (when-not (= :open state) (spi/disarm! a))))
  (end! [_ cancel]
    (holding lock
      (when (= :open state)
        (set! state :ended)
        (cancel))))
  (ended? [_] (holding lock (= :ended state)))
  (finish! [_]
    (holding lock
      (when (= :open state) (set! state :finished))
      (when alarm (spi/disarm! alarm))))
  (open? [_] (holding lock (= :open state)))
  (sent [_] (holding lock sent)))

;; The format (HTML, 9.2)

(defn- field
  [k value]
  (when (some? value)
    (when (re-find #"[\r\n\u0000]" (str value))
      (throw (spi/invalid (str "The " (name k)
                            " of an event is one line, not " (spi/text value))
               {:option k, :value value})))
    (str (name k) ": " value "\n")))

(defn- data-lines [data]
  (str/join (map #(str "data: " % "\n") (str/split (str data) #"\r\n|\r|\n" -1))))

(def ^:private event-rows
  (zipmap [:id :event :data :retry] (repeat {:check any?, :accepts "anything"})))

(defn- formatted
  ^String [event]
  (cond (string? event) (str (data-lines event) "\n")
        (map? event) (let [{:keys [id event data retry]} (options/check event-rows event)]
                       (str (field :id id)
                            (field :event event)
                            (field :retry retry)
                            (when (some? data) (data-lines data))
                            "\n"))
        :else (throw (spi/invalid (str "An event is a string or a map, not " (spi/text event))
                       {:value event}))))

(defn send!
  "Sends an event: a string, its data, or a map of :event, :data, :id and :retry. Blocks until it is
  written. Throws IOException when the client has gone, InterruptedException where the calling
  thread is interrupted."
  [events event]
  (write! events (formatted event)))

;; The heartbeat: a comment, which clients ignore.

(declare beat-later!)

(defn- beat! [events ms {:keys [lost] :as exchange}]
  (try
    (write! events ": \n\n")
    (beat-later! events ms exchange)
    (catch Throwable _
      (when (open? events) (lost)))))

(defn- beat-later!
  "Sends a comment in so many ms, and again, as long as the stream is open. Not on the alarm's own
  thread: a write blocks."
  [events ms {:keys [elsewhere], :as exchange}]
  (expect! events
    (spi/arm! (spi/deadline-in ms) (fn [] (elsewhere #(beat! events ms exchange))))))

(defn- feed!
  "Calls the stream's function. How it ends makes no difference once the stream has been ended."
  [^Stream stream events]
  (try
    ((.-f stream) events)
    (catch Throwable t
      (when-not (ended? events) (throw t)))
    (finally (finish! events)))
  ;; The interrupt was for the function.
  (when (ended? events) (Thread/interrupted)))

(defn stream!
  "Begins the response at target, and calls the stream's function with its events, which (opened
  events) gets before. Returns how many bytes were sent. (elsewhere f) calls f on a thread of its
  own; (lost) is called there when a heartbeat could not be sent: the client has gone."
  [^Stream stream target {:keys [opened] :as exchange}]
  (let [out (sink/begin! target nil)
        events (Events. target out (ReentrantLock.) :open 0 nil)]
    (sink/reporting target (.flush out))
    (when-some [ms (.-heartbeat-ms stream)] (beat-later! events ms exchange))
    (opened events)
    (feed! stream events)
    (sent events)))

(def ^:private headers
  {"Content-Type" "text/event-stream; charset=utf-8"
   "Cache-Control" "no-store"
   "X-Accel-Buffering" "no"})

(def ^:private rows
  {:heartbeat-ms {:check #(or (nil? %) (pos-int? %)), :accepts "a positive integer, or nil"}
   :status {:check #(and (int? %) (<= 200 % 599)), :accepts "a status from 200 to 599"}
   :headers {:check #(or (nil? %) (map? %)), :accepts "a map"}})

(defn response
  "Returns a response whose body calls f with events. Throws :thrum/invalid for wrong options."
  [{:keys [heartbeat-ms status] :or {heartbeat-ms 15000, status 200} :as options} f]
  (options/check rows options)
  {:status status
   :headers (merge headers (:headers options))
   :body (Stream. f heartbeat-ms)})

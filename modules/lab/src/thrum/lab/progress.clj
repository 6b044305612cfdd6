(ns thrum.lab.progress
  "Shows how far a run is: a bar that moves on a terminal, plain lines in a pipe."
  (:require
   [clojure.string :as str]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.measure :as measure]
   [thrum.lab.text :as text])
  (:import
   (java.io Writer)))

(set! *warn-on-reflection* true)

(def ^:private bar-width 28)
(def ^:private line-width
  "What a terminal of 80 columns holds: a longer line would break, and could not be drawn over."
  79)
(def ^:private tick-ms 120)

(defn terminal?
  "True if standard input and output are a terminal. Since JDK 22 there is a Console in a pipe too,
  and it must be asked."
  []
  (when-let [console (System/console)]
    (if (<= 22 (.feature (Runtime/version)))
      (.invoke (.getMethod java.io.Console "isTerminal" (make-array Class 0))
               console
               (object-array 0))
      true)))

(defn start
  "Returns the state before a plan's first event."
  [{:keys [estimate-ms]}]
  {:estimate-ms estimate-ms, :starting 0, :spent-ms 0, :items 0, :row nil})

(defn- share
  "Returns what one sample of a row adds to the estimate, in ms."
  [{:keys [estimate-ms repeat]}]
  (/ (or estimate-ms 0) (max 1 (or repeat 1))))

(defn step
  "Returns the state after an event; see thrum.lab.run. Pure."
  [state {:keys [event plan part row count]}]
  (case event
    :experiment-starts (assoc state :starting (:start-ms plan 0))
    :experiment-skipped (-> state
                            (update :spent-ms + (or (experiment/estimate-ms plan) 0))
                            (assoc :starting 0))
    :sample-starts (-> state
                       (update :spent-ms + (:starting state))
                       (assoc :starting 0 :part part :row row :items 0))
    :items (update state :items + count)
    :sample-ends (-> state
                     (update :spent-ms + (share row))
                     (assoc :row nil :items 0))
    state))

(defn fraction
  "Returns how much of the work is done, 0 to 1; nil if the total is unknown."
  [{:keys [estimate-ms spent-ms items part row]}]
  (when (and estimate-ms (pos? estimate-ms))
    (let [done (if (and row (:n part)) (/ items (:n part)) 0)]
      (min 1.0 (double (/ (+ spent-ms (* done (if row (share row) 0))) estimate-ms))))))

(defn left-ms
  "Returns how long the rest will take, in ms: as planned, corrected by how the run has gone so
  far."
  [{:keys [estimate-ms], :as state} elapsed-ms]
  (when-let [done (fraction state)]
    (let [pace (if (< 0.05 done) (/ elapsed-ms (* done estimate-ms)) 1.0)]
      (* (- 1.0 done) estimate-ms pace))))

(defn- on-one-line [line]
  (if (< line-width (count line))
    (str (subs line 0 (dec line-width)) "…")
    line))

(defn bar
  "Returns the line that shows a state after elapsed-ms, of at most 79 columns."
  [{:keys [part row items] :as state} elapsed-ms]
  (let [done (fraction state), full (Math/round (double (* bar-width (or done 0.0))))]
    (on-one-line
      (str (if done
             (str (str/join (repeat full "█")) (str/join (repeat (- bar-width full) "░"))
                  "  " (text/duration (left-ms state elapsed-ms)) " left")
             (str items " done, " (text/duration elapsed-ms)))
           (when row (str "  " (name (:part part)) ": " (:name row)))))))

(defn- outcome [{:keys [interrupted? ms took-ms per-second error points row]}]
  (cond
    (:skipped row) (str "skipped: " (:skipped row))
    points (str/join ", " (map (fn [[n ms]] (str n ": " (text/ms ms))) points))
    interrupted? "interrupted"
    per-second (text/per-second per-second)
    (and error (nil? ms)) (:message error)
    :else (text/ms (or ms took-ms))))

(defn line
  "Returns the line for an event in a pipe, or nil."
  [{:keys [event plan part row sample reason]} state elapsed-ms]
  (case event
    :experiment-skipped (str "Skipped: " (:title plan) " (" reason ").")
    :experiment-starts (str (:title plan) ": " (:about plan))
    :sample-ends (str (name (:part part))
                      ": "
                      (:name row)
                      " "
                      (outcome sample)
                      (when (pos? (or (:failed sample) 0)) (str ", " (:failed sample) " failed"))
                      (when-let [left (left-ms state elapsed-ms)]
                        (str " (" (text/duration left) " left)")))
    nil))

(defn- say [^Writer out & words]
  (locking out
    (.write out ^String (str/join words))
    (.flush out)))

(def ^:private wipe "\r\u001b[2K")

(defn- redraw
  "Draws the bar, unless this thread has been interrupted: then it has been wiped for good."
  [out state started]
  (locking out
    (when-not (.isInterrupted (Thread/currentThread))
      (say out wipe (bar @state (- (measure/now-ms) started))))))

(defn- keep-drawing [out state started]
  (.start (Thread/ofVirtual)
          #(try
             (while true
               (redraw out state started)
               (Thread/sleep (long tick-ms)))
             (catch InterruptedException _))))

(defn- on-terminal [out state started]
  (let [^Thread painter (keep-drawing out state started)]
    {:emit! #(swap! state step %)
     ;; Without a wait: an interrupt of the run would end that, and with it the run's result.
     :close! #(locking out
                (.interrupt painter)
                (say out wipe))}))

(defn- in-pipe [out state started]
  {:emit! (fn [event]
            (let [now (swap! state step event)]
              (when-let [text (line event now (- (measure/now-ms) started))]
                (say out text "\n"))))
   :close! (constantly nil)})

(defn show!
  "Starts to show a plan's progress on out. Returns {:emit! f :close! f}; emit! takes the events of
  thrum.lab.run, on any thread."
  [plan out terminal?]
  ((if terminal? on-terminal in-pipe) out (atom (start plan)) (measure/now-ms)))

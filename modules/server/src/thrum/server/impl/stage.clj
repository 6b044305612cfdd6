(ns thrum.server.impl.stage
  "The life of an exchange as a pure function of its stage and of what happens.

  Stages: :open, before the first byte of the response; :reading, the same while a read of the
  request's body blocks; :committed, the response has begun; :streaming, it is a stream of events;
  :socket, it has become a websocket; :done, its last byte has been sent; :left, its thread has
  ended. An exchange that another thread has ended is at the stage of that end, one of
  thrum.server.impl.stage/ends.

  Events: :begin, the request's scope begins; :handle, its handler is to be called; :read and
  :read-ended; :commit, the response is to begin; :stream, a stream of events is to begin;
  :upgrade, it has become a websocket; :finish, the last byte has been sent; :fail, its handler or
  its body threw; :leave; and each of the ends.

  Effects: :refuse, the event comes too late; :answer, 503 is sent instead of the handler's
  response, but after :fail it means the error handler's response; :cut, the connection ends;
  :cancel, the request's scope is cancelled; :log; :count and :observe, the end is counted and
  observed; :overdue, the client was answered or cut and the thread still runs; :not-overdue, that
  thread has ended."
  {:no-doc true})

(set! *warn-on-reflection* true)

;; What most requests go through is written out: vectors of constants are made once.

(def ends
  "Why another thread ends an exchange: its deadline, a client that is too slow or has gone, the
  end of the server."
  #{:thrum/timeout :slow :disconnected :shutdown})

(defn ended?
  "True if another thread has ended the exchange."
  [stage]
  (case stage
    (:thrum/timeout :slow :disconnected :shutdown) true
    false))

(defn- begin [stage]
  (case stage
    :open [:open []]
    [stage (if (ended? stage) [:cancel] [])]))

;; An exchange that has been answered never starts its handler.
(defn- handle [stage]
  (case stage
    :open [:open []]
    :reading [:reading []]
    [stage [:refuse]]))

(defn- read-body [stage]
  (case stage
    (:open :reading) [:reading []]
    (:committed :streaming :socket) [stage []]
    [stage [:refuse]]))

(defn- read-ended [stage]
  [(if (= :reading stage) :open stage) []])

(defn- commit [stage]
  (case stage
    (:open :reading :committed) [:committed []]
    :streaming [:streaming []]
    [stage [:refuse]]))

(defn- stream [stage]
  (case stage
    (:open :reading :committed :streaming) [:streaming []]
    [stage [:refuse]]))

(defn- upgrade [stage]
  [(if (= :committed stage) :socket stage) []])

(defn- finish [stage]
  (case stage
    (:committed :streaming) [:done []]
    [stage (if (ended? stage) [:refuse] [])]))

(defn- failed [stage]
  [stage (case stage
           (:open :reading) [:answer]
           (:committed :streaming) [:cut :log]
           (:socket :done) [:log]
           [])])

(defn- leave [stage]
  (if (ended? stage) [:left [:not-overdue]] [:left []]))

(defn- unanswered
  "Returns the effect that ends an exchange before its response has begun: no answer reaches a
  client that has gone."
  [reason]
  (case reason
    (:thrum/timeout :shutdown) :answer
    (:slow :disconnected) :cut))

(defn- ending [effect reason]
  (if (= :shutdown reason)
    [:overdue effect :cancel]
    [:overdue :count effect :cancel :observe]))

;; The observer may block, and comes last.
(defn- end
  "Returns [stage effects] where another thread ends the exchange for one of ends: the table of 503
  and cut. Before the response has begun (:open) a deadline or a shutdown is answered with 503; a
  client that has gone or is too slow is cut. Where a read of the body blocks, or the response has
  begun, each of the ends cuts. A deadline does nothing to a stream of events, or after the last
  byte, where the other ends only cancel the handler. A websocket and an exchange that has ended
  stay as they are."
  [stage reason]
  (case stage
    :open [reason (ending (unanswered reason) reason)]
    (:reading :committed) [reason (ending :cut reason)]
    :streaming (if (= :thrum/timeout reason) [stage []] [reason (ending :cut reason)])
    :done (if (= :thrum/timeout reason) [stage []] [reason [:overdue :cancel]])
    [stage []]))

(defn step
  "Returns [stage effects] for an event at a stage; effects in their order."
  [stage event]
  (case event
    :begin (begin stage)
    :handle (handle stage)
    :read (read-body stage)
    :read-ended (read-ended stage)
    :commit (commit stage)
    :stream (stream stage)
    :upgrade (upgrade stage)
    :finish (finish stage)
    :fail (failed stage)
    :leave (leave stage)
    (:thrum/timeout :slow :disconnected :shutdown) (end stage event)))

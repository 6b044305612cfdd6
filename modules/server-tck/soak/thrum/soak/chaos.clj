(ns thrum.soak.chaos
  "Deadlines, disconnects and handlers that end at about the same moment: each request gets one
  answer, its own, and no interrupt that is not its own."
  (:require
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(def ^:private deadline-ms 25)

(def ^:private filler (str/join (repeat 3000 "f")))

(defn- record
  "Returns the records of a run: :never, a promise that is not delivered; :entered, how often each
  request was handled; :gone, the requests whose client left, marked before it does; :strays and
  :interrupted, counters of interrupts."
  []
  {:never (promise)
   :entered (ConcurrentHashMap.)
   :gone (ConcurrentHashMap.)
   :strays (AtomicLong.)
   :interrupted (AtomicLong.)})

;; Handlers

(defn- note-interrupt!
  "An interrupt is the request's own when its deadline has come, or its client has gone."
  [{:keys [^ConcurrentHashMap gone ^AtomicLong strays ^AtomicLong interrupted]} id]
  (.incrementAndGet interrupted)
  (when-not (or (.containsKey gone id) (< (long (t/remaining-ms)) 2))
    (.incrementAndGet strays)))

(defn- wait!
  "Takes its time, within what a handler may do: end at the interrupt, throw it on, leave the flag
  behind, or go on regardless."
  [{:keys [never] :as record} id]
  (let [ms (stage/chance (* 2 (long deadline-ms)))]
    (try
      (deref never ms nil)
      (catch InterruptedException e
        (note-interrupt! record id)
        (case (stage/chance 4)
          0 (throw e)
          1 (.interrupt (Thread/currentThread))
          2 (deref never ms nil)
          3 nil)))))

(defn- enter!
  "Notes that the handler was called: with an interrupt only if the deadline came before."
  [{:keys [^ConcurrentHashMap entered] :as record} id]
  (.merge entered id 1 +)
  (when (.isInterrupted (Thread/currentThread)) (note-interrupt! record id)))

(defn- slow-body [{:keys [never]} id]
  (map (fn [part] (deref never (stage/chance 10) nil) part) [id filler]))

(defn- response
  [record id]
  {:status 200
   :headers {"X-Id" id}
   :body (if (zero? (stage/chance 3)) (slow-body record id) (str id filler))})

(defn- id-of [request] (subs (:uri request) 1))

(defn- handle [record]
  (fn [request]
    (let [id (id-of request)]
      (enter! record id)
      (wait! record id)
      (response record id))))

(defn- answer-later!
  "Answers from another thread, sometimes twice."
  [{:keys [never]} id respond raise]
  (Thread/startVirtualThread
    (fn []
      (deref never (stage/chance (* 2 (long deadline-ms))) nil)
      (when (zero? (stage/chance 10)) (raise (ex-info "chaos" {})))
      (dotimes [_ (inc (stage/chance 2))]
        (respond {:status 200, :headers {"X-Id" id}, :body (str id filler)})))))

(defn- handle-async [record]
  (fn [request respond raise]
    (let [id (id-of request)]
      (enter! record id)
      (when (zero? (stage/chance 3)) (wait! record id))
      (answer-later! record id respond raise))))

;; Clients

(defn- judged
  "Returns what became of a request, or a map that says what is wrong."
  [id {:keys [status body] :as answer}]
  (cond
    (and (nil? status) (#{:eof :reset} (:ended answer))) :cut-before
    (and (nil? status)) {:id id, :answer answer}
    (and (= 200 status) (not= id (wire/header answer "x-id"))) {:id id, :headers (:headers answer)}
    (not (wire/complete? answer)) (if (= :silent (:ended answer)) {:id id, :answer :silent} :cut)
    (= 200 status) (if (= (str id filler) body) :answered {:id id, :body body})
    (#{500 503} status) status
    :else {:id id, :answer answer}))

(defn- leave!
  "Asks, and goes at any moment."
  [{:keys [^ConcurrentHashMap gone]} c id]
  (.put gone id true)
  (wire/try-send! c (wire/get (str "/" id)))
  (stage/pause! (stage/chance 30))
  (if (zero? (stage/chance 2)) (wire/reset!! c) (wire/close! c))
  :left)

(defn- closes? [answer]
  (or (= "close" (wire/header answer "connection")) (not (wire/complete? answer))))

(defn- ask-some!
  "Asks one or two requests at once on the connection; returns what became of each, and whether the
  connection goes on. What is behind an answer that closes the connection must not have been
  handled: it is :behind."
  [c ids]
  (wire/try-send! c (str/join (map #(wire/get (str "/" %)) ids)))
  (loop [fates {}, [id & more] ids]
    (let [answer (wire/response c)
          fates (assoc fates id (judged id answer))]
      (cond
        (closes? answer) [(into fates (map #(vector % :behind)) more) false]
        more (recur fates more)
        :else [fates true]))))

(defn- expect-silence
  "Returns the fates, and one more if the server sends an answer to no request."
  [fates c]
  (cond-> fates (= :data (wire/after c 1)) (assoc :more {:more :data})))

(defn- converse!
  "One connection: asks again and again, until it is closed or the client leaves; returns what
  became of the requests, by id."
  [record port ^AtomicLong ids]
  (stage/with-client [c port]
    (loop [fates {}, n 20]
      (let [mine (vec (repeatedly (inc (stage/chance 2)) #(str (.incrementAndGet ids))))]
        (if (zero? (stage/chance 10))
          (assoc fates (first mine) (leave! record c (first mine)))
          (let [[more goes-on] (ask-some! c mine), fates (into fates more)]
            (if (and goes-on (pos? n)) (recur fates (dec n)) (expect-silence fates c))))))))

(defn- converse-for! [record port ms]
  (let [ids (AtomicLong.), fates (ConcurrentHashMap.)]
    (stage/until 24 ms #(.putAll fates (converse! record port ids)))
    fates))

;; Verdict

(defn- expect-own
  [{:keys [^ConcurrentHashMap entered ^AtomicLong strays]} ^ConcurrentHashMap fates]
  (let [wrong (filter map? (.values fates))
        twice (filter (fn [[_ n]] (< 1 (long n))) entered)
        behind (filter (fn [[id fate]] (and (= :behind fate) (.containsKey entered id))) fates)]
    (expect (empty? wrong)
            "that each request gets its own answer"
            {:count (count wrong), :first (take 3 wrong)})
    (expect (empty? twice) "that each request is handled once" (take 3 twice))
    (expect (empty? behind)
            "that nothing is handled behind an answer that closes the connection"
            (take 3 behind))
    (expect (zero? (.get strays)) "no interrupt but the request's own" (.get strays))))

(defn- chaos!
  [{:keys [seconds engine], :as stage} handler options]
  (let [record (record)
        watches? (contains? (server/capabilities engine) :disconnect)
        server (stage/serve stage
                            (handler record)
                            (merge {:request-timeout-ms deadline-ms
                                    :interrupt-on-disconnect? watches?}
                                   options))
        fates (converse-for! record (server/port server) (* 1000 (long seconds)))]
    (expect-own record fates)
    (stage/expect-quiet server)
    (let [{:keys [timed-out disconnected]} (server/status server)]
      {:fates (frequencies (vals fates))
       :interrupted (.get ^AtomicLong (:interrupted record))
       :timed-out timed-out
       :disconnected disconnected})))

(defn- with-strays
  "Has each handler's thread interrupted by a foreign thread, a millisecond later."
  [stage]
  (assoc stage :wrap (fn [handler]
                       (fn [& args]
                         (let [thread (Thread/currentThread)]
                           (Thread/startVirtualThread #(do (stage/pause! 1) (.interrupt thread)))
                           (apply handler args))))))

(defn- with-mixed-ids
  "Has every hundredth request answered with another's id."
  [stage]
  (let [ids (AtomicLong.)]
    (assoc stage
           :wrap
           (fn [handler]
             (fn [request & more]
               (apply handler
                      (cond-> request (zero? (mod (.incrementAndGet ids) 100)) (assoc :uri "/1"))
                      more))))))

(def ^:private controls
  [["a foreign thread interrupts the handlers" with-strays]
   ["requests get each other's ids" with-mixed-ids]])

(def ^:private chaos
  {:name "chaos"
   :sentence
   (str "However a request ends, its client gets one answer, its own, and no interrupt reaches "
        "another request.")
   :controls controls
   :run #(chaos! % handle {})})

(def ^:private chaos-async
  {:name "chaos-async"
   :sentence
   "So it is with asynchronous handlers, who answer late, twice, or after they have failed."
   :controls controls
   :run #(chaos! % handle-async {:async? true})})

(def ordeals
  "The ordeals of this namespace."
  [chaos chaos-async])

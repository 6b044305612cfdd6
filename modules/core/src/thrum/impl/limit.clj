(ns thrum.impl.limit
  "Permits that many callers share: how many of them may be inside at once. Permits are granted in
  the order of asking. Every waiter parks on its own and leaves in constant time."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.permits :as permits]
   [thrum.impl.registry :as registry]
   [thrum.impl.show :as show]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.wait :as wait])
  (:import
   (java.lang AutoCloseable)
   (java.util ArrayList HashMap LinkedHashSet)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(definterface IPermit
  (^long least [])                  ; how many there must be, for it to be granted
  (^Object setLeast [^long n])
  (^boolean isHeld [])
  (^Object setHeld [^boolean held])
  (heir [])                         ; another that was granted with it, or nil
  (^Object setHeir [permit])
  (before [])                       ; its neighbours among the lent, or nil
  (^Object setBefore [permit])
  (behind [])
  (^Object setBehind [permit]))

;; No protocols: with them a permit costs 1.4 x the CPU (decision 32).
(definterface ILimiter
  (^Object lend [permit])           ; under the lock, as the next two
  (^Object takeBack [permit])
  (^Object hold [permit ^boolean held]) ; records that the permit is held, or not any more
  (ask [permit])                    ; nil: held, or waits; else :deadlock, or the full queue's facts
  (^boolean tryAsk [permit])        ; true: held
  (grant [])                        ; under the lock: the permits to be held now, by heir, or nil
  (leave [permit])                  ; as giveBack, out of the queue; nil: it was not there
  (^boolean withdraw [permit])      ; true if it was in the queue
  (giveBack [permit])               ; the permits to be held now, or :none; nil: it was not held
  (^boolean release [permit])       ; true if it was held
  (^long permits [])
  (^long inUse [])
  (^long granted [])                ; how often a permit has been
  (^Object setPermits [^long n])    ; returns the permits to be held now, by heir, or nil
  (refused [])                      ; counts a refusal; returns the facts
  (facts [])
  (^java.util.List askers [])
  (^java.util.Map owners []))

;; asker: the thread that asked for it. own: true if only that thread returns it. weight: for how
;; many permits it stands.
(deftype Permit [limiter ^Thread asker own ^long weight ^:volatile-mutable held
                 ^:unsynchronized-mutable ^long least ^:unsynchronized-mutable heir
                 ^:unsynchronized-mutable before ^:unsynchronized-mutable behind]
  IPermit
  (least [_] least)
  (setLeast [_ n] (set! least n))
  (heir [_] heir)
  (setHeir [_ permit] (set! heir permit))
  (before [_] before)
  (setBefore [_ permit] (set! before permit))
  (behind [_] behind)
  (setBehind [_ permit] (set! behind permit))
  (isHeld [_] held)
  (setHeld [_ h] (set! held h))

  permits/Permit
  (release! [this] (.close this))

  AutoCloseable
  (close [this]
    (when-not (.release ^ILimiter limiter this)
      (throw (error/invalid "This permit has been returned already"
                            (.facts ^ILimiter limiter))))))

(defn- own-permits ^long [^HashMap owned thread]
  (long (.getOrDefault owned thread 0)))

(defn- own!
  "Records that the thread of the permit holds it, or not any more."
  [^HashMap owned ^Permit permit held]
  (let [thread (.-asker permit)
        w (.-weight permit)
        n (+ (own-permits owned thread) (if held w (- w)))]
    (if (zero? n) (.remove owned thread) (.put owned thread n))))

(defn- expect!
  "Makes the entry for a permit that waits: granting it must not need memory."
  [^HashMap owned ^Permit permit]
  (when (.-own permit) (.putIfAbsent owned (.-asker permit) 0)))

(defn- drop-empty!
  "Drops the entry of a thread that holds nothing."
  [^HashMap owned ^Permit permit]
  (when (zero? (own-permits owned (.-asker permit)))
    (.remove owned (.-asker permit))))

(defn- chain
  "Returns the permit and those behind it; none for nil."
  [permit]
  (let [permits (ArrayList.)]
    (loop [^Permit permit permit]
      (when permit
        (.add permits permit)
        (recur (.behind permit))))
    permits))

(defn- wake-stuck!
  "Wakes those that wait for more than so many permits leave them: they would wait for ever."
  [waiting ^long permits]
  (doseq [^Permit permit waiting]
    (when (< permits (.least permit)) (LockSupport/unpark (.-asker permit)))))

(defn- wake! [heirs]
  (loop [heirs heirs]
    (when (instance? Permit heirs)
      (let [next-heir (.heir ^Permit heirs)]
        (.setHeir ^Permit heirs nil)
        (LockSupport/unpark (.-asker ^Permit heirs))
        (recur next-heir)))))

;; owned: by thread, how many permits it holds that only it can return; 0 while it waits for the
;; first. lent: the first of those that any thread may return, and that are held; each has its
;; neighbours: to lend one needs no memory. The first that waits needs more permits than are free: a
;; returned permit is handed over, not put back. most: the largest least of those that have waited.
(deftype Limiter [name ^:volatile-mutable ^long permits queue wait-ms
                  ^HashMap owned ^LinkedHashSet waiting
                  ^:unsynchronized-mutable lent
                  ^:unsynchronized-mutable ^long most
                  ^:unsynchronized-mutable ^long in-use
                  ^:unsynchronized-mutable ^long granted
                  ^:unsynchronized-mutable ^long rejected]
  ILimiter
  (lend [_ permit]
    (when lent (.setBefore ^Permit lent permit))
    (.setBehind ^Permit permit lent)
    (set! lent permit))
  (takeBack [_ permit]
    (let [before (.before ^Permit permit), behind (.behind ^Permit permit)]
      (if before (.setBehind ^Permit before behind) (set! lent behind))
      (when behind (.setBefore ^Permit behind before))
      (.setBefore ^Permit permit nil)
      (.setBehind ^Permit permit nil)))
  (hold [this permit held]
    (cond
      (.-own ^Permit permit) (own! owned permit held)
      held (.lend this permit)
      :else (.takeBack this permit))
    (.setHeld ^Permit permit held))
  (ask [this permit]
    (locking this
      (when-not (.tryAsk this permit)
        (let [^Permit permit permit, w (.-weight permit), own (own-permits owned (.-asker permit))]
          (cond
            (< (- permits own) w) :deadlock
            (and queue (<= (long queue) (.size waiting))) (.refused this)
            :else (do
                    (expect! owned permit)
                    (.setLeast permit (+ w own))
                    (set! most (max most (.least permit)))
                    (.add waiting permit)
                    nil))))))
  (tryAsk [this permit]
    (locking this
      (let [w (.-weight ^Permit permit), free (and (.isEmpty waiting) (<= w (- permits in-use)))]
        (when free
          (.hold this permit true)
          (set! granted (inc granted))
          (set! in-use (+ in-use w)))
        free)))
  (grant [this]
    (loop [heirs nil]
      (let [^Permit head (when-not (.isEmpty waiting) (.getFirst waiting))]
        (if (and head (<= (.-weight head) (- permits in-use)))
          (do
            (.removeFirst waiting)
            (.hold this head true)
            (set! granted (inc granted))
            (set! in-use (+ in-use (.-weight head)))
            (.setHeir head heirs)
            (recur head))
          heirs))))
  (leave [this permit]
    (locking this
      (let [waited (.remove waiting permit)]
        (drop-empty! owned permit)
        (when waited (or (.grant this) :none)))))
  (withdraw [this permit]
    (let [heirs (.leave this permit)]
      (wake! heirs)
      (some? heirs)))
  (giveBack [this permit]
    (locking this
      (when (.isHeld ^Permit permit)
        (.hold this permit false)
        (set! in-use (- in-use (.-weight ^Permit permit)))
        (or (.grant this) :none))))
  (release [this permit]
    (let [heirs (.giveBack this permit)]
      (try
        (when (instance? Permit heirs) (sync-point/reached :limit/release))
        (finally (wake! heirs)))
      (some? heirs)))
  (permits [_] permits)
  (inUse [this]
    (locking this in-use))
  (granted [this]
    (locking this granted))
  (setPermits [this n]
    (locking this
      (let [fewer (< n permits)]
        (set! permits n)
        ;; Most wait for what any limit leaves them, and a limit may fall at each use.
        (when (and fewer (< n most)) (wake-stuck! waiting n)))
      (.grant this)))
  (refused [this]
    (locking this
      (set! rejected (inc rejected))
      (.facts this)))
  (facts [this]
    (locking this
      (cond-> {:permits permits, :in-use in-use, :waiting (.size waiting), :rejected rejected}
        name (assoc :limiter name)
        queue (assoc :queue queue)
        wait-ms (assoc :wait-ms wait-ms))))
  (askers [this]
    (locking this (mapv #(.-asker ^Permit %) waiting)))
  (owners [this]
    (let [[owned permits] (locking this [(HashMap. owned) (chain lent)])]
      (reduce (fn [n-of ^Permit permit]
                (update n-of (.-asker permit) (fnil + 0) (.-weight permit)))
              (into {} (filter (comp pos? val)) owned)
              permits)))

  protocols/Datafiable
  (datafy [this] (.facts this)))

(defn limiter
  "Returns a limiter with so many permits. Options, which are not checked: :queue - how many may
  wait; :wait-ms - how long, at most; :name - for its errors. Throws :thrum/invalid."
  ^Limiter [permits {:keys [queue wait-ms name]}]
  (when-not (pos-int? permits)
    (throw (error/invalid
             (str "A limiter of " (show/text permits) " permits: it must be a positive integer")
             {:option :permits, :value permits, :accepts "a positive integer"})))
  (doto (Limiter. name permits queue wait-ms (HashMap.) (LinkedHashSet.) nil 0 0 0 0)
    (as-> limiter (registry/register! :limiter limiter nil))))

;; What is thrown when there is no permit

(defn- state [{:keys [permits in-use waiting]}]
  (str in-use " of " permits " in use, " waiting " waiting"))

;; Asking and returning

(defn- ask! [^Limiter limiter permit]
  (when-some [refusal (.ask limiter permit)]
    (throw (if (= :deadlock refusal)
             (permits/held-already (.facts limiter))
             (permits/queue-full (state refusal) refusal)))))

(defn- deadline [^Limiter limiter]
  (some-> (.-wait-ms limiter) deadline/in-ms))

(defn- await-grant! [^Limiter limiter ^Permit permit]
  (sync-point/reached :limit/enqueue)
  (let [stuck? #(< (.permits limiter) (.least permit))]
    (when-not (wait/until limiter (deadline limiter) #(or (.isHeld permit) (stuck?)))
      (sync-point/reached :limit/withdraw)
      ;; Not in the queue: granted concurrently. Keep the permit.
      (when (.withdraw limiter permit)
        (let [facts (.refused limiter)]
          (throw (permits/too-late (state facts) facts)))))
    (when-not (.isHeld permit)
      (throw (permits/held-already (.facts limiter)))))
  (sync-point/reached :limit/grant))

(defn- give-up!
  "Leaves the queue. A permit that was granted meanwhile is handed on."
  [^Limiter limiter permit]
  (try
    (sync-point/reached :limit/withdraw)
    (finally
      (or (.withdraw limiter permit)
          (.release limiter permit)))))

(defn- permit ^Permit [^Limiter limiter own n]
  (let [n (permits/checked-weight n (.permits limiter))]
    (Permit. limiter (Thread/currentThread) own n false 0 nil nil nil)))

(defn- take! ^Permit [limiter own n]
  (wait/check!)
  (let [permit (permit limiter own n)]
    (try
      (ask! limiter permit)
      (when-not (.isHeld permit) (await-grant! limiter permit))
      permit
      (catch Throwable t
        (give-up! limiter permit)
        (throw t)))))

(defn acquire!
  "Returns a permit, a java.lang.AutoCloseable: at once if one is free, otherwise in the order of
  asking. Blocks for at most the limiter's :wait-ms. Throws :thrum/rejected when the queue is full
  or the time has passed; :thrum/deadlock when call-with further up on this thread holds all
  permits; CancellationException and InterruptedException, even if a permit is free. n: for how many
  permits it stands, 1 by default."
  (^Permit [limiter] (take! limiter false 1))
  (^Permit [limiter n] (take! limiter false n)))

(defn- try-acquire! [^Limiter limiter n]
  (let [permit (permit limiter false n)]
    (when (.tryAsk limiter permit) permit)))

(defn release!
  "Returns the permit to its limiter, which grants it to the first waiter. Any thread may call this.
  Never blocks. Throws :thrum/invalid when the permit has been returned already."
  [^Permit permit]
  (.close permit))

(defn acquire-own!
  "As acquire!, for a permit that only the calling thread will return: where it holds all of them
  so, it would wait for ever."
  ^Permit [limiter]
  (take! limiter true 1))

(defn resize!
  "Makes the number of permits another, from now on: permits in use beyond it are not taken back."
  [^Limiter limiter ^long n]
  (wake! (.setPermits limiter n)))

(defn in-use
  "Returns how many permits are held."
  ^long [^Limiter limiter]
  (.inUse limiter))

(defn call-with
  "Returns the value of f, called while the thread holds a permit; see acquire!."
  ([limiter f] (call-with limiter 1 f))
  ([limiter n f]
   (let [permit (take! limiter true n)]
     (try
       (f)
       (finally (release! permit))))))

(extend-type Limiter
  permits/Permits
  (acquire! [limiter n] (acquire! limiter n))
  (try-acquire! [limiter n] (try-acquire! limiter n))
  (call-with [limiter n f] (call-with limiter n f)))

(defn facts
  "Returns what the limiter knows of itself; :askers - the threads that wait, in the order of
  asking; :owners - by thread, how many of the permits that it asked for have not been returned;
  :granted - how often a permit has been granted."
  [^Limiter limiter]
  (assoc (.facts limiter)
         :askers (.askers limiter)
         :owners (.owners limiter)
         :granted (.granted limiter)))

(defmethod print-method Limiter [^Limiter limiter ^java.io.Writer w]
  (.write w "#<limiter ")
  (print-method (.facts limiter) w)
  (.write w ">"))

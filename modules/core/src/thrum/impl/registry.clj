(ns thrum.impl.registry
  "The things of this process that can be shown. Long-lived ones are always kept. Scopes, fan-outs
  and tasks, which come and go by the thousand, are kept only while watching is on. All are held
  weakly."
  {:no-doc true}
  (:import
   (java.lang.ref WeakReference)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap ThreadLocalRandom)
   (java.util.concurrent.atomic AtomicLong AtomicLongArray AtomicReference)))

(set! *warn-on-reflection* true)

;; describe: a function of the thing to a map, or nil. since: a value of System/nanoTime. thread:
;; the one that made the thing, weakly: also when it has ended it holds its function, and what that
;; holds, the thing for instance. label: the name of a thing that ends before it is collected,
;; unless it waits for ever; nil for others. hash: the JVM's own costs 24 ns more.
(deftype Entry [kind ^WeakReference thing describe ^long since ^WeakReference thread label
                ^long hash]
  Object
  (hashCode [_] (unchecked-int hash)))

(defn- entry ^Entry [kind thing describe since label]
  (Entry. kind (WeakReference. thing) describe (long since) (WeakReference. (Thread/currentThread))
    label (.nextInt (ThreadLocalRandom/current))))

(defn- collected? [^Entry entry]
  (nil? (.get ^WeakReference (.-thing entry))))

;; crowd: with more entries, those whose thing was collected are removed.
(deftype Entries [^Set all ^AtomicLong crowd])

(defn- entries ^Entries []
  (Entries. (ConcurrentHashMap/newKeySet) (AtomicLong. 1024)))

(defn- forget-collected! [^Entries entries]
  (let [^Set all (.-all entries)]
    (run! #(when (and (collected? %) (nil? (.-label ^Entry %))) (.remove all %)) all)
    (.set ^AtomicLong (.-crowd entries) (+ 1024 (* 2 (.size all))))))

(defn- add! [^Entries entries entry]
  (let [^Set all (.-all entries)]
    (.add all entry)
    (when (< (.get ^AtomicLong (.-crowd entries)) (.size all)) (forget-collected! entries))
    entry))

(defn- remove! [^Entries entries entry]
  (.remove ^Set (.-all entries) entry))

;; Called for every task: a protocol's calls cost some ns more, of some 600 for an item of pmap.
(definterface IWatch
  (^long now [])
  (^int stamp [])
  (^Object tick [])
  (observer [])
  (^Object observe [f])
  (^Object count [^long how])
  (^long total [^long how]))

(def ^:private ^:const stripes 8)

(defn- cell
  "Returns the index of a count. Each stripe is a cache line."
  ^long [^long stripe ^long how]
  (+ (* 8 (bit-and stripe (dec (long stripes)))) how))

;; A task keeps its time in 32 bits: with them it takes 64 bytes, a cache line, and not 72.

(def ^:private ^:const stamp-ns "What a stamp counts: 32 bits are 497 days." 10000000)

(def ^:private base "The time that stamps count from, of System/nanoTime." (System/nanoTime))

(defn- stamps-in
  "Returns how many stamps the ns after base take, rounded up."
  ^long [^long nanos]
  (quot (+ nanos (dec (long stamp-ns))) (long stamp-ns)))

(defn- stamp-of
  "Returns the stamp of a time; no time has 0."
  ^long [^long time]
  (let [n (unchecked-int (stamps-in (- time (long base))))]
    (if (zero? n) 1 n)))

(defn since
  "Returns the time of a stamp, less than 10 ms too late, a value of System/nanoTime; 0 for 0."
  ^long [^long stamp]
  (if (zero? stamp)
    0
    (let [now (- (System/nanoTime) (long base))
          age (bit-and 0xffffffff (- (stamps-in now) stamp))]
      (+ (long base) (min now (* (long stamp-ns) (- (stamps-in now) age)))))))

;; time: that of the last tick; time-stamp: the same as a stamp. observer: nil, or see observe!.
(deftype Watch [^Entries entries ^AtomicLongArray counts ^:volatile-mutable ^long time
                ^:volatile-mutable ^int time-stamp
                ^:volatile-mutable observer]
  IWatch
  (now [_] time)
  (stamp [_] time-stamp)
  (observer [_] observer)
  (observe [_ f] (set! observer f) nil)
  (tick [_]
    (let [now (System/nanoTime)]
      (set! time now)
      (set! time-stamp (int (stamp-of now))))
    nil)
  (count [_ how]
    (.getAndIncrement counts (cell (.threadId (Thread/currentThread)) how)))
  (total [_ how]
    (loop [stripe 0, sum 0]
      (if (< stripe (long stripes))
        (recur (inc stripe) (+ sum (.get counts (cell stripe how))))
        sum))))

(def ^:private ^Watch watch nil)

(defn- new-watch []
  (let [now (System/nanoTime)]
    (Watch. (entries) (AtomicLongArray. (* 8 (long stripes))) now (int (stamp-of now)) nil)))

(defn watch!
  "Keeps scopes, fan-outs and tasks from now on, or no more. Returns whether that is a change."
  [on?]
  (locking #'watch
    (let [change? (not= on? (some? watch))]
      (when change? (alter-var-root #'watch (constantly (when on? (new-watch)))))
      change?)))

(defn watching?
  "True while watching is on."
  []
  (some? watch))

(defn tick!
  "Brings the time that things are stamped with up to date."
  []
  (when-some [^Watch w watch] (.tick w)))

(defn stamp
  "Returns the time of the last tick for a task, see since; 0 while watching is off. A call of
  System/nanoTime for each task would cost 4 % of an item of pmap, and more on some machines."
  ^long []
  (if-some [^Watch w watch] (.stamp w) 0))

(defn keep!
  "Keeps a thing until forget!, or until it is collected. Returns what forget! takes; nil while
  watching is off."
  [kind thing]
  (when-some [^Watch w watch]
    (add! (.-entries w) (entry kind thing nil (.now w) nil))))

(defn entry-ref
  "Returns an empty reference, for the entry of a task; nil while watching is off."
  ^AtomicReference []
  (when watch (AtomicReference.)))

(defn keep-task!
  "Keeps a task of that name until forget!: where it is collected before, see leaked!. Puts into the
  reference (nil: none) what forget! takes."
  [^AtomicReference entry-ref task name]
  (when entry-ref
    (when-some [^Watch w watch]
      (.set entry-ref (add! (.-entries w) (entry :task task nil (.now w) name))))))

(defn forget!
  "Keeps a thing no more. nil has no effect."
  [entry]
  (when entry
    (when-some [^Watch w watch] (remove! (.-entries w) entry))))

(defn leaked!
  "Returns the tasks that were collected before they ended, as maps of :name and :since, each once:
  they waited for an object without another reference."
  []
  (when-some [^Watch w watch]
    (into []
          (comp (filter #(and (.-label ^Entry %) (collected? %)))
                (filter #(remove! (.-entries w) %))
                (map (fn [^Entry entry] {:name (.-label entry), :since (.-since entry)})))
          (.-all ^Entries (.-entries w)))))

(defn count-end!
  "Counts a task that has ended: 0, with a value; 1, failed; 2, cancelled."
  [^long how]
  (when-some [^Watch w watch] (.count w how)))

(defn observe!
  "Has f called, (f kind thing), on the thread of each task and scope that begins from now on; see
  thrum.spi.watch/observe!. nil: none. No effect while watching is off."
  [f]
  (when-some [^Watch w watch] (.observe w f)))

(defn observe-begin!
  "Calls the observer. Returns its function of the end, or nil."
  [kind thing]
  (when-some [^Watch w watch]
    (when-some [f (.observer w)] (f kind thing))))

(defn observe-end!
  "Calls what observe-begin! returned, or nil, with the thing that has ended."
  [f thing]
  (when f (f thing)))

(defn ended-counts
  "Returns how many tasks have ended since watch!, as {:done n, :failed n, :cancelled n}; nil while
  watching is off."
  []
  (when-some [^Watch w watch]
    {:done (.total w 0), :failed (.total w 1), :cancelled (.total w 2)}))

;; What is kept always

(def ^:private ^Entries long-lived (entries))

(defn register!
  "Keeps the thing, weakly; describe: a function of it to a map. Returns what unregister! takes."
  [kind thing describe]
  (add! long-lived (entry kind thing describe (System/nanoTime) nil)))

(defn unregister!
  "Takes a registration back."
  [entry]
  (remove! long-lived entry)
  nil)

;; What is shown

(defn- shown [^Entry entry]
  (when-some [thing (.get ^WeakReference (.-thing entry))]
    {:kind (.-kind entry), :thing thing, :describe (.-describe entry)
     :since (.-since entry), :thread (.get ^WeakReference (.-thread entry))}))

(defn registered
  "Returns all that is kept, as maps of :kind, :thing, :describe, :since and :thread, nil where that
  was collected."
  []
  (let [^Watch w watch]
    (into [] (comp (mapcat #(.-all ^Entries %)) (keep shown))
          (cond-> [long-lived] w (conj (.-entries w))))))

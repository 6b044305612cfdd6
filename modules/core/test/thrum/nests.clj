(ns thrum.nests
  "Nests of forms, for tests of whose interrupt is whose: given ones, on one thread, and random
  ones, in real time, that another thread may interrupt."
  (:require
   [thrum.alarms :as alarms]
   [thrum.core :as t])
  (:import
   (java.time Duration)
   (java.util SplittableRandom)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; Given nests: a vector of kinds, the outermost first. What ends a form at its deadline is called
;; by hand.

(def ^:private ^:dynamic *alarms* nil)

(defmacro with-alarms
  "Runs the body with deadlines that come when they are called."
  [& body]
  `(alarms/by-hand (fn [alarms#] (binding [*alarms* alarms#] ~@body))))

(defn- last-alarm []
  (peek @*alarms*))

(def kinds
  "By name: a form, as a function of the ms of its deadline and of a function that is called in it
  with what cancels the form."
  {:scope (fn [_ f] (t/with-scope [s] (f #(t/cancel! s))))
   :fallback (fn [ms f] (t/with-timeout [ms :late] (f (last-alarm))))
   :shield (fn [ms f] (t/shield ms (f (last-alarm))))
   ;; Nothing cancels it but what is around it.
   :on-cancel (fn [_ f] (t/on-cancel [(fn [])] (f (fn []))))})

(defn in-nest
  "Calls f in the nest with the cancels of its forms, the outermost first."
  ([nest f] (in-nest nest [] f))
  ([[kind & more] cancels f]
   (if kind
     ;; Each has a deadline of its own, since it comes before those around it.
     ((kinds kind) (- 60000 (* 1000 (count cancels))) #(in-nest more (conj cancels %) f))
     (f cancels))))

(defn signals
  "Returns by what the calling thread can know of an interrupt after f: a set of :thrown and :flag."
  [f]
  (let [thrown (try (f) nil (catch Throwable t t))]
    (cond-> #{}
      (instance? InterruptedException thrown) (conj :thrown)
      (Thread/interrupted) (conj :flag))))

;; Random nests, as data

(defn- draw ^long [^SplittableRandom random ^long n]
  (.nextInt random (int n)))

(defn- pick [random choices]
  (nth choices (draw random (count choices))))

(def calm
  "Kinds of which none ends before its body does."
  [:timeout :scope :all :pmapv :shield :settle :on-cancel])

(def wild
  "Kinds that interrupt their bodies as well."
  (into calm [:late :late-scope :cleanup :cancelling :race :stopped]))

(defn plan
  "Returns a random nest of these kinds: [kind number nest nest]."
  [random kinds depth]
  (if (zero? (long depth))
    [:sleep (draw random 200)]
    (let [inner #(plan random kinds (dec (long depth)))]
      [(pick random kinds) (draw random 200) (inner) (inner)])))

(defn- sleep! [micros]
  (Thread/sleep (Duration/ofNanos (* 1000 (long micros)))))

(def ^:private ^:dynamic *trial*
  "The trial that runs: :foreign, and :wrong, an atom of what on-cancel did wrong."
  {:wrong (atom #{})})

(defn- wrong! [what]
  (swap! (:wrong *trial*) conj what))

(defn- wait-out!
  "Waits without an end by interrupt until the function was called, for at most so many micros. Only
  other code may interrupt the thread here."
  [called micros]
  (let [end (+ (System/nanoTime) (* 1000 (long micros)))]
    (while (and (not @called) (neg? (- (System/nanoTime) end)))
      (LockSupport/parkNanos 10000))
    (when (and (not (:foreign *trial*)) (.isInterrupted (Thread/currentThread)))
      (wrong! :interrupted))))

(defn- guarded
  "Calls f, after a wait, in an on-cancel whose function must be called once at most, and have ended
  when the form ends."
  [micros f]
  (let [called (volatile! false), calls (AtomicLong.), running (AtomicLong.)]
    (try
      (t/on-cancel [#(do
                       (.incrementAndGet running)
                       (.incrementAndGet calls)
                       (vreset! called true)
                       (sleep! (quot (long micros) 2))
                       (.decrementAndGet running))]
        (wait-out! called micros)
        (f))
      (finally
        (when-not (zero? (.get running)) (wrong! :running))
        (when (< 1 (.get calls)) (wrong! :called-again))))))

(defn run
  "Runs a planned nest."
  [[kind n a b]]
  (case kind
    :sleep (sleep! n)
    :timeout (t/with-timeout [100000 :late] (run a))
    :scope (t/with-scope [s] (t/fork s (run a)) (run b))
    :all (t/all (run a) (run b))
    :pmapv (t/pmapv 2 (fn [_] (run a)) [1 2 3])
    :shield (t/shield 100000 (run a))
    :settle (t/settle (run a))
    :on-cancel (guarded 0 #(run a))
    :late (t/with-timeout [(mod n 2) :late] (run a))
    :late-scope (t/with-scope [s {:timeout-ms (mod n 2)}] (t/fork s (run a)) (run b))
    :cleanup (try (run a) (finally (t/shield 50 (run b))))
    :cancelling (t/with-scope [s] (t/fork s (sleep! n) (t/cancel! s)) (run a))
    :race (t/race (run a) (run b))
    :stopped (guarded n #(run a))))

;; Another thread's interrupts

(defn- interrupter
  "Returns a thread that interrupts, once each time, the thread which it finds in the slot, some
  micros later, and empties the slot. It must be unparked."
  ^Thread [^AtomicReference slot ^AtomicBoolean stop seed]
  (let [random (SplittableRandom. seed)]
    (Thread. #(while (not (.get stop))
                (if-some [^Thread target (.get slot)]
                  (do (LockSupport/parkNanos (* 1000 (draw random 800)))
                      (.interrupt target)
                      (.set slot nil))
                  (LockSupport/park))))))

(defn- interrupted-run
  "Runs the nest while the interrupter interrupts this thread. Returns the signals."
  [nest ^AtomicReference slot ^Thread interrupter]
  (signals #(try
              (.set slot (Thread/currentThread))
              (LockSupport/unpark interrupter)
              (run nest)
              (finally
                (while (.get slot) (LockSupport/parkNanos 10000))))))

(defn- sound?
  "A foreign interrupt is never seen twice; it is seen where nothing of ours can have become one
  with it; ours never is."
  [kinds foreign seen]
  (cond
    (not foreign) (= #{} seen)
    (= calm kinds) (= 1 (count seen))
    :else (<= (count seen) 1)))

(defn- trial!
  "Runs one random nest. Returns what was wrong, or nil."
  [random slot interrupter]
  (let [foreign (zero? (draw random 4))
        kinds (if (zero? (draw random 4)) calm wild)
        nest (plan random kinds (inc (draw random 3)))
        trial {:foreign foreign, :wrong (atom #{})}
        seen (binding [*trial* trial]
               (if foreign
                 (interrupted-run nest slot interrupter)
                 (signals #(run nest))))]
    (when-not (and (sound? kinds foreign seen) (empty? @(:wrong trial)))
      {:nest nest, :foreign foreign, :seen seen, :wrong @(:wrong trial)})))

(defn- trials!
  "Runs n random nests on the calling thread, and calls (done! fault) after each. Returns the
  faults."
  [n seed done!]
  (let [random (SplittableRandom. seed), slot (AtomicReference.), stop (AtomicBoolean.)
        interrupter (doto (interrupter slot stop seed) (.setDaemon true) (.start))
        trial! (fn [_] (doto (trial! random slot interrupter) (done!)))]
    (try
      (into [] (keep trial!) (range n))
      (finally
        (.set stop true)
        (LockSupport/unpark interrupter)
        (.join ^Thread interrupter)))))

(defn- on-thread [^long i f]
  (let [faults (promise)
        body #(deliver faults (try (f) (catch Throwable t [t])))]
    (if (even? i)
      (.start (Thread. ^Runnable body "nests"))
      (.start (Thread/ofVirtual) body))
    faults))

(defn- progress
  "Returns a function of the fault of a nest, or nil, which prints the faults; and of a long run, a
  hundred times, how far it is."
  [n]
  (let [done (AtomicLong.), start (System/nanoTime), step (quot (long n) 100)]
    (fn [fault]
      (let [i (.incrementAndGet done)]
        (when fault (println "A fault:" (pr-str fault)))
        (when (and (<= 1000 step) (zero? (rem i step)))
          (println i "nests," (quot (- (System/nanoTime) start) 1000000000) "s")
          (flush))))))

(def ^:private lanes
  "More than processors, since nests mostly sleep."
  16)

(defn faults
  "Runs n random nests on platform threads and virtual ones. Returns what was wrong."
  [n seed]
  (let [seed (long seed), done! (progress n)
        lane (fn [i] (on-thread i #(trials! (quot n lanes) (+ seed (long i)) done!)))]
    (into [] (mapcat deref) (mapv lane (range lanes)))))

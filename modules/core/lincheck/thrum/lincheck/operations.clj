(ns thrum.lincheck.operations
  "The classes whose methods Lincheck calls from several threads: one for each subject, and for each
  broken copy of it, a control. Compiled ahead of time, see thrum.lincheck.main: classes that
  Clojure has compiled in memory Lincheck cannot look into."
  (:require
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.limit]
   [thrum.impl.place :as place]
   [thrum.impl.task]
   [thrum.lincheck.control.limit-forgets]
   [thrum.lincheck.control.limit-unlocked]
   [thrum.lincheck.control.task-unlocked])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicLong AtomicReferenceArray)
   (org.jetbrains.lincheck.datastructures Operation Param ThreadIdGen)
   (thrum.impl.place Place)))

(set! *warn-on-reflection* true)

(defmacro ^:private operations
  "Defines a class of that name with a state, the value of an expression, and operations (name
  [state arguments] body). An instance holds the functions of its operations: Lincheck looks into
  what it can reach from an instance, and not into what stands in a Var."
  [class-name state & methods]
  (let [prefix (str class-name "-")
        full-name (symbol (str "thrum.lincheck." class-name))
        this (gensym "this")]
    `(do
       (gen-class :name ~full-name
                  :prefix ~prefix
                  :init ~'init
                  :state ~'held
                  :main false
                  :load-impl-ns false
                  :methods
                  ~(mapv
                     (fn [[method [_ & args]]]
                       [(vary-meta method assoc `Operation {})
                        (mapv (fn [arg]
                                (with-meta 'int
                                  (if (= 'thread arg) `{Param {:gen ThreadIdGen}} {})))
                              args) 'Object])
                     methods))
       (defn ~(symbol (str prefix "init"))
         []
         [[] (object-array [~state ~@(map (fn [[_ args & body]] `(fn ~args ~@body)) methods)])])
       ~@(for [[i [method [_ & args]]] (map-indexed vector methods)]
           `(defn ~(symbol (str prefix method))
              [~this ~@args]
              (let [^"[Ljava.lang.Object;" held# (.held ~(with-meta this {:tag full-name}))]
                ((aget held# ~(inc i)) (aget held# 0) ~@args)))))))

;; Limiter: a thread inside is alone there, and none waits for ever, though some give up.

(defn- cancelled-when-it-waits
  "Returns the place of a thread whose work is found cancelled at the second look: when it waits."
  []
  (let [looks (AtomicLong.), flag (interrupt/interrupt-flag (Thread/currentThread))]
    (reify Place
      (cancelReason [_] (when (< 1 (.incrementAndGet looks)) :over))
      (isOver [_] false)
      (outer [_])
      (interruptFlag [_] flag)
      (acknowledge [_]))))

(defn- giving-up [f]
  (place/enter! (cancelled-when-it-waits))
  (try
    (f)
    (catch CancellationException _)
    (finally (place/enter! nil))))

(defn- count! [^longs counter]
  (let [n (aget counter 0)]
    (aset counter 0 (inc n))
    n))

(defmacro ^:private inside-a-limiter [class-name limit-ns]
  (let [in-ns #(symbol (str limit-ns) %)]
    `(operations ~class-name {:limiter (~(in-ns "limiter") 1 {}), :counter (long-array 1)}
       (~'enter [state#]
         (~(in-ns "call-with") (:limiter state#) #(count! (:counter state#))))
       (~'giveUp [state#]
         (giving-up #(~(in-ns "call-with") (:limiter state#) (fn [])))))))

(inside-a-limiter Inside thrum.impl.limit)
(inside-a-limiter InsideUnlocked thrum.lincheck.control.limit-unlocked)
(inside-a-limiter InsideForgets thrum.lincheck.control.limit-forgets)

;; Permits: asked for without waiting, and returned, by anyone, once.

(defn- type-or [value f]
  (try (f) value (catch ExceptionInfo e (name (:type (ex-data e))))))

(defmacro ^:private permits
  [class-name limit-ns]
  (let [in-ns #(symbol (str limit-ns) %)]
    `(operations
       ~class-name
       (let [~'limiter (~(in-ns "limiter") 1 {:wait-ms 0})
             shared# (~(in-ns "acquire!") ~'limiter)]
         {:limiter ~'limiter, :shared shared#, :own (AtomicReferenceArray. 8)})
       (~'acquire
         [state# ~'thread]
         (type-or "held"
                  #(.set ^AtomicReferenceArray (:own state#)
                         (int ~'thread)
                         (~(in-ns "acquire!") (:limiter state#)))))
       (~'nest
         [state#]
         (type-or
           "nested"
           #(~(in-ns "call-with") (:limiter state#)
              (fn [] (~(in-ns "acquire!") (:limiter state#))))))
       (~'release
         [state# ~'thread]
         (if-some [permit# (.get ^AtomicReferenceArray (:own state#) (int ~'thread))]
           (type-or "returned" #(~(in-ns "release!") permit#))
           "none"))
       (~'releaseShared [state#] (type-or "returned" #(~(in-ns "release!") (:shared state#)))))))

(permits Permits thrum.impl.limit)
(permits PermitsUnlocked thrum.lincheck.control.limit-unlocked)

(operations PermitsModel (atom {:holder :somebody-else, :asked #{}})
  (acquire [state thread]
    (let [{:keys [holder]} @state]
      (if holder
        "rejected"
        (do (swap! state #(-> % (assoc :holder thread) (update :asked conj thread))) "held"))))
  (nest [state]
    (if (:holder @state) "rejected" "deadlock"))
  (release [state thread]
    (let [{:keys [holder asked]} @state]
      (cond
        (= thread holder) (do (swap! state assoc :holder nil) "returned")
        (asked thread) "invalid"
        :else "none")))
  (releaseShared [state]
    (if (= :somebody-else (:holder @state))
      (do (swap! state assoc :holder nil) "returned")
      "invalid")))

;; Task: it ends once, and alike for all that ask.

(defmacro ^:private outcomes [class-name task-ns]
  (let [tagged (fn [sym] (with-meta sym {:tag (symbol (str (munge task-ns) ".Task"))}))
        in-ns #(symbol (str task-ns) %)]
    `(operations ~class-name (~(in-ns "latch") "t")
       (~'settle [~'task value#]
         (.settle ~(tagged 'task) (~(in-ns "->Done") value#)))
       (~'cancel [~'task]
         (.cancelWith ~(tagged 'task) :over true))
       (~'poll [~'task]
         (try (deref ~'task 0 "none") (catch CancellationException _# "cancelled"))))))

(outcomes Outcomes thrum.impl.task)
(outcomes OutcomesUnlocked thrum.lincheck.control.task-unlocked)

(ns thrum.impl.jdk
  "The differences between JDKs, and between operating systems. No other namespace checks a
  version, of the JDK or of Clojure."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error])
  (:import
   (java.util.concurrent ThreadFactory)))

(set! *warn-on-reflection* true)

(defn- check-jdk!
  "Throws :thrum/invalid before JDK 21. Every namespace of Thrum that needs a newer JDK loads this
  one first."
  []
  (let [version (System/getProperty "java.specification.version")]
    (when (< (or (parse-long version) 8) 21)
      (throw (error/invalid (str "Thrum needs JDK 21 or newer; this is "
                                 (System/getProperty "java.version")
                                 " (" (System/getProperty "java.home") ")")
                            {:value version, :accepts "JDK 21 or newer"})))))

(check-jdk!)

(defn- check-clojure!
  "Throws :thrum/invalid before Clojure 1.12, which cannot compile Thrum."
  []
  (let [{:keys [major minor]} *clojure-version*]
    (when (neg? (compare [major minor] [1 12]))
      (throw (error/invalid (str "Thrum needs Clojure 1.12 or newer; this is " (clojure-version))
                            {:value (clojure-version), :accepts "Clojure 1.12 or newer"})))))

(check-clojure!)

(defn- check-module!
  "Throws :thrum/invalid where the JDK lacks the module, as one by jlink may."
  [module]
  (when-not (.isPresent (.findModule (java.lang.ModuleLayer/boot) module))
    (throw (error/invalid (str "Thrum needs the JDK's module " module ", which this Java ("
                               (System/getProperty "java.home")
                               ") does not have, or has not loaded: add it by --add-modules")
                          {:value nil, :accepts module}))))

(check-module! "java.management")

;; Not in the ns form: classes that an older JDK or a smaller one lacks would fail before the
;; sentence.
(import '(java.lang ScopedValue ScopedValue$Carrier Thread$Builder)
        '(java.lang.management ManagementFactory)
        '(javax.management ObjectName))

(defn monitors-pin?
  "True if a virtual thread that blocks inside synchronized keeps its carrier, as before JDK 24
  (JEP 491)."
  []
  (< (.feature (Runtime/version)) 24))

(defn carriers
  "Returns how many platform threads the JDK runs virtual ones on."
  []
  (let [processors (.availableProcessors (Runtime/getRuntime))]
    (min (Integer/getInteger "jdk.virtualThreadScheduler.parallelism" processors)
         (Integer/getInteger "jdk.virtualThreadScheduler.maxPoolSize" Integer/MAX_VALUE))))

(defn virtual-thread
  "Returns an unstarted virtual thread of that name (JEP 444)."
  ^Thread [^String name ^Runnable body]
  (-> (Thread/ofVirtual) (.name name) (.unstarted body)))

(defn numbered-threads
  "Returns what next-thread takes, for one thread at a time. inherit?: whether the threads inherit
  from their creator, or are as clean-thread's."
  ^Thread$Builder [^String prefix inherit?]
  (-> (Thread/ofVirtual) (.name prefix 0) (.inheritInheritableThreadLocals (boolean inherit?))))

(defn next-thread
  "Returns an unstarted virtual thread named prefix0, the next one prefix1, and so on."
  ^Thread [^Thread$Builder threads ^Runnable body]
  (.unstarted threads body))

(defn clean-thread
  "Returns an unstarted virtual thread of that name that inherits nothing from its creator: no
  InheritableThreadLocal, and the system's class loader as its context class loader."
  ^Thread [^String name ^Runnable body]
  (-> (Thread/ofVirtual) (.name name) (.inheritInheritableThreadLocals false) (.unstarted body)))

(defn clean-threads
  "Returns a factory of such threads."
  ^ThreadFactory [^String name]
  (-> (Thread/ofVirtual) (.name name) (.inheritInheritableThreadLocals false) (.factory)))

(defn platform-thread
  "Returns an unstarted daemon platform thread of that name."
  ^Thread [^String name ^Runnable body]
  (-> (Thread/ofPlatform) (.daemon true) (.name name) (.unstarted body)))

(defn uncaught!
  "Hands the throwable to the uncaught exception handler of the calling thread. What that throws is
  dropped, as at a thread's end. Returns nil."
  [t]
  (let [thread (Thread/currentThread)]
    (try
      (.uncaughtException (.getUncaughtExceptionHandler thread) thread t)
      (catch Throwable _))))

;; Scoped values (JEP 506), a preview API before JDK 25. The code calls only methods that have had
;; the same shape since 21, which has the class as well: so it compiles without reflection on
;; every JDK.

(defn scoped-value?
  "True if x is a java.lang.ScopedValue."
  [x]
  (instance? ScopedValue x))

(defn- check-scoped-values! [scoped-values]
  (let [version (.feature (Runtime/version))]
    (when (< version 25)
      (throw (error/invalid (str ":scoped-values needs JDK 25 or newer; this is " version)
                            {:option :scoped-values, :value scoped-values, :jdk version})))))

(defn- bound-here
  "Returns the carrier of the values that are bound on the calling thread, or nil when none is."
  ^ScopedValue$Carrier [scoped-values]
  (reduce (fn [^ScopedValue$Carrier carrier ^ScopedValue k]
            (cond
              (not (.isBound k)) carrier
              (nil? carrier) (ScopedValue/where k (.get k))
              :else (.where carrier k (.get k))))
          nil scoped-values))

(defn- call-in
  "Returns the value of the thunk. The carrier's own call takes another interface on each JDK."
  [^ScopedValue$Carrier carrier thunk]
  (let [value (volatile! nil)]
    (.run carrier #(vreset! value (thunk)))
    @value))

(defn rebinding
  "Returns a wrap, a function from thunk to thunk: in the thunk the scoped values have the
  bindings that they have here and now, on the thread that calls rebinding; unbound ones are left
  out. A throwable of the thunk stays the same instance. Throws :thrum/invalid before JDK 25."
  [scoped-values]
  (check-scoped-values! scoped-values)
  (if-some [carrier (bound-here scoped-values)]
    (fn [thunk] #(call-in carrier thunk))
    identity))

(defn with-scoped
  "Returns the wrap (nil: none) inside a rebinding of the scoped values: in a task they are bound
  first, so that the wrap's code sees them and may bind them again. Without scoped values it
  returns the wrap itself. Throws :thrum/invalid before JDK 25."
  [wrap scoped-values]
  ;; What is no function stays as it is, the wrap or what it returns: the caller throws for it.
  (if (and (seq scoped-values) (or (nil? wrap) (ifn? wrap)))
    (let [rebind (rebinding scoped-values)]
      (fn [thunk]
        (let [wrapped (if wrap (wrap thunk) thunk)]
          (if (ifn? wrapped) (rebind wrapped) wrapped))))
    wrap))

(defn- file-descriptors
  "Returns {:open n, :max n} for this process, or nil where the operating system gives no figures.
  Throws :thrum/invalid where the JDK lacks the module that has them."
  []
  (check-module! "jdk.management")
  (try
    (let [server (ManagementFactory/getPlatformMBeanServer)
          system (ObjectName. ManagementFactory/OPERATING_SYSTEM_MXBEAN_NAME)]
      {:open (.getAttribute server system "OpenFileDescriptorCount")
       :max (.getAttribute server system "MaxFileDescriptorCount")})
    (catch javax.management.AttributeNotFoundException _ nil)))

(defn spare-descriptors
  "Returns how many more descriptors this process may use, less a reserve of a tenth and at least
  16; from 1 to most (4096)."
  (^long [] (spare-descriptors 4096))
  (^long [^long most]
   (if-some [{:keys [open max]} (file-descriptors)]
     (let [reserve (clojure.core/max 16 (quot max 10))]
       (clojure.core/max 1 (min most (- max open reserve))))
     most)))

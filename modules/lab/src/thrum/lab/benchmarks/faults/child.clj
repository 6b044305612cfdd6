(ns thrum.lab.benchmarks.faults.child
  "A JVM with one fault, and a watch that looks at it. Prints, as EDN, a line when the fault has
  begun, one for each lint, and, asked by a line, the meters of Micrometer's own binder for virtual
  threads. Ends with its standard input."
  (:require
   [clojure.java.io :as io]
   [thrum.core :as t]
   [thrum.lab.in-child :as in-child]
   [thrum.watch :as watch]
   [thrum.watch.impl.environment :as environment])
  (:import
   (clojure.asm ClassWriter Opcodes Type)
   (clojure.asm.commons GeneratorAdapter Method)
   (clojure.lang DynamicClassLoader)
   (java.io File FileInputStream)))

(set! *warn-on-reflection* true)

(defn deaf-sleep
  "Sleeps for ever, and goes on after an interrupt."
  []
  (loop []
    (try (Thread/sleep 1000) (catch InterruptedException _))
    (recur)))

(defn- monitor-pin []
  (let [lock (Object.)]
    (t/future (locking lock (deaf-sleep)))))

;; With -Djdk.reflect.useNativeAccessorOnly=true a call by reflection has a native frame below it.
(defn- native-pin []
  (t/future
    (.invoke (.getMethod Runnable "run" (make-array Class 0))
             ^Runnable deaf-sleep
             (object-array 0))))

(defn- blocking-class
  "Returns the bytes of a class whose initialiser calls deaf-sleep."
  []
  (let [writer (ClassWriter. ClassWriter/COMPUTE_MAXS)]
    (.visit writer
            Opcodes/V1_8
            Opcodes/ACC_PUBLIC
            "thrum/lab/benchmarks/faults/Blocking"
            nil
            "java/lang/Object"
            nil)
    (doto (GeneratorAdapter. Opcodes/ACC_STATIC
                             (Method/getMethod "void <clinit> ()")
                             nil
                             nil
                             writer)
      (.push "thrum.lab.benchmarks.faults.child")
      (.push "deaf-sleep")
      (.invokeStatic (Type/getType clojure.lang.RT)
                     (Method/getMethod "clojure.lang.Var var(String, String)"))
      (.invokeVirtual (Type/getType clojure.lang.Var) (Method/getMethod "Object invoke()"))
      .pop
      .returnValue
      .endMethod)
    (.visitEnd writer)
    (.toByteArray writer)))

(defn- class-initialiser []
  (let [loader (doto (DynamicClassLoader.)
                 (.defineClass "thrum.lab.benchmarks.faults.Blocking" (blocking-class) nil))]
    [(t/future (Class/forName "thrum.lab.benchmarks.faults.Blocking" true loader))]))

;; Made before the fault begins: that starts a process.
(def ^:private fifo
  (delay
    (let [fifo (File/createTempFile "fault" ".fifo")
          ^java.util.List command ["mkfifo" (str fifo)]]
      (io/delete-file fifo)
      (.waitFor (.start (ProcessBuilder. command)))
      (.deleteOnExit fifo)
      fifo)))

(defn- fifo-read []
  (t/future (with-open [in (FileInputStream. ^File @fifo)] (.read in))))

(defn- spin []
  (loop [] (recur)))

(defn- cpu-hog []
  (t/future (spin)))

(defn- cycle-of-locks []
  (let [a (Object.), b (Object.)
        both (fn [x y] (t/future (locking x (Thread/sleep 200) (locking y :never))))]
    [(both a b) (both b a)]))

(defn- query [limiter]
  (t/with-permit limiter (deaf-sleep)))

(defn- pool-exhausted []
  (let [db (t/limiter 2 {:name "db"})]
    (into [db] (repeatedly 20 #(t/future (query db))))))

(defn- take-alone []
  (t/future @(promise))
  nil)

(defn- leaked-take []
  (dotimes [_ 3] (take-alone))
  ;; A task that is collected before its stack was read, once a second, leaves no line.
  (doto (Thread. ^Runnable (fn [] (dotimes [_ 100] (Thread/sleep 1100) (System/gc))))
    (.setDaemon true)
    .start)
  nil)

(defn- stuck-scope []
  (t/future (t/with-scope [s {:name "checkout"}]
              (t/fork s (deaf-sleep))
              (Thread/sleep 100)
              (throw (ex-info "x" {})))))

(defn- deadline-ignored []
  (t/future (t/with-timeout [100] (deaf-sleep))))

;; The rule is given a version: no JDK can be made to hang at will.
(defn- known-hang []
  (let [[{:keys [rule sentence]}] (environment/conditions {:jdk [25 0 1], :libraries {}})]
    (in-child/say! {:rule rule, :ms 0, :sentence sentence, :frame nil})))

(defn- starved-probe []
  (mapv (fn [_] (t/future (spin))) (range (* 2 (.availableProcessors (Runtime/getRuntime))))))

(defn- healthy []
  (let [db (t/limiter 2)]
    [(t/future (t/with-scope [s] (dotimes [_ 50] (t/fork s (Thread/sleep 60000)))))
     (t/future (loop [] (Thread/sleep 1) (recur)))
     (t/future (t/with-timeout [60000] (deaf-sleep)))
     (t/future (dorun (t/pmap 3 (fn [_] (t/with-permit db (Thread/sleep 2))) (range 100000))))]))

(def faults
  "By name: the function that makes the fault."
  {"monitor pin" monitor-pin, "native pin" native-pin, "class initialiser" class-initialiser
   "FIFO read" fifo-read, "CPU hog" cpu-hog, "cycle of locks" cycle-of-locks
   "pool exhausted" pool-exhausted, "leaked take" leaked-take, "stuck scope" stuck-scope
   "deadline ignored" deadline-ignored, "known hang" known-hang, "starved probe" starved-probe
   "healthy" healthy})

(defn- print-lint
  "Prints what is said once the fault has begun. Waits for nothing: the watch would wait with it."
  [begun]
  (fn [lint]
    (when (realized? begun)
      (in-child/say! (assoc (select-keys lint [:rule :frame :sentence])
                       :ms (quot (- (System/nanoTime) (long @begun)) 1000000))))))

(defn- binder
  "Returns Micrometer's binder, bound to a registry, and that; nil where it is not on the class
  path."
  []
  (when (io/resource "io/micrometer/java21/instrument/binder/jdk/VirtualThreadMetrics.class")
    ((requiring-resolve 'thrum.lab.benchmarks.faults.meters/binder))))

(defn- answer!
  "Prints the meters for each line of the standard input, until it ends."
  [{:keys [read]}]
  (while (read-line)
    (in-child/say! {:meters (when read (read))})))

(defn -main
  "Makes the fault of that name."
  [fault]
  (let [begun (promise), on-lint (print-lint begun), binder (binder)]
    (with-open [_ ^java.lang.AutoCloseable
                (watch/start! {:port 0, :on-lint on-lint, :monitors? true})]
      ;; The first samples load classes.
      (Thread/sleep 3000)
      (when (= "FIFO read" fault) (force fifo))
      (deliver begun (System/nanoTime))
      (let [kept ((faults fault))]
        (in-child/say! :begun)
        (answer! binder)
        (prn (some? kept))))
    (.halt (Runtime/getRuntime) 0)))

(ns thrum.lincheck.checks
  "What Lincheck is to accept, and what to reject: runs in a JVM of its own, started by
  thrum.lincheck.main."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lincheck.operations])
  (:import
   (java.io File)
   (java.net JarURLConnection)
   (java.util.jar JarEntry)
   (org.jetbrains.kotlinx.lincheck Actor)
   (org.jetbrains.kotlinx.lincheck.execution ExecutionScenario)
   (org.jetbrains.lincheck LincheckAssertionError)
   (org.jetbrains.lincheck.datastructures ManagedStrategyGuarantee ManagedStrategyGuaranteeKt ModelCheckingOptions)
   (thrum.lincheck Inside InsideForgets InsideUnlocked Outcomes OutcomesUnlocked Permits PermitsModel PermitsUnlocked)))

(set! *warn-on-reflection* true)

(def ^:private one-gives-up
  "What each thread calls: one comes back for a permit that the other may have taken along when it
  gave up."
  [["enter" "enter"] ["giveUp"]])

;; :calls - this scenario; without, random ones. :model - what an instance is compared with;
;; without, one that a single thread uses.
(def ^:private checks
  [{:class Inside, :calls one-gives-up, :accepted true}
   {:class InsideUnlocked, :calls one-gives-up}
   {:class InsideForgets, :calls one-gives-up}
   {:class Permits, :model PermitsModel, :accepted true}
   {:class PermitsUnlocked, :model PermitsModel}
   {:class Outcomes, :accepted true}
   {:class OutcomesUnlocked}])

;; Threads are not switched inside of these, pure or Clojure's own: it leaves Lincheck its time for
;; switches that matter.
(def ^:private atomic
  ["clojure.lang.Keyword" "clojure.lang.KeywordLookupSite" "clojure.lang.KeywordLookupSite$1"
   "clojure.lang.PersistentArrayMap" "clojure.lang.RT" "clojure.lang.Var" "clojure.core$ex_info"
   "thrum.impl.place$current" "thrum.impl.place$enter_BANG_" "thrum.impl.permits$rejected"
   "thrum.impl.error$cancelled" "thrum.impl.error$deadlock" "thrum.impl.error$invalid"])

(defn- without-switches ^ManagedStrategyGuarantee [^"[Ljava.lang.String;" class-names]
  (-> (ManagedStrategyGuaranteeKt/forClasses class-names)
      .allMethods
      .treatAsAtomic))

(defn- scenario ^ExecutionScenario [^Class class calls]
  (let [actor (fn [^String method] (Actor. (.getMethod class method (make-array Class 0)) []))]
    (ExecutionScenario. [] (mapv #(mapv actor %) calls) [] nil)))

(defn- model-checking
  ^ModelCheckingOptions [{:keys [class calls model]}]
  (let [options (doto (ModelCheckingOptions.)
                  (.iterations (if calls 0 3))
                  (.invocationsPerIteration (if calls 600 300))
                  (.threads 2)
                  (.actorsPerThread 2)
                  (.actorsBefore 0)
                  (.actorsAfter 0)
                  (.minimizeFailedScenario false)
                  (.addGuarantee (without-switches (into-array String atomic))))]
    (when calls (.addCustomScenario options (scenario class calls)))
    (when model (.sequentialSpecification options model))
    options))

(defn- not-reproduced?
  "True if Lincheck has found something, and then could not run into it once more: hash codes
  of threads differ each time."
  [e]
  (str/includes? (str (ex-message e)) "Reporting the first execution"))

(defn- failure
  "Returns what Lincheck holds against the class, or nil."
  [{:keys [^Class class] :as check}]
  (try
    (.check (model-checking check) class)
    (catch LincheckAssertionError e (ex-message e))
    (catch IllegalStateException e (if (not-reproduced? e) (ex-message e) (throw e)))))

(defn- verdict [accepted failure]
  (cond
    (and accepted failure) "REJECTED:"
    accepted "accepted"
    failure "rejected, as it should be"
    :else "ACCEPTED, though it is broken: the check sees nothing"))

(defn- as-expected?
  "Runs a check, says how it went, and what Lincheck found where it should not have found anything."
  [{:keys [^Class class accepted], :as check}]
  (let [start (System/nanoTime)
        failure (failure check)
        seconds (/ (- (System/nanoTime) start) 1e9)]
    (println (format "%-18s %4.1f s  %s" (.getSimpleName class) seconds (verdict accepted failure)))
    (when (and accepted failure) (println failure))
    (flush)
    (= (boolean accepted) (nil? failure))))

;; The lock that a thread takes while it initialises a class is hidden from Lincheck, which may
;; switch to another thread there: both would hang. So all classes are initialised first.

(defn- class-name [path]
  (-> path (str/replace #"\.class$" "") (str/replace "/" ".")))

(defn- compiled-classes [folder]
  (let [root (.toPath (io/file folder))]
    (for [^File file (file-seq (io/file folder)) :when (.isFile file)]
      (class-name (str (.relativize root (.toPath file)))))))

(defn- clojures-classes
  []
  (with-open [jar (.getJarFile ^JarURLConnection
                               (.openConnection (io/resource "clojure/lang/RT.class")))]
    (into
      []
      (comp (map #(.getName ^JarEntry %)) (filter #(str/ends-with? % ".class")) (map class-name))
      (enumeration-seq (.entries jar)))))

(defn- initialise!
  [class-names]
  (doseq [^String class-name class-names
          :when (re-find #"^(thrum|clojure\.core\$|clojure\.lang)" class-name)]
    (try
      (Class/forName class-name)
      (catch LinkageError _))))

(defn -main
  "Initialises the classes in the folder, runs the checks of these names, or all, and ends with 0
  when each went as expected, otherwise with 1."
  [folder & names]
  (initialise! (concat (compiled-classes folder) (clojures-classes)))
  (let [chosen (filter #(or (empty? names) (some #{(.getSimpleName ^Class (:class %))} names))
                       checks)]
    (System/exit (if (every? true? (mapv as-expected? chosen)) 0 1))))

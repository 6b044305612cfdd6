(ns thrum.lab.ending
  "The end of a run before its time, by Ctrl-C say. One state says that the run is over. One thread,
  a shutdown hook, does the rest: it wakes the runner, ends every process below this one, has the
  measurements written, and ends the JVM. It does not wait for the runner."
  (:require
   [thrum.lab.temporary :as temporary])
  (:import
   (java.lang ProcessHandle)
   (java.util.concurrent.atomic AtomicInteger)
   (sun.misc Signal SignalHandler)))

(set! *warn-on-reflection* true)

(def ^:private exit-codes
  "The exit codes of a run that a signal has ended: 128 and its number, as shells have it."
  {"INT" 130, "TERM" 143, "HUP" 129})

(def ^:private wake-ms "How long the runner may take to end by itself: its children still live, and
  it knows best what was measured." 400)
(def ^:private alone-ms "How long it may take after its children have been killed." 200)
(def ^:private write-ms "How long it may take to write the result without the runner." 1700)
(def ^:private delete-ms "How long it may take, at least, to delete what the runner has not." 200)
(def ^:private in-all-ms "How long the end may take, where nothing of that takes longer." 2600)

(defn state
  "Returns the state of a run: {:over :ended :write}. over, a promise, is delivered when the run is
  over before its time, ended when the runner has done all that it had to. write is an atom for a
  function that writes what was measured; nil until there is a run."
  []
  {:over (promise), :ended (promise), :write (atom nil)})

(defn- kill-descendants!
  "Kills every process below this one, children's children too."
  []
  (run! ProcessHandle/.destroyForcibly
        (iterator-seq (.iterator (.descendants (ProcessHandle/current))))))

(defn- halt! [code]
  (kill-descendants!)
  (.halt (Runtime/getRuntime) code))

(defn- in-time
  "Calls f on a thread of its own and waits for it, no longer than ms."
  [ms f]
  (let [done (promise)]
    (doto (Thread. #(try (f) (finally (deliver done true))))
      (.setDaemon true)
      (.start))
    (deref done ms nil)))

(defn- end!
  "Ends the run of a thread, and this JVM, within three seconds."
  [^Thread runner {:keys [over ended write]} code]
  (let [start (System/nanoTime)
        left-ms #(- in-all-ms (quot (- (System/nanoTime) start) 1000000))]
    (deliver over true)
    (.interrupt runner)
    (when-not (deref ended wake-ms false)
      (kill-descendants!)
      (when-not (deref ended alone-ms false)
        (when-let [write! @write] (in-time write-ms write!))))
    (flush)
    (in-time (max delete-ms (left-ms)) temporary/delete-all!)
    (halt! code)))

(defn- on-signal
  "Handles a signal where that is possible: a flag of the JVM may forbid it, and some systems lack
  the signal."
  [name f]
  (try
    (Signal/handle (Signal. name) (reify SignalHandler (handle [_ _] (f))))
    (catch IllegalArgumentException _)))

(defn watch!
  "Makes Ctrl-C, and any other end of this JVM but that after `ended`, end the run of the calling
  thread; a second Ctrl-C ends it at once."
  [{:keys [ended], :as state}]
  (let [runner (Thread/currentThread)
        signals (AtomicInteger.)
        code (AtomicInteger. (exit-codes "INT"))]
    (.addShutdownHook (Runtime/getRuntime)
                      (Thread. #(when-not (realized? ended) (end! runner state (.get code)))))
    (doseq [[name n] exit-codes]
      (on-signal name
                 #(if (= 1 (.incrementAndGet signals))
                    (do (.set code n) (System/exit n))
                    (halt! n))))))

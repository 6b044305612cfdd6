(ns thrum.watch.impl.recorder
  "Has what runs recorded by the JDK's Flight Recorder, where this Java has one."
  {:no-doc true}
  (:require
   [thrum.watch.impl.snapshot :as snapshot])
  (:import
   (java.lang ModuleLayer)))

(set! *warn-on-reflection* true)

(defn- recorder? []
  (.isPresent (.findModule (ModuleLayer/boot) "jdk.jfr")))

(defn observe!
  "Has the events thrum.Task, thrum.Scope and, where thrum.server is on the class path,
  thrum.Request ready when the recorder is first used. To be called once."
  []
  (when (recorder?)
    ((requiring-resolve 'thrum.watch.impl.flight/on-first-use!)
     (or (snapshot/of-exchanges 'thrum.watch.impl.flight-requests/observe!) (fn [])))))

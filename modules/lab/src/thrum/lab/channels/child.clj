(ns thrum.lab.channels.child
  "A process of its own that does one job, {:job kw …}, the first line of standard input, prints
  {:sample …} or {:problem sentence}, and ends. It ends as well when standard input does. What a job
  does not need is not loaded."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.in-child :as in-child])
  (:import
   (java.io PushbackReader)))

(set! *warn-on-reflection* true)

(def ^:private jobs
  "By name: the function that does a job and returns its sample."
  {:compile 'thrum.lab.channels.ahead/sample
   :requests 'thrum.lab.channels.requests/sample
   :pipeline 'thrum.lab.channels.pipeline/sample})

(defn- halt-at-end-of-input
  "Ends the JVM when the parent has closed standard input or has died. On a platform thread, since a
  virtual one that reads a file holds on to its carrier."
  []
  (-> (Thread/ofPlatform)
      (.daemon)
      (.name "lab-parent")
      (.start #(do (while (not (neg? (.read System/in))))
                   (.halt (Runtime/getRuntime) 0)))))

(defn -main
  "Does the job and prints what came of it."
  [& _]
  (in-child/run!
    #(let [{:keys [job] :as given} (edn/read (PushbackReader. *in*))]
       (halt-at-end-of-input)
       (prn {:sample ((requiring-resolve (jobs job)) given)})
       (flush)))
  (.halt (Runtime/getRuntime) 0))

(ns thrum.lab.job
  "Does a job in a JVM of its own; see thrum.lab.job.child."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.trouble :as trouble]))

(set! *warn-on-reflection* true)

(defn- await-sample
  "Reads what the child prints until its sample is there. {:done n} before that is progress."
  [jvm timeout-ms on-end]
  (let [{:keys [done sample problem]} (child/read-answer jvm timeout-ms)]
    (cond
      problem {:error {:class "job", :message problem}}
      sample sample
      :else (do (on-end done)
                (recur jvm timeout-ms on-end)))))

(defn- do! [command job timeout-ms on-end]
  (let [jvm (child/start! command)]
    (try
      (child/send! jvm job)
      (await-sample jvm timeout-ms on-end)
      (finally (child/stop! jvm)))))

(defn sample!
  "Does a job in a JVM of its own and returns its sample. options are :jvm-opts, :class-path, by
  default that of this JVM, :timeout-ms, and :around, a function from the JVM's command line to the
  one that is run. on-end is called with how many items have ended. A job that fails is the sample's
  :error {:class :message}; an interrupt makes it {:interrupted? true}."
  ([options job] (sample! options job (constantly nil)))
  ([{:keys [jvm-opts class-path timeout-ms around]} job on-end]
   (try
     (let [command (child/java-command jvm-opts 'thrum.lab.job.child class-path)]
       (do! ((or around identity) command) job timeout-ms on-end))
     (catch Throwable t (trouble/sample t)))))

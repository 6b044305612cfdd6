(ns thrum.context.mdc
  "SLF4J's MDC in every task: use wrap as thrum.core/*wrap*. SLF4J is to be on the class path."
  (:import
   (org.slf4j MDC)))

(set! *warn-on-reflection* true)

(defn- become! [context]
  (if context (MDC/setContextMap context) (MDC/clear)))

(defn wrap
  "Returns a thunk that runs the given one in the MDC of the calling thread as it is now, and gives
  the thread that runs it its own MDC back. For thrum.core/*wrap*, or :wrap:

      (alter-var-root #'t/*wrap* (constantly mdc/wrap))"
  [thunk]
  (let [here (MDC/getCopyOfContextMap)]
    (fn []
      (let [before (MDC/getCopyOfContextMap)]
        (become! here)
        (try
          (thunk)
          (finally (become! before)))))))

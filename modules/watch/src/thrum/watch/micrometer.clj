(ns thrum.watch.micrometer
  "What a watch sees as meters of Micrometer, for a registry of the application's own. Micrometer,
  io.micrometer/micrometer-core, is to be added by the user."
  (:require
   [thrum.spi.options :as options]
   [thrum.watch]
   [thrum.watch.impl.meters :as meters])
  (:import
   (io.micrometer.core.instrument MeterRegistry)
   (io.micrometer.core.instrument.binder MeterBinder)
   (java.lang AutoCloseable)
   (thrum.watch Watch)))

(set! *warn-on-reflection* true)

(defn binder
  "Returns a MeterBinder of what the watch, of thrum.watch/start!, sees; an AutoCloseable, which
  takes its meters out of every registry that it was bound to. Close it before the watch. A registry
  takes one binder at a time: a second one's meters are those of the first.

      (.bindTo (binder watch) registry)

  Times are in the registry's unit, thrum.scheduler.late in ms. Meters:
    thrum.tasks.alive, thrum.tasks.started, thrum.tasks.ended {how: done, failed, cancelled}
    thrum.threads {state: runnable, parked, timed-parked, blocked}
    thrum.requests, thrum.requests.queue - timers with the 0.5 and 0.99 percentiles: from the first
      line to the last byte, and the wait for a permit
    thrum.requests.ended {status}; status 0: without a whole response
    thrum.limiter.permits, .in.use, .waiting, .rejected {limiter}
    thrum.scheduler.parallelism, .mounted, .queued (JDK 24 and newer), .late
    thrum.lints {rule}: pinned and starved among them

  Gauges are of the watch's last sample. A request costs some 1 us more, and its percentiles are of
  the last two minutes. Throws :thrum/invalid for what is no watch."
  [watch]
  (let [^Watch watch (options/instance Watch "a watch, as thrum.watch/start! returns it" watch)
        bound (atom [])]
    (reify
      MeterBinder
      (bindTo [_ registry]
        (swap! bound conj (meters/bind! (.-sampler watch) ^MeterRegistry registry)))

      AutoCloseable
      (close [_]
        (run! #(%) (first (reset-vals! bound [])))))))

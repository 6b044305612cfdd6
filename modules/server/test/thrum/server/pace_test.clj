(ns thrum.server.pace-test
  "Waiting spends an allowance of time, bytes earn it."
  (:require
   [clojure.test :refer [deftest is]]
   [clojure.test.check :as check]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.pace :as pace]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.pace PacedWire)))

(set! *warn-on-reflection* true)

(def ^:private ms 1000000)

(defn- pass!
  "Has n bytes pass after a wait of so many ms, from the moment on; returns [moment late], whether
  the client was late just then."
  [lane now wait-ms n]
  (let [end (+ (long now) (* (long ms) (long wait-ms)))]
    (pace/enter! lane now)
    (let [late (pace/late-at? lane end)]
      (pace/leave! lane end n)
      [end late])))

(defn- late-at-some-time? [lane steps]
  (loop [now 0, [[wait-ms n] & more] steps]
    (if wait-ms
      (let [[now late] (pass! lane now wait-ms n)]
        (or late (recur (long now) more)))
      false)))

(deftest a-client-at-the-least-rate-is-never-late
  (let [result (check/quick-check 200
                                  (prop/for-all [waits (gen/vector (gen/choose 0 999) 0 50)]
                                                (not (late-at-some-time? (pace/lane 1000 1000 false)
                                                                         (map #(vector % %)
                                                                              waits)))))]
    (is (:pass? result) (pr-str (:shrunk result)))))

(deftest a-byte-now-and-then-is-late
  (is (late-at-some-time? (pace/lane 1000 5000 false) (repeat 10 [900 1])))
  (is (late-at-some-time? (pace/lane 1000 5000 true) (repeat 10 [900 1]))))

(deftest a-silence-is-late-after-the-grace
  (is (not (late-at-some-time? (pace/lane 1000 5000 false) [[5000 0]])))
  (is (late-at-some-time? (pace/lane 1000 5000 false) [[5001 0]])))

(deftest what-came-quickly-counts-for-later-only-where-it-is-saved
  (let [steps [[0 1000000] [6000 1]]]
    (is (late-at-some-time? (pace/lane 1000 5000 false) steps))
    (is (not (late-at-some-time? (pace/lane 1000 5000 true) steps)))))

(deftest who-is-not-waited-for-is-not-late
  (let [lane (pace/lane 1000 10 false)
        [now] (pass! lane 0 5 0)]
    (is (not (pace/late-at? lane (+ (long now) (* 100000 (long ms))))))))

;; The wire

(deftest what-passed-quickly-is-saved-for-a-response-and-not-for-a-requests-body
  (let [^PacedWire wire (pace/paced nil {:min-bytes-per-second 1000, :rate-grace-ms 5000})
        late? #(late-at-some-time? % [[0 1000000] [6000 1]])]
    (is (late? (.-in wire)))
    (is (not (late? (.-out wire))))))

(def ^:private no-headers (object-array 0))

(deftest a-client-is-waited-for-in-each-call-that-sends-and-not-behind-it
  (let [trail (atom []), paced (promise)
        note! #(when (gate/eventually 5000 (fn [] (pace/late? @paced))) (swap! trail conj %))
        wire (reify engine/Wire
               (send! [_ _ _ _] (note! :send))
               (begin! [_ _ _ _]
                 (note! :begin)
                 (byte-stream/output (fn [_ _ _] (note! :write)) #(note! :flush)))
               (end! [_] (note! :end)))
        wire (pace/paced wire {:min-bytes-per-second 1000000000, :rate-grace-ms 0})]
    (deliver paced wire)
    (engine/send! wire 200 no-headers nil)
    (with-open [out ^java.io.OutputStream (engine/begin! wire 200 no-headers 1)]
      (.write out 0)
      (.flush out))
    (engine/end! wire)
    (is (= [:send :begin :write :flush :end] @trail))
    (is (not (pace/late? wire)))))

(deftest a-client-that-takes-a-piece-of-a-large-body-shows-it
  (let [sizes (atom [])
        wire (reify engine/Wire
               (begin! [_ _ _ _] (byte-stream/output (fn [_ _ n] (swap! sizes conj n))))
               (end! [_]))]
    (engine/send! (pace/paced wire {:min-bytes-per-second 1000, :rate-grace-ms 1000})
                  200 no-headers (byte-array 40000))
    (is (= [16384 16384 7232] @sizes))))

(deftest a-slow-client-is-cut-on-a-thread-that-needs-no-carrier
  (let [x (promise), cut (promise)
        wire (reify engine/Wire
               (send! [_ _ _ _]
                 (gate/eventually 5000 #(pace/late? (.-wire ^Exchange @x)))
                 (ending/end-slow! [@x])
                 (deref cut 10000 nil))
               (unwatch! [_])
               (abort! [_] (deliver cut (Thread/.isVirtual (Thread/currentThread)))))
        wire (pace/paced wire {:min-bytes-per-second 1000000000, :rate-grace-ms 0})]
    (deliver x (exchange/exchange (traffic/traffic {}) wire))
    (engine/send! wire 200 no-headers nil)
    (is (false? (deref cut 0 :not-cut)))))

(deftest the-slow-clients-of-one-look-are-cut-on-one-thread
  (let [cut (atom [])
        wire #(reify engine/Wire
                (send! [_ _ _ _] (swap! cut conj (Thread/currentThread)))
                (unwatch! [_])
                (abort! [_]
                  (swap! cut conj (Thread/currentThread))
                  (throw (ex-info "no" {}))))
        slow #(exchange/exchange (traffic/traffic {}) (wire))]
    (uncaught/reporting
      (fn [_ _])
      (fn []
        (with-redefs [pace/late? (constantly true)]
          (ending/end-slow! [(slow) (slow) (slow)]))
        (is (gate/eventually 20000 #(= 3 (count @cut))))
        (is (apply = @cut))))))

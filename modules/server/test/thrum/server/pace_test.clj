(ns thrum.server.pace-test
  "Waiting spends an allowance of time, bytes earn it."
  (:require
   [clojure.test :refer [deftest is]]
   [clojure.test.check :as check]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.server.impl.pace :as pace]))

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

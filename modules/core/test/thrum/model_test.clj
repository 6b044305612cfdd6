(ns thrum.model-test
  "clojure.core is the model: for any input, limit and window, the map family gives what map gives."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [clojure.test.check :as tc]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.core :as t]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private items
  "Of which many fail, or few."
  (gen/let [others (gen/elements [3 60])]
    (gen/vector (gen/frequency [[others (gen/one-of [gen/small-integer (gen/return nil)
                                                     gen/boolean])]
                                [1 (gen/return :fail)]]))))

(def ^:private options
  "From a limit of 4 on, results may leave several at a time."
  (gen/let [limit (gen/one-of [(gen/choose 1 8) (gen/choose 16 300)])
            batch (gen/choose 1 5)
            more (gen/choose 0 20)]
    {:limit limit, :batch batch, :window (+ (* limit batch) more)}))

(def ^:private sources
  "Ways for the same items to arrive: chunked, one at a time, as a reducible."
  (gen/elements [identity #(apply list %) #(take (count %) (concat % (repeat nil)))
                 #(eduction (map identity) %)]))

(defn- dawdle
  "Lets tasks end in any order."
  [x]
  (dotimes [_ (rand-int 3)] (Thread/yield))
  (when (zero? (long (rand-int 8))) (LockSupport/parkNanos 1000))
  x)

(defn- f [x]
  (when (= :fail x) (throw (ex-info "failed" {})))
  (dawdle [x]))

(defn- outcome
  "Returns what the seq delivers, then :failed if it throws."
  [results]
  (loop [out [], results results]
    (let [step (try (if-some [s (seq results)] [:item (first s) (rest s)] [:end])
                    (catch Exception _ [:failed]))]
      (case (first step)
        :end out
        :failed (conj out :failed)
        :item (recur (conj out (step 1)) (step 2))))))

(defn- model [xs]
  (let [[before [failing]] (split-with #(not= :fail %) xs)]
    (cond-> (mapv vector before) failing (conj :failed))))

(defn- holds [n property]
  (let [{:keys [pass? shrunk seed]} (tc/quick-check n property)]
    (is pass? (pr-str {:seed seed, :smallest (:smallest shrunk)}))))

(deftest pmap-is-map
  (holds 150 (prop/for-all [xs items, opts options, ->source sources]
               (= (model xs) (outcome (t/pmap opts f (->source xs)))))))

(deftest the-transducer-is-map-up-to-the-failure
  (holds 150
         (prop/for-all [xs items opts options ->source sources]
                       (let [out (atom [])
                             end (try
                                   (transduce (t/pmap opts f)
                                              (fn ([_] nil) ([_ x] (swap! out conj x) nil))
                                              nil
                                              (->source xs))
                                   (catch Exception _ :failed))]
                         (= (model xs) (cond-> @out end (conj end)))))))

(deftest upmap-is-map-in-some-order
  (holds 150
         (prop/for-all [xs items opts options ->source sources]
                       (let [out (outcome (t/upmap opts f (->source xs)))
                             possible (frequencies (map vector (remove #{:fail} xs)))]
                         (if (some #{:fail} xs)
                           (and (= :failed (peek out))
                                (every? (fn [[x n]] (<= n (possible x 0))) (frequencies (pop out))))
                           (= possible (frequencies out)))))))

(deftest pmapv-is-mapv
  (holds 150
         (prop/for-all [xs items opts options ->source sources]
                       (= (if (some #{:fail} xs) :failed (mapv vector xs))
                          (try
                            (t/pmapv (dissoc opts :window) f (->source xs))
                            (catch Exception _ :failed))))))

(deftest fmap-hands-out-every-task
  (holds 150 (prop/for-all [xs items, opts options]
               (= (map #(if (= :fail %) :failed [%]) xs)
                  (map #(try @% (catch Exception _ :failed)) (t/fmap (dissoc opts :batch) f xs))))))

(deftest for-is-for
  (holds 100 (prop/for-all [xs (gen/vector gen/small-integer), ys (gen/vector gen/small-integer)]
               (= (for [x xs :when (odd? x) y ys :let [z (+ x y)] :while (< z 10)] [x y z])
                  (t/pfor 3 [x xs :when (odd? x) y ys :let [z (+ x y)] :while (< z 10)] [x y z])))))

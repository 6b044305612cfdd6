(ns thrum.show-test
  "Any value can stand in a message: the text is short, it comes at once, and no code of the value's
  is called."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.impl.show :as show]
   [thrum.test-kit.gate :as gate]))

(set! *warn-on-reflection* true)

(defn- never [& _]
  (throw (AssertionError. "The value's own code was called")))

(deftype Mine [] Object (toString [_] (never)) (hashCode [_] (never)) (equals [_ _] (never)))

(defmethod print-method Mine [_ _] (never))

(defrecord Point [x y])

(def ^:private values
  "Functions of nothing that return a value which is hard to print."
  {"an endless seq" range
   "a seq that repeats" #(repeat :x)
   "a seq that cycles" #(cycle [1])
   "a seq that computes" #(iterate (fn [_] (never)) 1)
   "a lazy seq that throws" #(lazy-seq (never))
   "a lazy seq that throws later" #(cons 1 (lazy-seq (never)))
   "a lazy seq that blocks" #(lazy-seq @(promise))
   "an endless seq in a map in a vector" (fn [] [{:a (range)}])
   "an endless seq as a key" (fn [] {(lazy-seq (never)) 1})
   "an eduction" #(eduction (map never) (range))
   "a Java list that iterates" #(iterator-seq (.iterator ^Iterable (java.util.List/of 1 (Mine.))))
   "an object with a toString that throws" ->Mine
   "such an object in a list" #(list 1 (Mine.))
   "such an object in a record" #(->Point (Mine.) (range))
   "a throwable without a message"
   #(proxy [RuntimeException] [] (getMessage [] (never)) (toString [] (never)))
   "a cyclic atom" #(doto (atom nil) (as-> a (reset! a [a])))
   "a cyclic array" #(doto (object-array 1) (as-> ^objects a (aset a 0 a)))
   "a delay" #(delay (never))
   "a long string" #(str/join (repeat 1000000 "x"))
   "a long keyword" #(keyword (str/join (repeat 1000000 "x")))
   "a long number" #(.pow (biginteger 2) 10000000)
   "a long decimal" #(BigDecimal. (.pow (biginteger 2) 10000000) 5)
   "a large map" #(zipmap (range 100000) (repeat (range)))
   "a large set" #(set (range 100000))
   "a large vector" #(vec (range 100000))
   "a deep vector" #(nth (iterate vector 1) 100000)
   "a broad and deep vector" #(nth (iterate (fn [v] (vec (repeat 100 v))) "some text") 6)})

(def ^:private most 300)

(deftest any-value-is-shown-at-once-and-in-short
  (doseq [[what value] values]
    (let [value (value)]
      (is (<= 1 (count (gate/in-time 10000 #(show/text value))) most) what))))

(deftest what-stands-for-a-value-can-be-printed
  (doseq [[what value] (dissoc values "a throwable without a message")]
    (let [datum (show/datum (value))]
      (is (string? datum) what)
      (is (<= (count (gate/in-time 10000 #(pr-str datum))) most) what))))

(deftest a-value-is-shown-as-clojure-prints-it
  (are [value] (= (pr-str value) (show/text value))
    nil
    true
    1
    1.5
    2N
    1/3
    1.5M
    \a
    \newline
    :a
    :a/b
    'a
    'a/b
    "a \"b\"\n"
    []
    [1 [2 [3]]]
    {:a 1}
    #{:a}
    '(1 2)
    ()
    String
    #'inc)
  (is (= "#thrum.show_test.Point{:x 1, :y 2}" (show/text (->Point 1 2))))
  (is (= "[0 1 2 3 4 5 6 7 ...]" (show/text (vec (range 9)))))
  (is (= "#<clojure.lang.Iterate>" (show/text (range))))
  (is (= "#<clojure.core$inc>" (show/text inc))))

(deftest what-is-small-stands-for-itself
  (doseq [value [nil false 1 1.5 2N "text" :key 'sym String inc (Exception. "e") [1 2] {:a [1 :b]}
                 #{1} (list 1 2) (->Point 1 2) #inst "2026-11-21" (random-uuid)]]
    (is (identical? value (show/datum value)) (pr-str value))))

(deftest what-only-its-parts-make-large-is-text
  (let [value (vec (repeat 8 (apply str (repeat 190 "x"))))]
    (is (= (show/text value) (show/datum value)))))

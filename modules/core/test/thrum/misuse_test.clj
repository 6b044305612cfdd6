(ns thrum.misuse-test
  "A wrong argument is answered at the call, in words and in data."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.core :as t]
   [thrum.options :as options]
   [thrum.throwing :refer [thrown]]))

(set! *warn-on-reflection* true)

(deftest wrong-limits-throw-at-the-call
  (are [form] (= {:type :thrum/invalid, :option :limit}
                 (select-keys (ex-data (thrown form)) [:type :option]))
    (t/pmap 0 inc [1])
    (t/pmap -1 inc [1])
    (t/pmap nil inc [1])
    (t/pmap 1.5 inc [1])
    (t/pmap "8" inc [1])
    (t/pmap inc [1])
    (t/pmap inc [1] [2])
    (t/pmap {} inc [1])
    (t/pmap {:limit 0} inc [1])
    (t/upmap 0 inc [1])
    (t/fmap 0 inc [1])
    (t/pmapv 0 inc [1])
    (t/prun! 0 inc [1])
    (t/pfor 0 [x [1]] x)
    (t/pmap 0 inc)))

(deftest the-alias-swap-is-told-what-comes-first
  (is (str/includes? (ex-message (thrown (t/pmap inc [1 2 3]))) "the limit comes first")))

(deftest unknown-options-name-the-nearest
  (let [e (thrown (t/pmap {:limit 4, :windw 8} inc [1]))]
    (is (str/includes? (ex-message e) "did you mean :window?"))
    (is (= :windw (:option (ex-data e))))
    (is (= [:limit :window :name :wrap :scoped-values] (:known (ex-data e)))))
  (is (= :window (options/nearest :widnow [:limit :window :name])))
  (is (str/includes? (ex-message (thrown (t/pmapv {:limit 2, :window 4} inc [1]))) "Unknown option :window")))

(deftest values-are-checked
  (are [options option] (= [:thrum/invalid option] ((juxt :type :option) (ex-data (thrown (t/pmap options inc [1])))))
    {:limit 4, :window 2} :window
    {:limit 4, :window 0} :window
    {:limit 4, :name ""} :name
    {:limit 4, :name :fetch} :name
    {:limit 4, :wrap 7} :wrap))

(deftest what-is-no-function-is-refused-at-the-call
  (are [form] (= :thrum/invalid (:type (ex-data (thrown form))))
    (t/pmap 2 3 [1])
    (t/pmap 2 3)
    (t/upmap 2 "f" [1])
    (t/map 3 [1])
    (t/pmapv 2 3 [1])
    (t/prun! 2 3 [1])
    (t/pcalls 3)
    (t/future-call 3)
    (t/future-call {:wrap (constantly nil)} (fn []))))

(deftest a-macro-of-the-wrong-shape-says-so
  (are [form] (= :thrum/invalid (:type (ex-data (ex-cause (thrown (eval form))))))
    '(thrum.core/future-via exe 1)
    '(thrum.core/future-via [a b] 1)
    '(thrum.core/with-executor exe 1)
    '(thrum.core/with-executor [exe {} x] 1)))

(deftest the-largest-limit-is-a-limit
  (is (= [2] (t/pmap Long/MAX_VALUE inc [1]) (t/pmapv Long/MAX_VALUE inc [1]))))

(deftest map-without-a-collection-points-to-pmap
  (is (str/includes? (ex-message (thrown (t/map inc))) "(pmap limit f)")))

(deftest the-rows-write-their-documentation
  (is (= [":limit - how many tasks may run at once (a positive integer)"] (options/documented [:limit]))))

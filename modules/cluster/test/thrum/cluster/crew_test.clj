(ns thrum.cluster.crew-test
  "Which member takes the next run."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.cluster.impl.crew :as crew]
   [thrum.test-kit.gate :as gate])
  (:import
   (thrum.cluster.impl.crew Crew)))

(set! *warn-on-reflection* true)

(def ^:private members #{"m0" "m1"})

(defn- taken
  "Returns how many runs each member gets of so many."
  [crew n]
  (frequencies (repeatedly n #(crew/take! crew members nil))))

(deftest the-member-that-runs-the-fewest-takes-the-next-run
  (is (= {"m0" 5, "m1" 5} (taken (crew/crew) 10))))

(deftest a-member-that-rests-takes-no-run
  (let [crew (crew/crew)]
    (crew/rest! crew "m0" 60000)
    (is (= {"m1" 10} (taken crew 10)))
    (is (= "m1" (crew/take! crew members "m1")) "also where it is to be avoided")
    (crew/rest! crew "m1" 60000)
    (is (nil? (crew/take! crew members nil)))))

(deftest a-member-that-drains-or-is-reserved-takes-no-run
  (let [crew (crew/crew)]
    (crew/drains! crew "m0")
    (is (= {"m1" 10} (taken crew 10)))
    (is (nil? (crew/reserve! crew members nil)) "none would be left beside it"))
  (let [crew (crew/crew)
        reserved (crew/reserve! crew members "m0")]
    (is (= "m1" reserved) "the other is to be avoided")
    (is (= {"m0" 10} (taken crew 10)))
    (crew/free! crew reserved)
    (is (= reserved (crew/take! crew members nil)))))

(deftest a-member-that-is-gone-is-forgotten
  (let [crew (crew/crew)]
    (run! #(% crew "m0") [crew/drains! crew/met!])
    (crew/rest! crew "m0" 60000)
    (crew/take! crew #{"m1"} nil)
    (crew/retain! crew #{})
    (is (= {"m1" 1} (crew/loads crew)) "its run has not ended yet")
    (is (not (crew/met? crew "m0")))
    (is (= "m0" (crew/take! crew members nil)))))

(defn- waiting
  "Returns a promise of what a wait for (look) ends with, when that wait has begun."
  [crew look]
  (let [begun (promise)
        look #(let [found (look)] (deliver begun true) found)
        [_ outcome] (gate/start "waiter" #(crew/await! crew 20000 look))]
    (is (deref begun 5000 nil))
    outcome))

(deftest a-wait-for-a-reserved-member-ends-when-its-last-run-does
  (let [crew (crew/crew)]
    (crew/take! crew #{"m0"} nil)
    (crew/reserve! crew members "m1")
    (let [outcome (waiting crew #(when (crew/empty-handed? crew "m0") :empty))]
      (crew/give-back! crew "m0")
      (is (= {:value :empty} (deref outcome 5000 :late))))))

(deftest a-wait-for-a-member-ends-when-one-is-reserved-no-more
  (let [crew (crew/crew)]
    (is (= "m0" (crew/reserve! crew members "m1")))
    (crew/drains! crew "m1")
    (let [outcome (waiting crew #(crew/take! crew members nil))]
      (crew/free! crew "m0")
      (is (= {:value "m0"} (deref outcome 5000 :late))))))

(deftest a-wait-that-is-over-leaves-nothing
  (let [^Crew crew (crew/crew)]
    (is (nil? (crew/await! crew 1 (constantly nil))))
    (is (= :found (crew/await! crew 1 (constantly :found))))
    (is (= :found (crew/await! crew Long/MAX_VALUE (constantly :found))))
    (is (thrown? ArithmeticException (crew/await! crew 1 #(/ 1 0))))
    (is (empty? (.-waiters crew)))))

(ns thrum.server.impl.slot-test
  "What counts as the answer of an asynchronous handler."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.slot :as slot])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(deftest what-is-thrown-behind-the-answer-is-not-the-answer
  (is (= :first (slot/call (fn [_ respond _] (respond :first) (throw (Error. "late"))) {}))))

(deftest what-is-raised-and-is-no-throwable-is-named
  (let [e (try (slot/call (fn [_ _ raise] (raise :oops)) {}) (catch ExceptionInfo e e))]
    (is (= {:value :oops} (ex-data e)))))

(ns thrum.server.impl.async-handler-test
  "What counts as the answer of an asynchronous handler."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.async-handler :as async-handler])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(deftest what-is-thrown-behind-the-answer-is-not-the-answer
  (is (= :first (async-handler/call (fn [_ respond _] (respond :first) (throw (Error. "late")))
                                    {}))))

(deftest what-is-raised-and-is-no-throwable-is-named
  (let [e (try (async-handler/call (fn [_ _ raise] (raise :oops)) {}) (catch ExceptionInfo e e))]
    (is (= {:value :oops} (ex-data e)))))

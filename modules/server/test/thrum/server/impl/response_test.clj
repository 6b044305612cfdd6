(ns thrum.server.impl.response-test
  "What of a handler's headers is sent."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.impl.response :as response])
  (:import
   (thrum.server.impl.response Head)))

(set! *warn-on-reflection* true)

(defn- sent [^Head head]
  (vec (.-headers head)))

(defn- head [headers]
  (response/head {:status 200, :headers headers}))

(deftest a-handler-may-ask-for-the-end-of-the-connection-in-any-case
  (is (= ["Connection" "Close"] (sent (response/closing (head {"Connection" "Close"})))))
  (is (= ["Connection" "close"] (sent (response/closing (head {"Connection" "keep-alive"}))))))

(deftest a-header-that-is-nil-is-not-sent
  (is (= ["B" "x"] (sent (head {"A" nil, "B" "x"})))))

(deftest many-short-headers-are-too-long-as-well
  (let [of #(head (zipmap (map str (range 1000 (+ 1000 (long %)))) (repeat "")))]
    (is (= 4000 (count (sent (of 2000)))))
    (is (= :thrum/response (t/error-type (try (of 2001) (catch Exception e e)))))))

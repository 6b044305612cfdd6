(ns thrum.lab.store-test
  "Results on disk."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.lab.store :as store]
   [thrum.lab.temporary :as temporary])
  (:import
   (clojure.lang ExceptionInfo)))

(defn- temp-dir []
  (temporary/folder! "thrum-lab"))

(deftest a-result-comes-back-as-it-was
  (let [result {:experiments [{:experiment :x
                               :parts [{:contenders [{:samples [{:ms 1.5
                                                                 :curve [[0.1 1] [2.0 0]]}]}]
                                        :empty []
                                        :none nil}]}]
                :text "a \"quoted\" line\nand </script>"
                :set #{:a}}
        dir (temp-dir)]
    (is (= (assoc result :thrum.lab/version 1) (store/read! (store/write! dir "r.edn" result))))
    (is (= ["r.edn"] (seq (.list (io/file dir)))) "nothing half-written is left")))

(defn- refusal [text]
  (let [file (io/file (temp-dir) "r.edn")]
    (spit file text)
    (try
      (store/read! file)
      (catch ExceptionInfo e (when (= :thrum/lab-usage (:type (ex-data e))) (ex-message e))))))

(deftest what-is-no-result-is-refused
  (is (re-find #"version 2, not 1" (refusal "{:thrum.lab/version 2}")))
  (is (re-find #"no version" (refusal "[1 2]")))
  (is (re-find #"no EDN" (refusal "{:a")))
  (is (re-find #"cannot be read"
               (try
                 (store/read! (io/file (temp-dir) "none"))
                 (catch ExceptionInfo e (ex-message e))))))

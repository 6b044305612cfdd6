(ns thrum.repo.lint-test
  "The lint finds every seeded defect, and nothing else. It reads all Clojure of the repository."
  (:require
   [clojure.set :as set]
   [clojure.test :refer [deftest is]]
   [thrum.dev.lint :as lint]
   [thrum.repo.files :as files])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io File)))

(set! *warn-on-reflection* true)

(deftest the-lint-finds-what-was-seeded-and-nothing-else
  (is (= [[1 "namespace control.untidy has no docstring"] [3 "alias edn is never used"]
          [4 "referred difference is never used"] [8 "import Reader is never used"]
          [9 "import Date is never used"] [13 "private unused-constant is never used"]
          [17 "private unused-helper is never used"] [19 "public undocumented has no docstring"]
          [21 "binding e is never used"] [22 "binding g is never used"]
          [37 "binding e is never used"] [39 "public Shape has no docstring"]]
         (map (juxt :line :message)
              (lint/lint-file (File. "modules/test-kit/control/control/untidy.clj")
                              (constantly true))))))

(deftest every-file-is-linted-or-excluded
  (let [committed (set (filter #(re-find #"\.cljc?$" %) (files/committed)))
        linted (set (map str (lint/sources lint/everywhere)))]
    (is (= (set (keys lint/excluded)) (set/difference committed linted)))))

(deftest a-file-that-cannot-be-read-is-no-clean-one
  (let [file (File/createTempFile "no-ns" ".clj")]
    (try
      (spit file "(defn- unused [x] 1)")
      (is (= ["no ns form: the file is not read"]
             (map :message (lint/lint-file file (constantly true)))))
      (finally (.delete file)))))

(deftest a-folder-that-is-not-there-is-no-clean-one
  (is (thrown? ExceptionInfo (lint/sources ["no-such-folder"]))))

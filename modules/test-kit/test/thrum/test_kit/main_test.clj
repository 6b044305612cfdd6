(ns thrum.test-kit.main-test
  "The test command as a process: its last line, its exit code, its children."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.main :as main]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn- command
  "Runs the test command with args in a child JVM; returns [exit-code last-line]."
  [& args]
  (let [{:keys [exit lines]}
        (jvm/quietly (jvm/command (jvm/this-home) jvm/exports 'thrum.test-kit.main args) 280000)]
    [exit (jvm/last-line lines)]))

(deftest the-last-line-is-the-closing-line
  (is (= [0 "1 passed, 0 failed"]
         (command "--var" "thrum.test-kit.runner-test/the-closing-line-counts"))))

(deftest what-matches-no-test-is-refused
  (is (= [2 "No test matches {:ns \"no.such.namespace\"}"] (command "--ns" "no.such.namespace"))))

(deftest an-argument-it-does-not-know-is-refused
  (doseq [args [["--nope"] ["--times"] ["--times" "many"] ["--times" "0"] ["--limit-s" "-1"]]]
    (is (= :thrum.test-kit.main/arguments
           (try (main/parse-args args) (catch Exception e (:type (ex-data e)))))
        (pr-str args))))

(deftest a-module-that-does-not-exist-is-refused
  (let [e (is (thrown? clojure.lang.ExceptionInfo
                       (main/check-modules {:modules ["core" "sever"]} ["server" "core"])))]
    (is (= "No module \"sever\"; there are core, server" (ex-message e))))
  (is (= {:modules ["core"]} (main/check-modules {:modules ["core"]} ["server" "core"]))))

(deftest a-filter-keeps-the-run-in-this-jvm
  (is (= {:ns "x", :here true} (main/parse-args ["--ns" "x"])))
  (is (= {:modules ["core" "lab"]} (main/parse-args ["--module" "core" "--module" "lab"]))))

(deftest every-module-has-a-child
  (is (= [] (main/unshared (map runner/module (runner/test-folders)))))
  (is (= ["orphan"] (main/unshared ["core" "orphan"]))))

(deftest a-childs-totals-are-read-from-its-last-line
  (is (= {:passed 3, :failed 0, :skipped 1}
         (main/child-totals {:exit 0, :lines ["x" "3 passed, 0 failed, 1 skipped" ""]})))
  (is (= {:passed 3, :failed 1, :skipped 0}
         (main/child-totals {:exit 1, :lines ["3 passed, 1 failed"]}))))

(deftest a-child-that-died-has-failed
  (is (= 1 (:failed (main/child-totals {:exit 134, :lines ["# A fatal error"]}))))
  (is (= 1 (:failed (main/child-totals {:exit 137, :lines ["3 passed, 0 failed"]})))))

(deftest what-failed-is-said-once-more
  (let [lines ["thrum.a-test   1 passed, 1 failed, 3 ms" "    failed thrum.a-test/b - why"
               "    skipped thrum.a-test/c - why" "" "1 passed, 1 failed, 1 skipped"]]
    (is (= ["    failed thrum.a-test/b - why"]
           (main/failures {:totals {:failed 1}, :lines lines})))
    (is (nil? (main/failures {:totals {:failed 0}, :lines ["1 passed, 0 failed"]}))))
  (is (= ["    # A fatal error"] (main/failures {:totals {:failed 1}, :lines ["# A fatal error"]})))
  (is (= ["    printed nothing"] (main/failures {:totals {:failed 1}, :lines []}))))

(deftest a-child-that-hangs-is-killed
  (let [{:keys [exit lines]} (jvm/quietly ["sleep" "60"] 50)]
    (is (not= 0 exit))
    (is (= [] lines))))

(deftest a-java-home-tells-its-release
  (let [home (io/file (str (Files/createTempDirectory "java-home" (make-array FileAttribute 0))))
        java (io/file home "bin" "java")]
    (is (nil? (jvm/release home)))
    (io/make-parents java)
    (spit java "")
    (.setExecutable java true)
    (doseq [[version major] {"21.0.9" 21, "1.8.0_402" 8, "26-ea" 26}]
      (spit (io/file home "release") (str "IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"" version "\"\n"))
      (is (= major (jvm/release home)) version))
    (is (= (.feature (Runtime/version)) (jvm/release (jvm/this-home))))))

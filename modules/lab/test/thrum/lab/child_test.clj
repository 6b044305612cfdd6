(ns thrum.lab.child-test
  "Processes of the lab's own, and that they end."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.server :as server])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(deftest a-server-ends-by-itself-when-its-parent-is-gone
  (let [{:keys [^Process process] :as server} (child/start! (child/java-command server/jvm-opts 'thrum.lab.server))]
    (try
      (is (pos-int? (:port (child/ask server 50000))))
      (.close (.getOutputStream process))
      (is (.waitFor process 10 TimeUnit/SECONDS))
      (is (= 0 (.exitValue process)) "it was not killed")
      (finally (.destroyForcibly process)))))

(deftest a-child-that-ends-early-is-told-from-a-silent-one
  (let [child (child/start! ["sh" "-c" "echo 1; exit 3"])]
    (is (= 1 (child/ask child 10000)))
    (is (= "A process of the lab ended early" (try (child/ask child 10000) (catch ExceptionInfo e (ex-message e)))))
    (child/stop! child))
  (let [child (child/start! ["cat"])]
    (is (= "A process of the lab said nothing for 1 ms" (try (child/ask child 1) (catch ExceptionInfo e (ex-message e)))))
    (child/tell! child {:a 1})
    (is (= {:a 1} (child/ask child 10000)))
    (child/stop! child)
    (is (not (Process/.isAlive (:process child))))))

(deftest the-hard-file-limit-is-set
  (let [child (child/start! (child/under-file-limit 100 ["sh" "-c" "ulimit -Hn"]))]
    (is (= 100 (child/ask child 10000)))
    (child/stop! child)))

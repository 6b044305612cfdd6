(ns thrum.lab.processors-test
  "Processes on some of the processors only."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.proc :as proc]
   [thrum.lab.processors :as processors]
   [thrum.test-kit.runner :as runner])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(deftest a-list-of-processors-is-read
  (is (= [0 1 2 5] (processors/numbers "0-2,5")))
  (is (= [7] (processors/numbers "7"))))

(deftest a-command-is-kept-on-processors
  (is (= ["taskset" "-c" "2,3" "wrk" "http://h/"] (processors/on [2 3] ["wrk" "http://h/"]))))

(defn- allowed [{:keys [^Process process]}]
  (processors/numbers
    (second (re-find #"Cpus_allowed_list:\s+(\S+)"
                     (proc/text (str "/proc/" (.pid process) "/status"))))))

;; Where processes cannot be moved the bench asks no question that needs it.
(deftest a-running-child-is-moved-there-and-back
  (let [[ours theirs :as halves] (or (processors/halves)
                                     (runner/skip! "processes cannot be moved here"))
        child (child/start! ["cat"])]
    (try
      (is (= (processors/allowed) (concat ours theirs)) "the halves are all there is")
      (processors/move! child theirs)
      (is (= theirs (allowed child)))
      (processors/move! child (apply concat halves))
      (is (= (processors/allowed) (allowed child)))
      (is (thrown-with-msg? ExceptionInfo #"taskset failed" (processors/move! child [9999]))
          "there is no such processor")
      (finally (child/stop! child)))))

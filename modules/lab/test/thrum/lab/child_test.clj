(ns thrum.lab.child-test
  "Processes of the lab's own, and that they end."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.file-server :as file-server])
  (:import
   (clojure.lang ExceptionInfo)
   (java.lang ProcessHandle)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- problem
  "Returns [type message] of what (f) throws."
  [f]
  (try (f) (catch ExceptionInfo e [(:type (ex-data e)) (ex-message e)])))

(deftest a-server-ends-by-itself-when-its-parent-is-gone
  (let [{:keys [^Process process], :as server}
        (child/start! (child/java-command file-server/jvm-opts 'thrum.lab.file-server))]
    (try
      (is (pos-int? (:port (child/ask server 280000))))
      (.close (.getOutputStream process))
      (is (.waitFor process 30 TimeUnit/SECONDS))
      (is (= 0 (.exitValue process)) "it was not killed")
      (finally
        (.destroyForcibly process)))))

(deftest a-child-that-ends-early-is-told-from-a-silent-one
  (let [child (child/start! ["sh" "-c" "echo 1; exit 3"])]
    (is (= 1 (child/ask child 10000)))
    (is (= [:thrum/lab-child "A process of the lab ended early"]
           (problem #(child/ask child 10000))))
    (child/stop! child))
  (let [child (child/start! ["cat"])]
    (is (= [:thrum/lab-child "A process of the lab said nothing for 1 ms"]
           (problem #(child/ask child 1))))
    (child/send! child {:a 1})
    (is (= {:a 1} (child/ask child 10000)))
    (child/stop! child)
    (is (not (Process/.isAlive (:process child))))))

(deftest a-jvm-of-the-labs-own-does-not-complain-of-a-missing-logger
  (is (some #{"-Dslf4j.internal.verbosity=ERROR"} (child/java-command ["-Xmx64m"] 'some.main))))

(deftest the-hard-file-limit-is-set
  (let [child (child/start! (child/under-file-limit 100 ["sh" "-c" "ulimit -Hn"]))]
    (is (= 100 (child/ask child 10000)))
    (child/stop! child)))

(defn- ended? [^ProcessHandle handle]
  (.get (.onExit handle) 30 TimeUnit/SECONDS)
  (not (.isAlive handle)))

(deftest a-leash-ends-a-program-that-does-not-watch-its-parent
  (let [{:keys [^Process process], :as child} (child/start! (child/leashed
                                                              ["sh" "-c"
                                                               "echo $$; exec sleep 100"]))
        ^ProcessHandle program (.get (ProcessHandle/of (child/ask child 10000)))]
    (try
      (is (.isAlive program))
      (.close (.getOutputStream process))
      (is (ended? program))
      (is (.waitFor process 30 TimeUnit/SECONDS))
      (finally
        (child/stop! child)
        (.destroyForcibly program)))))

(deftest a-leashed-program-that-ends-early-is-told-from-a-silent-one
  (let [child (child/start! (child/leashed ["sh" "-c" "echo 1; exit 3"]))]
    (is (= 1 (child/ask child 10000)))
    (is (= [:thrum/lab-child "A process of the lab ended early"]
           (problem #(child/ask child 10000))))
    (child/stop! child)))

(deftest a-line-is-waited-for
  (let [child (child/start! ["sh" "-c" "echo starting; echo on port 80; echo more"])]
    (is (= ["on port 80" "80"] (child/await-match child #"on port (\d+)" 10000)))
    (is (= [:thrum/lab-child "A process of the lab ended early"]
           (problem #(child/await-match child #"never" 10000))))
    (child/stop! child))
  (let [child (child/start! ["cat"])]
    (is (= [:thrum/lab-child "A process of the lab said nothing for 1 ms"]
           (problem #(child/await-match child #"never" 1))))
    (child/stop! child)))

(deftest a-command-has-an-exit-code-and-options
  (let [command ["sh" "-c" "echo $GREETING; echo there >&2; pwd; exit 3"]
        options {:environment {"GREETING" "hi"}, :folder "/"}]
    (is (= {:exit 3, :output "hi\nthere\n/\n"} (child/run-to-end! command options 10000)))
    (is (= {:exit 3, :output "hi\n/\n"}
           (child/run-to-end! command (assoc options :errors-apart? true) 10000))))
  (is (= [:thrum/lab-silent "sleep did not end within 1 ms"]
         (problem #(child/run-to-end! ["sleep" "100"] {} 1)))))

(deftest ^{:time-limit-ms 20000} a-command-that-leaves-a-process-behind-is-not-waited-for
  (is (= {:exit 0, :output ""} (child/run-to-end! ["sh" "-c" "sleep 15 & exit 0"] {} 10000))))

(deftest a-program-that-is-not-there-is-a-sentence
  (doseq [start [child/start! #(child/run-to-end! % {} 1000)]]
    (let [[type message] (problem #(start ["no-such-program" "-v"]))]
      (is (= :thrum/lab-child type))
      (is (re-find #"^no-such-program cannot be run: " message)))))

(deftest garbage-and-a-problem-and-the-end-are-sentences
  (let [child (child/start!
                ["sh" "-c"
                 "echo '{:a'; echo '{:problem \"the port is busy\"}'; read line; exit 0"])]
    (is (= [:thrum/lab-child "A process of the lab said what is no EDN: {:a"]
           (problem #(child/ask child 10000))))
    (is (= [:thrum/lab-child "the port is busy"] (problem #(child/ask child 10000))))
    (child/send! child :go-on)
    (.waitFor ^Process (:process child))
    (is (= [:thrum/lab-child "A process of the lab ended early"]
           (problem #(dotimes [_ 2] (child/send! child :more)))))
    (child/stop! child)))

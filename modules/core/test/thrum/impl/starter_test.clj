(ns thrum.impl.starter-test
  "Who gets a turn where there is one carrier, and who starts whom."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.starter :as starter]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.util.concurrent Executor RejectedExecutionException)
   (java.util.concurrent.atomic AtomicBoolean)))

(set! *warn-on-reflection* true)

(deftest threads-that-each-start-another-leave-the-others-their-turn
  (doseq [one-carrier ["-Djdk.virtualThreadScheduler.parallelism=1"
                       "-Djdk.virtualThreadScheduler.maxPoolSize=1"]]
    (let [command (jvm/command (jvm/this-home) [one-carrier] 'thrum.one-carrier [])
          {:keys [lines]} (jvm/quietly command 120000 jvm/quick)]
      (is (= "other" (jvm/last-line lines)) [one-carrier lines]))))

(defn- thread-of
  "Returns [name virtual? class-loader] of the thread that a task of the executor runs on."
  [^Executor executor]
  (let [seen (promise)]
    (.execute executor #(let [thread (Thread/currentThread)]
                          (deliver seen [(.getName thread)
                                         (.isVirtual thread)
                                         (.getContextClassLoader thread)])))
    (deref seen 20000 :never)))

(def ^:private clean
  ["clean" true (ClassLoader/getSystemClassLoader)])

(defn- executor-with [carriers]
  (with-redefs [jdk/carriers (constantly carriers)]
    (starter/clean-executor "clean")))

(deftest a-task-runs-on-a-clean-virtual-thread
  (doseq [carriers [1 2]]
    (is (= clean (thread-of (executor-with carriers))) carriers)))

(deftest a-task-runs-where-no-platform-thread-can-be-had
  (let [none (reify Executor (execute [_ _] (throw (RejectedExecutionException.))))]
    (with-redefs [starter/starters none, starter/pause-ns -1]
      (is (= clean (thread-of (executor-with 1))) "a scout's")
      (with-redefs [starter/scouting (AtomicBoolean. true)]
        (is (= clean (thread-of (executor-with 1))) "the task's")))))

(defn- scout-back? []
  (gate/eventually 20000 #(not (.get ^AtomicBoolean @#'starter/scouting))))

(deftest a-scout-that-cannot-be-started-is-not-awaited
  (let [none (fn [& _] (throw (OutOfMemoryError. "none")))
        ^Executor executor (executor-with 1)]
    (is (scout-back?) "one of another test")
    (with-redefs [jdk/clean-thread none, starter/pause-ns -1]
      (is (= clean (thread-of executor)))
      (is (scout-back?)))))

(deftest others-start-threads-until-the-scout-has-had-its-turn
  (let [handed (atom [])
        others (reify Executor (execute [_ start] (swap! handed conj start)))
        ^Executor executor (executor-with 1)]
    (is (scout-back?) "one of another test")
    (with-redefs [starter/starters others]
      (with-redefs [starter/pause-ns -1]
        (dotimes [_ 3] (.execute executor (fn []))))
      (is (= 4 (count @handed)) "a scout and three threads")
      (with-redefs [starter/pause-ns Long/MAX_VALUE]
        (run! #(%) @handed)
        (is (scout-back?))
        (is (= clean (thread-of executor)))
        (is (= 4 (count @handed)))))))

(ns thrum.impl.starter-test
  "Who gets a turn where there is one carrier."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.starter :as starter]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.util.concurrent Executor)))

(set! *warn-on-reflection* true)

(def ^:private one-carrier
  ["-Djdk.virtualThreadScheduler.parallelism=1" "-Djdk.virtualThreadScheduler.maxPoolSize=1"])

(deftest threads-that-each-start-another-leave-the-others-their-turn
  (let [command (jvm/command (jvm/this-home) one-carrier 'thrum.one-carrier [])
        {:keys [lines]} (jvm/quietly command 120000 jvm/quick)]
    (is (= "other" (jvm/last-line lines)) lines)))

(defn- thread-of
  "Returns [name virtual? class-loader] of the thread that a task of the executor runs on."
  [^Executor executor]
  (let [seen (promise)]
    (.execute executor #(let [thread (Thread/currentThread)]
                          (deliver seen [(.getName thread)
                                         (.isVirtual thread)
                                         (.getContextClassLoader thread)])))
    (deref seen 20000 :never)))

(deftest a-task-runs-on-a-clean-virtual-thread
  (doseq [carriers [1 2]]
    (is (= ["clean" true (ClassLoader/getSystemClassLoader)]
           (with-redefs [jdk/carriers (constantly carriers)]
             (thread-of (starter/clean-executor "clean"))))
        carriers)))

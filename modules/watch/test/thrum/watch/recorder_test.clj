(ns thrum.watch.recorder-test
  "Tasks, scopes and requests as events of the Flight Recorder."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.spi.watch :as spi-watch]
   [thrum.test-kit.leak :as leak]
   [thrum.watch])
  (:import
   (java.nio.file Files Path)
   (java.nio.file.attribute FileAttribute)
   (java.util.concurrent CountDownLatch)
   (jdk.jfr Recording)
   (jdk.jfr.consumer RecordedEvent RecordingFile)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- read-events [^Recording recording]
  (let [file (Files/createTempFile "thrum" ".jfr" (make-array FileAttribute 0))]
    (try
      (.dump recording file)
      (into [] (filter #(str/starts-with? (.getName (.getEventType ^RecordedEvent %)) "thrum."))
            (RecordingFile/readAllEvents file))
      (finally (Files/delete ^Path file)))))

(defn- recorded
  "Returns the events of Thrum's of a recording, with these enabled, while f runs."
  [names f]
  (with-open [recording (Recording.)]
    (run! #(.enable recording ^String %) names)
    (.start recording)
    (f)
    (.stop recording)
    (read-events recording)))

(defn- named [events kind name]
  (first (filter (fn [^RecordedEvent e]
                   (and (= (str "thrum." kind) (.getName (.getEventType e)))
                        (str/starts-with? (str (.getString e "name")) name)))
                 events)))

(defn- value [^RecordedEvent event field]
  (.getValue event field))

(defn- nanos [^RecordedEvent event]
  (.toNanos (.getDuration event)))

(defn- checkout []
  (let [both-run (promise)]
    (try
      (t/with-scope [s {:name "checkout"}]
        (t/fork s {:name "fails"} (deref both-run) (throw (ex-info "x" {})))
        (t/fork s {:name "waits"} (deliver both-run true) (deref (promise))))
      (catch clojure.lang.ExceptionInfo _))))

(deftest tasks-and-scopes-are-recorded-where-a-recording-asks-for-them
  (let [events (recorded ["thrum.Task" "thrum.Scope"] checkout)
        scope (named events "Scope" "checkout")
        scope-name (value scope "name")
        fails (named events "Task" (str scope-name "/fails"))
        waits (named events "Task" (str scope-name "/waits"))]
    (is (= ["cancelled" "sibling-failed" 2] (map #(value scope %) ["state" "reason" "started"])))
    (is (= ["failed" scope-name] (map #(value fails %) ["state" "scope"])))
    (is (= "cancelled" (value waits "state")))
    (is (<= (nanos waits) (nanos scope)) "a scope lasts longer than its tasks")
    (is (.isVirtual (.getThread ^RecordedEvent fails)))))

(deftest the-end-of-a-task-asks-only-the-task
  (let [asked (atom #{}), facts spi-watch/facts, all-run (CountDownLatch. 20)
        run #(t/pmapv 20 (fn [_] (.countDown all-run) (.await all-run)) (range 20))]
    (with-redefs [spi-watch/facts (fn [thing]
                                    (let [known (facts thing)]
                                      (swap! asked conj (contains? known :children))
                                      known))]
      (is (= 20 (count (recorded ["thrum.Task"] run)))))
    (is (= #{false} @asked) "the facts of a fan-out take as long as it has children")))

(deftest a-reason-that-is-no-name-is-recorded-as-its-class
  (let [end (fn [reason]
              (try (t/with-scope [s {:name "ended"}] (t/cancel! s reason)) (catch Exception _)))
        reason #(some-> (named (recorded ["thrum.Scope"] (partial end %)) "Scope" "ended")
                        (value "reason"))]
    (is (= ["done" "in words" "java.lang.Long"] (map reason [:done "in words" 42])))))

(deftest they-are-off-by-default
  (is (= [] (recorded [] checkout))))

(defn- get! [s]
  (slurp (str "http://127.0.0.1:" (server/port s) "/orders?id=secret")))

(deftest requests-are-recorded-without-their-query
  (let [s (server/run-server (fn [_] {:status 200, :body "four"}) {:port 0, :max-concurrent 1})]
    (try
      ;; stop! waits for the exchange's end.
      (let [[event :as events] (recorded ["thrum.Request"] #(do (get! s) (server/stop! s)))]
        (is (= 1 (count events)))
        (is (= ["get" "/orders" 200 4 "done"]
               (map #(value event %) ["method" "path" "status" "bytes" "stage"])))
        (is (< 0 (value event "queued") (nanos event))))
      (finally (server/stop! s)))))

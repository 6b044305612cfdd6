(ns thrum.test-kit.leak-test
  "The leak check sees Thrum's threads, and no others."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn- start
  ^Thread [^String thread-name ^Runnable f]
  (.start (.name (Thread/ofVirtual) thread-name) f))

(defn- with-thread
  "Calls (f thread) while a virtual thread with this name waits."
  [thread-name f]
  (let [gate (CountDownLatch. 1)
        thread (start thread-name #(.await gate))]
    (try (f thread)
         (finally (.countDown gate) (.join thread)))))

(defn- reports
  "Returns what f reports to clojure.test."
  [f]
  (let [events (atom [])]
    (binding [clojure.test/report #(swap! events conj %)] (f))
    @events))

(deftest sees-a-thread-named-as-thrum-names-them
  (doseq [thread-name ["pmap-17/3" "future-1" "prun!-4/0" "my-fetch-9/12"]]
    (with-thread thread-name
      #(is (some #{%} (leak/threads)) thread-name)))
  (is (empty? (leak/threads))))

(deftest leaves-other-threads-alone
  (doseq [thread-name ["" "HttpClient-1-Worker-0" "mapper-x"]]
    (with-thread thread-name
      #(is (not-any? #{%} (leak/threads)) thread-name))))

(deftest a-left-over-thread-fails-the-test-once-and-is-named
  (with-thread "upmap-3/7"
    (fn [_]
      (let [[event :as events] (reports #(leak/check! 20))]
        (is (= [:fail] (map :type events)))
        (is (= ["upmap-3/7"] (:actual event)))
        (is (str/includes? (:message event) "CountDownLatch")))
      (is (= [] (reports #(leak/check! 20)))))))

(deftest a-thread-that-ends-in-time-is-no-leak
  (let [gate (promise)
        thread (start "pmap-1/1" #(deref gate))]
    (is (= [] (reports #(leak/no-leaks (fn [] (deliver gate :go))))))
    (is (gate/eventually 10000 #(not (.isAlive thread))))))

(ns thrum.server.impl.sink-test
  "What a sink takes, and when it takes no more."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.sink :as sink]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io ByteArrayOutputStream IOException OutputStream)))

(set! *warn-on-reflection* true)

(deftype Target [^ByteArrayOutputStream sent trail]
  sink/Target
  (begin! [_ _] (swap! trail conj :begun) sent)
  (send! [_ bytes] (swap! trail conj :sent) (.writeBytes sent bytes))
  (end! [_] (swap! trail conj :ended))
  (gone! [_] (swap! trail conj :gone)))

(defn- late
  "Returns what a target got of a body that (before out) writes, and that is written on when the
  sink has finished."
  [before]
  (let [sent (ByteArrayOutputStream.)
        trail (atom [])
        sink (sink/sink (Target. sent trail) nil)
        out (sink/stream sink)]
    (before out)
    (sink/finish! sink)
    (is (thrown? IOException (.write out (.getBytes "late"))))
    (.flush out)
    [(str sent) @trail]))

(deftest nothing-is-written-behind-the-end
  (is (= ["some" [:begun :ended]]
         (late (fn [^OutputStream out] (.write out (.getBytes "some")) (.flush out)))))
  (is (= ["some" [:sent]] (late (fn [^OutputStream out] (.write out (.getBytes "some")))))))

;; An engine that was given them could take that for a client that has gone.
(deftest bytes-beyond-the-array-begin-no-answer
  (let [trail (atom []), out (sink/stream (sink/sink (Target. nil trail) nil))]
    (doseq [[offset n] [[0 9000] [-1 2] [2 -1]]]
      (is (thrown? IndexOutOfBoundsException (.write out (byte-array 8192) offset n))))
    (is (= [] @trail))))

(deftest no-byte-is-taken-beyond-the-length
  (let [sent (ByteArrayOutputStream.)
        sink (sink/sink (Target. sent (atom [])) 4)
        out (sink/stream sink)]
    (.write out (.getBytes "four"))
    (is (thrown? IOException (.write out 5)))
    (sink/finish! sink)
    (is (= "four" (str sent)))))

(deftest a-client-that-has-gone-is-reported-once-a-write-or-a-flush-fails
  (doseq [failing [:write :flush]
          :let [trail (atom [])
                fail! #(when (= failing %) (throw (IOException. "Broken pipe")))
                broken (proxy [OutputStream] []
                         (write [_ _ n] (when (pos? (long n)) (fail! :write)))
                         (flush [] (fail! :flush)))
                target (reify sink/Target
                         (begin! [_ _] broken)
                         (gone! [_] (swap! trail conj :gone)))
                out (sink/stream (sink/sink target nil))]]
    (is (thrown? IOException (.write out (byte-array 100000)) (.flush out)) (str failing))
    (is (= [:gone] @trail) (str failing))))

(deftest the-end-of-a-body-wakes-the-thread-that-waits-for-it
  (let [made (promise)
        wait! #(let [sink (sink/sink (Target. (ByteArrayOutputStream.) (atom [])) nil)]
                 (deliver made sink)
                 (spi/wait-until sink nil (fn [] (sink/closed? sink))))
        [_ waited] (gate/start "handler" wait!)]
    (is (= :waits (deref waited 50 :waits)))
    (.close (sink/stream (deref made 5000 nil)))
    (is (contains? (deref waited 5000 nil) :value))))

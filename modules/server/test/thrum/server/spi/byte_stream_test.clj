(ns thrum.server.spi.byte-stream-test
  "A stream of one function is one of java.io."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.spi.byte-stream :as byte-stream]))

(set! *warn-on-reflection* true)

(deftest a-single-byte-is-from-0-to-255-and-the-end-is-less
  (let [left (atom [-1 0 127])
        in (byte-stream/input (fn [^bytes b offset _]
                                (if-some [x (first @left)]
                                  (do (aset b (int offset) (byte x)) (swap! left next) 1)
                                  -1)))]
    (is (= [255 0 127 -1] (repeatedly 4 #(.read in))))))

(deftest to-read-nothing-does-not-wait
  (let [in (byte-stream/input (fn [_ _ _] (throw (Error. "It waits"))))]
    (is (= 0 (.read in (byte-array 0))))
    (is (= 0 (.read in (byte-array 8) 8 0)))))

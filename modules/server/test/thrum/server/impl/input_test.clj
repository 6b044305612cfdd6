(ns thrum.server.impl.input-test
  "Who reads a request's body, and when."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.impl.input :as input]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io ByteArrayInputStream InputStream InterruptedIOException)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(defn- reader
  "Returns a reader that notes in the atom trail what it is called with."
  [trail]
  (reify input/Reader
    (read-begins [_] (swap! trail conj :begins))
    (read-ends [_] (swap! trail conj :ends))
    (overlong [_] (swap! trail conj :overlong))
    (broken [_] (swap! trail conj :broken))))

(defn- body
  "Returns a body of which each read calls (reading)."
  ^InputStream [trail reading]
  (input/guarded (proxy [InputStream] [] (read [_ _ _] (reading) 1)) (reader trail) nil))

;; No engine's stream is made for two threads: on :jetty a buffer was given back twice, and came to
;; hold bytes of two connections; on :tomcat the next request's bytes were taken.
(deftest one-thread-at-a-time-reads
  (let [inside (AtomicInteger.)
        most (atom 0)
        trail (atom [])
        in (body trail (fn []
                         (swap! most max (.incrementAndGet inside))
                         (Thread/yield)
                         (.decrementAndGet inside)))]
    (t/pmapv 8 (fn [_] (.read in (byte-array 1))) (range 400))
    (is (= 1 @most))
    (is (= {[:begins :ends] 400} (frequencies (partition 2 @trail))))))

(deftest the-wait-for-another-reader-can-be-interrupted
  (let [entered (promise), gate (promise), trail (atom [])
        in (body trail (fn [] (deliver entered true) (deref gate 20000 nil)))
        [_ first-read] (gate/start "first" #(.read in))
        _ (deref entered 5000 nil)
        [^Thread second-reader second-read] (gate/start "second" #(.read in))]
    (is (gate/eventually 5000 #(= Thread$State/WAITING (.getState second-reader))))
    (.interrupt second-reader)
    (is (instance? InterruptedIOException (:thrown (deref second-read 5000 nil))))
    (deliver gate :go)
    (is (= {:value 0} (deref first-read 5000 nil)))
    (is (= [:begins :ends] @trail) "nothing is wrong with the body")))

(deftest a-close-ends-nothing
  (let [closed (atom 0)
        in (input/guarded (proxy [ByteArrayInputStream] [(.getBytes "some")]
                            (close [] (swap! closed inc)))
                          (reader (atom []))
                          nil)]
    (.close in)
    (is (= ["some" 0] [(slurp in) @closed]))))

;; Else it is the engine's exception, for which :tomcat cuts the connection.
(deftest a-range-beyond-the-array-is-no-matter-of-the-body
  (let [trail (atom []), in (body trail (fn []))]
    (doseq [[offset n] [[3 9] [-1 2] [2 -1]]]
      (is (thrown? IndexOutOfBoundsException (.read in (byte-array 5) offset n))))
    (is (thrown? NullPointerException (.read in nil 0 1)))
    (is (= [] @trail))))

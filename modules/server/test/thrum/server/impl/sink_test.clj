(ns thrum.server.impl.sink-test
  "What a sink takes, and when it takes no more."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.sink :as sink])
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

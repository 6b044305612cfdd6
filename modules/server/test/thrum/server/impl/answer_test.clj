(ns thrum.server.impl.answer-test
  "When an answer is over, and how long it is."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.answer :as answer]
   [thrum.server.impl.body :as body]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.sink :as sink]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io File IOException OutputStream)))

(set! *warn-on-reflection* true)

(def ^:private wire-without-client
  (reify engine/Wire
    (unwatch! [_])
    (begin! [_ _ _ _] (byte-stream/output (fn [_ _ _] (throw (IOException. "Broken pipe")))))))

(defn- write-elsewhere!
  "Writes as Ring's bodies may in an async handler: on a thread of their own, which ends without a
  close where a write fails."
  [_ _ _ ^OutputStream out]
  (gate/start "writer" #(doto out (.write (.getBytes "some")) (.flush) (.close))))

(deftest a-body-that-another-thread-writes-ends-when-its-client-has-gone
  (with-redefs [body/write! write-elsewhere!]
    (is (thrown-with-msg? IOException #"The client has gone"
          (gate/in-time 5000
            #(answer/write-body! (exchange/exchange (traffic/traffic {:async? true})
                                                    wire-without-client)
                                 (response/head {:status 200})
                                 {}))))))

(defn- begun-and-written
  "Returns a wire that begins a response: notes its length and the bytes that are written in trail."
  [trail]
  (reify engine/Wire
    (unwatch! [_])
    (begin! [_ _ _ length]
      (swap! trail conj length)
      (byte-stream/output (fn [b offset n]
                            (swap! trail conj (String. ^bytes b (int offset) (int n))))))
    (send! [_ _ _ bytes] (swap! trail conj (String. ^bytes bytes)))
    (end! [_] (swap! trail conj :end))))

(deftest a-body-that-another-thread-writes-is-waited-for
  (let [trail (atom []), waiting (Thread/currentThread)
        parked? #(= Thread$State/WAITING (.getState waiting))
        write! (fn [_ _ _ ^OutputStream out]
                 (gate/start "writer" #(do
                                         (gate/eventually 5000 parked?)
                                         (doto out (.write (.getBytes "late")) (.close)))))]
    (with-redefs [body/write! write!]
      (answer/write-body! (exchange/exchange (traffic/traffic {:async? true})
                                             (begun-and-written trail))
                          (response/head {:status 200})
                          {}))
    (is (= ["late"] @trail))))

(deftest a-file-is-as-long-as-it-is
  (let [file (doto (File/createTempFile "thrum" ".txt") (.deleteOnExit) (spit "a whole file"))
        trail (atom [])]
    (answer/write-body! (exchange/exchange (traffic/traffic {}) (begun-and-written trail))
                        (response/head {:status 200, :headers {"Content-Length" "3"}})
                        {:body file})
    (is (= ["a whole file"] @trail))))

;; What writes a body may have swallowed the exception, and not every engine notices again.
(deftest nothing-is-sent-behind-a-write-that-failed
  (let [trail (atom [])
        x (exchange/exchange (traffic/traffic {}) (begun-and-written trail))
        answer (answer/answer x (response/head {:status 200}) :commit)]
    (sink/gone! answer)
    (doseq [send! [#(sink/begin! answer nil) #(sink/send! answer (byte-array 1))
                   #(sink/end! answer)]]
      (is (thrown-with-msg? IOException #"The client has gone" (send!))))
    (is (= [] @trail))))

(deftest a-client-is-watched-no-more-when-its-answer-begins
  (doseq [send! [#(sink/begin! % nil) #(sink/send! % (byte-array 1))]]
    (let [trail (atom [])
          wire (reify engine/Wire
                 (unwatch! [_] (swap! trail conj :unwatch))
                 (begin! [_ _ _ _] (swap! trail conj :sent))
                 (send! [_ _ _ _] (swap! trail conj :sent)))]
      (send! (answer/answer (exchange/exchange (traffic/traffic {}) wire)
                            (response/head {:status 200})
                            :commit))
      (is (= [:unwatch :sent] @trail)))))

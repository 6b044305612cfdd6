(ns thrum.server.impl.answer-test
  "When an answer is over."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.answer :as answer]
   [thrum.server.impl.body :as body]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io IOException OutputStream)))

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

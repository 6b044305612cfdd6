(ns thrum.server.engine.jetty.wire-test
  "What an abort makes of Jetty's own failures."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.wire :as wire])
  (:import
   (java.lang.reflect InvocationHandler Proxy)
   (org.eclipse.jetty.server Request)
   (org.eclipse.jetty.util Callback)))

(set! *warn-on-reflection* true)

(def ^:private ended-request
  "A request of an exchange that has ended: Jetty's has no state any more."
  (Proxy/newProxyInstance (.getClassLoader Request)
                          (into-array Class [Request])
                          (reify InvocationHandler
                            (invoke [_ _ _ _] (throw (NullPointerException.))))))

;; It was thrown to the end of the server, which then answered no other request.
(deftest an-abort-of-what-has-ended-meanwhile-throws-nothing
  (let [failed (promise)]
    (#'wire/fail! ended-request (reify Callback (failed [_ t] (deliver failed t))))
    (is (some? (deref failed 0 nil)))))

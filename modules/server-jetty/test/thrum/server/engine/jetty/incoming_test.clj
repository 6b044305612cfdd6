(ns thrum.server.engine.jetty.incoming-test
  "Who reads a request's body, and until when."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.engine.jetty.incoming :as incoming])
  (:import
   (java.lang.reflect InvocationHandler Proxy)
   (java.nio ByteBuffer)
   (java.util.concurrent CountDownLatch)
   (org.eclipse.jetty.io Content$Chunk Content$Source)
   (org.eclipse.jetty.server Request)
   (org.eclipse.jetty.util BufferUtil)))

(set! *warn-on-reflection* true)

(defn- request
  "Returns a request whose methods are these functions, by their names."
  ^Request [fs]
  (Proxy/newProxyInstance (.getClassLoader Request)
                          (into-array Class [Request])
                          (reify InvocationHandler
                            (invoke [_ _ method args] (apply (fs (.getName method)) args)))))

(defn- failed? [^Content$Source body]
  (let [chunk (.read body)]
    (and (some? chunk) (Content$Chunk/isFailure chunk))))

(deftest an-end-waits-for-a-read-and-lets-none-follow
  (let [entered (CountDownLatch. 1), gate (promise), reads (atom 0)
        body (incoming/body (request {"read" (fn []
                                               (swap! reads inc)
                                               (.countDown entered)
                                               (deref gate 10000 nil)
                                               nil)}))
        reading (t/future (.read ^Content$Source body))
        ended (t/future (.await entered) (incoming/end! body) :ended)]
    (.await entered)
    (is (= :waits (deref ended 100 :waits)))
    (deliver gate true)
    (is (= [nil :ended] [@reading @ended]))
    (is (failed? body))
    (is (= 1 @reads))))

;; A handler may leave a chunk half read.
(deftest what-is-read-of-jettys-goes-back-to-its-pool-at-once
  (let [released (atom 0)
        chunk #(Content$Chunk/from (ByteBuffer/wrap (.getBytes ^String %1))
                                   (boolean %2)
                                   ^Runnable (fn [] (swap! released inc)))
        chunks (atom [(chunk "four" false) nil (chunk "last" true) Content$Chunk/EOF])
        body (incoming/body (request {"read" #(ffirst (swap-vals! chunks next))}))
        taken #(.read ^Content$Source body)
        text #(BufferUtil/toString (.getByteBuffer ^Content$Chunk %))]
    (is (= ["four" 1] [(text (taken)) @released]))
    (is (nil? (taken)))
    (let [last-one (taken)]
      (is (= ["last" true 2] [(text last-one) (.isLast ^Content$Chunk last-one) @released])))
    (is (identical? Content$Chunk/EOF (taken)))))

(deftest who-asks-for-more-behind-the-end-is-called-at-once
  (let [body (incoming/body (request {})), called (promise)]
    (incoming/end! body)
    (.demand ^Content$Source body #(deliver called true))
    (is (true? (deref called 0 false)))
    (is (nil? (.fail ^Content$Source body (Exception.))))))

;; Before JDK 24 a thread that waits for a lock of Jetty's inside a monitor keeps its carrier.
(deftest no-monitor-is-held-in-a-call-of-jettys
  (let [body (promise)
        held (atom [])
        note #(fn [& _] (swap! held conj [% (Thread/holdsLock @body)]) nil)
        request (request {"read" (note :read), "demand" (note :demand), "fail" (note :fail)})]
    (deliver body (incoming/body request))
    (.read ^Content$Source @body)
    (.demand ^Content$Source @body (fn []))
    (.fail ^Content$Source @body (Exception.))
    (is (= [[:read false] [:demand false] [:fail false]] @held))))

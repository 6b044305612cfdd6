(ns thrum.server.engine.jetty.slow-test
  "How long a head has been coming, while the parser goes on from one to the next; and how long a
  handshake, while the time of day is set."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.slow :as slow]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.lang.reflect InvocationHandler Proxy)
   (java.nio ByteBuffer)
   (java.util WeakHashMap)
   (java.util.concurrent Executor)
   (javax.net.ssl SSLContext)
   (org.eclipse.jetty.http HttpParser HttpParser$RequestHandler)
   (org.eclipse.jetty.io ByteArrayEndPoint ByteBufferPool$NonPooling)
   (org.eclipse.jetty.io.ssl SslConnection)))

(set! *warn-on-reflection* true)

(def ^:private pausing
  "Has the parser pause behind each head and each message."
  (reify InvocationHandler
    (invoke [_ _ method _]
      (when (= Boolean/TYPE (.getReturnType method))
        (contains? #{"headerComplete" "messageComplete"} (.getName method))))))

(defn- parser ^HttpParser []
  (HttpParser. ^HttpParser$RequestHandler
    (Proxy/newProxyInstance (.getClassLoader HttpParser)
                            (into-array Class [HttpParser$RequestHandler])
                            pausing)))

(defn- parse-head! [^HttpParser parser]
  (run! #(.parseNext parser (ByteBuffer/wrap (String/.getBytes %)))
        ["GET / HTTP/1.1\r\nHost: a\r\n" "\r\n" ""])
  (.reset parser))

(defn- ages-while
  "Looks at the parser for a second, and so long that it has seen heads; returns the ages, in s."
  [parser done?]
  (loop [ages #{}]
    (if (and (seq ages) (done?))
      ages
      (recur (if-some [ms (#'slow/head-begun-ms parser)] (conj ages (quot (long ms) 1000)) ages)))))

(deftest a-head-is-as-old-as-its-own-beginning
  (let [parser (parser), over (promise), end (+ (System/nanoTime) 1000000000)
        heads (future (while (not (realized? over)) (parse-head! parser)))]
    (try
      (is (> 5 (long (reduce max (ages-while parser #(< end (System/nanoTime)))))))
      (finally
        (deliver over true)
        @heads))))

(defn- shaking-hands
  "Returns an end point whose client agrees on TLS; by the time of day it came so many ms ago."
  ^ByteArrayEndPoint [ms]
  (let [created (- (System/currentTimeMillis) (long ms))
        end-point (proxy [ByteArrayEndPoint] []
                    (getCreatedTimeStamp [] created))
        engine (.createSSLEngine (SSLContext/getDefault))]
    (.setConnection end-point (SslConnection. (ByteBufferPool$NonPooling.)
                                              (reify Executor (execute [_ f] (.run f)))
                                              end-point
                                              engine))
    end-point))

(deftest a-handshake-is-as-old-as-it-is-whatever-the-time-of-day
  (doseq [ms [3600000 -3600000]]
    (let [end-point (shaking-hands ms), seen (WeakHashMap.)
          waited-ms #(long (#'slow/waited-ms seen end-point))]
      (is (<= 0 (waited-ms) 60000) ms)
      (is (gate/eventually 20000 #(pos? (waited-ms))) ms))))

(ns thrum.server.engine.jetty.slow-test
  "How long a head has been coming, while the parser goes on from one to the next."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.slow :as slow])
  (:import
   (java.lang.reflect InvocationHandler Proxy)
   (java.nio ByteBuffer)
   (org.eclipse.jetty.http HttpParser HttpParser$RequestHandler)))

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

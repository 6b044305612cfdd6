(ns thrum.bench.request
  "What a request costs without an engine: CPU time and bytes of one thread, by layers.

      ./cljw -M:request-cost"
  (:require
   [thrum.server.impl.options :as options]
   [thrum.server.impl.request :as request]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.serve :as serve]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (com.sun.management ThreadMXBean)
   (java.lang.management ManagementFactory)
   (java.net InetAddress InetSocketAddress)))

(set! *warn-on-reflection* true)

(def ^:private ^ThreadMXBean threads (ManagementFactory/getThreadMXBean))

(def ^:private ^:const calls "How many a round has." 100000)
(def ^:private ^:const rounds 7)

(defn- round
  "Returns [ns bytes] of a call of f."
  [f]
  (let [id (.threadId (Thread/currentThread))
        bytes (.getThreadAllocatedBytes threads id)
        nanos (.getCurrentThreadCpuTime threads)]
    (dotimes [_ calls] (f))
    [(/ (- (.getCurrentThreadCpuTime threads) nanos) (double calls))
     (/ (- (.getThreadAllocatedBytes threads id) bytes) (double calls))]))

(defn- report!
  "Measures f, behind two rounds that are not counted, and prints a row."
  [layer f]
  (dotimes [_ 2] (round f))
  (let [taken (doall (repeatedly rounds #(round f))), nanos (sort (map first taken))]
    (println (format "| %s | %.0f | %.0f | %.0f |"
                     layer (first nanos) (nth nanos (quot rounds 2))
                     (apply min (map second taken))))))

(def ^:private browser
  "A browser's twelve headers."
  ["Host" "127.0.0.1:8080" "Cache-Control" "max-age=0" "sec-ch-ua"
   "\"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"" "sec-ch-ua-mobile" "?0" "sec-ch-ua-platform"
   "\"Linux\"" "Upgrade-Insecure-Requests" "1" "User-Agent"
   "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0"
   "Accept" "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
   "Sec-Fetch-Site" "same-origin" "Sec-Fetch-Mode" "navigate" "Accept-Encoding"
   "gzip, deflate, br, zstd" "Accept-Language" "en-GB,en;q=0.9,de;q=0.8"])

(defn- wire
  "Returns a wire that takes its response, and sends it nowhere."
  [headers]
  (let [local (InetSocketAddress. (InetAddress/getLoopbackAddress) 8080)
        headers (object-array headers)]
    (reify engine/Wire
      (method [_] "GET")
      (target [_] "/")
      (protocol [_] "HTTP/1.1")
      (scheme [_] "http")
      (authority [_] nil)
      (headers [_] headers)
      (remote [_] "127.0.0.1")
      (local [_] local)
      (certificate [_] nil)
      (body [_] nil)
      (send! [_ _ _ _])
      (unwatch! [_])
      (abort! [_]))))

(defn- handler [_]
  {:status 200, :headers {"Content-Type" "text/plain"}, :body "Hello.\n"})

(defn -main
  "Prints a table: of each layer the ns of a call, of the best round and of the median one, and its
  bytes."
  [& _]
  (let [engine {:name :none, :capabilities #{:http-1.0}, :rows {}}
        traffic (traffic/traffic (options/checked engine {:port 0}))
        settings (traffic/settings traffic)
        twelve (wire browser), host (wire (take 2 browser))]
    (println "| layer | best, ns | median, ns | bytes |\n|---|--:|--:|--:|")
    (report! "`->request`, twelve headers" #(request/->request twelve nil settings))
    (report! "`->request`, `Host` alone" #(request/->request host nil settings))
    (report! "the response's head" #(response/head (handler nil)))
    (report! "a scope" #(spi/call-in-scope {:name "request", :deadline nil} identity))
    (report! "`serve!`, twelve headers" #(serve/serve! traffic handler twelve))
    (report! "`serve!`, `Host` alone" #(serve/serve! traffic handler host))))

(ns thrum.lab.load.wrk-test
  "What wrk is asked, and what is read from its answer."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.load.wrk :as wrk]))

(defn- report [& more]
  (str/join "\n" (concat ["Running 1s test @ http://127.0.0.1:8080/"
                          "  12 threads and 120 connections"
                          "  Thread Stats   Avg      Stdev     Max   +/- Stdev"
                          "    Latency    52.14ms    2.01ms   1.20s    91.45%"
                          "    Req/Sec   190.35     16.91   232.00     73.91%"
                          "  Latency Distribution"
                          "     50%  980.00us"
                          "     75%   52.59ms"
                          "     90%   54.05ms"
                          "     99%    1.10s "
                          "  22180 requests in 10.02s, 3.09MB read"]
                         more
                         ["Requests/sec:   2213.77" "Transfer/sec:    315.60KB" ""])))

(deftest a-report-is-read
  (is (= {:requests 22180
          :seconds 10.02
          :per-second 2213.77
          :p50-ms 0.98
          :p99-ms 1100.0
          :max-ms 1200.0
          :errors {}}
         (wrk/figures (report)))))

(deftest errors-are-read-by-kind
  (is (= {:connect 1, :read 2, :timeout 364, :status 7}
         (:errors (wrk/figures (report "  Socket errors: connect 1, read 2, write 0, timeout 364"
                                       "  Non-2xx or 3xx responses: 7"))))))

(deftest a-run-without-answers-is-a-report-too
  (is (= [0 nil]
         ((juxt :requests :p50-ms)
          (wrk/figures "  0 requests in 1.00s, 0.00B read\nRequests/sec:      0.00\n"))))
  (is (nil? (wrk/figures "unable to connect to 127.0.0.1:1 Connection refused\n"))))

(deftest wrk-is-asked-as-published
  (is (= ["wrk" "--latency" "-t" "12" "-c" "4000" "-d" "10s" "--timeout" "10s" "-H" "Accept: */*"
          "http://h/"]
         (wrk/command {:url "http://h/"
                       :connections 4000
                       :seconds 10
                       :timeout-ms 10000
                       :headers [["Accept" "*/*"]]})))
  (is (= "3" (nth (wrk/command {:url "http://h/", :connections 3, :seconds 1, :timeout-ms 1}) 3))
      "not more threads than connections")
  (is (= ["taskset" "-c" "1" "wrk"]
         (take 4 (wrk/command {:url "http://h/", :connections 3, :seconds 1, :timeout-ms 1
                               :processors [1]})))
      "on a part of the processors"))

(ns thrum.lab.load.ab-test
  "What ab is asked, and what is read from its answer."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.load.ab :as ab]))

(defn- report
  "Returns what ab prints, captured, with lines of its own after the failed requests."
  [failed & more]
  (str/join "\n" (concat ["This is ApacheBench, Version 2.3 <$Revision$>"
                          "Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/"
                          ""
                          "Benchmarking 127.0.0.1 (be patient).....done"
                          ""
                          "Document Length:        27 bytes"
                          ""
                          "Concurrency Level:      100"
                          "Time taken for tests:   2.163 seconds"
                          "Complete requests:      100"
                          (str "Failed requests:        " failed)]
                         more
                         ["Total transferred:      14500 bytes"
                          "Requests per second:    46.23 [#/sec] (mean)"
                          "Time per request:       2163.000 [ms] (mean)"
                          ""
                          "Connection Times (ms)"
                          "              min  mean[+/-sd] median   max"
                          "Total:       1005 1030   9.0   1031    1069"
                          ""
                          "Percentage of the requests served within a certain time (ms)"
                          "  50%   1031"
                          "  99%   1062"
                          " 100%   1069 (longest request)"
                          ""])))

(deftest a-report-is-read
  (is (= {:requests 100
          :seconds 2.163
          :per-second 46.23
          :p50-ms 1031.0
          :p99-ms 1062.0
          :max-ms 1069.0
          :errors {}}
         (ab/figures (report 0)))))

(deftest failed-requests-are-read-by-kind
  (is (= {:read 1, :length 4, :status 3}
         (:errors (ab/figures (report 5
                                      "   (Connect: 0, Receive: 1, Length: 4, Exceptions: 0)"
                                      "Non-2xx responses:      3")))))
  (is (= {:failed 5} (:errors (ab/figures (report 5)))) "of a version that names no kinds")
  (is (= {:status 100} (:errors (ab/figures (report 0 "Non-2xx responses:      100"))))))

(deftest what-is-no-report-has-no-figures
  (is
    (nil?
      (ab/figures
        (str "Benchmarking 127.0.0.1 (be patient)...Total of 1 requests "
             "completed\napr_socket_recv: Connection reset by peer (104)\n")))))

(deftest ab-is-asked-for-a-burst
  (is (= ["ab" "-q" "-n" "100" "-c" "20" "-s" "3" "-H" "Accept: */*" "http://h/"]
         (ab/command {:url "http://h/"
                      :requests 100
                      :connections 20
                      :timeout-ms 2500
                      :headers [["Accept" "*/*"]]}))))

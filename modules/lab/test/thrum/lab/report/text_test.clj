(ns thrum.lab.report.text-test
  "The tables of the terminal, to the letter."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.samples :as samples]
   [thrum.lab.report.text :as report.text]
   [thrum.lab.text :as text]))

(def ^:private golden
  ["Downloads"
   "  How long? 100 files of 60 kB, each sent at 500 kB/s. Scaled: files of 60 kB instead of 6 MB."
   "  contender             median  samples  limit line  x limit  in flight   ok  failed  published"
   (str "  clojure.core/map      12.6 s        1      12.0 s    1.05x          1  100       0  1 "
        "103 s (limit line 1 103 s)")
   "  t/map                  broke        1      120 ms        –        100   42      58"
   "  platform pool of 50  not run        0      240 ms        –          –    –       –"
   "  t/map broke, as declared: 58 too many open files."
   ""
   "Files"
   "  Who gets home?"
   "  Skipped: no shell."
   ""
   "Machine"
   "  CPU: Test CPU, 2 for this JVM"
   "  Memory: 8.0 GB, of which the heap may take 2.0 GB"
   "  System: Linux 6 amd64"
   "  Load before the run: 0.5"
   "  JDK: 25, Test VM (Vendor), G1"
   "  Flags: -Xmx1g"
   "  Clojure: 1.12.6"
   "  Open files: 1024, hard limit 4096"
   "  Source: abc"])

(deftest the-report-is-a-table
  (is (= golden (str/split-lines (str/replace (report.text/report samples/result) "\u00a0" " ")))))

(deftest the-report-opens-on-what-was-published
  (is
    (=
      ["Published, and here"
       "  Each row: the slow way → the fast way. What was published is of other"
       "  machines; the limit line is the best that arithmetic allows at the sizes of" "  this run."
       "                    published         here              limit line         factor"
       "  100 downloads     1 103 s → 11.1 s  12.6 s → 200 ms   12.0 s → 120 ms     63.0x"
       "  Ring on Jetty     843/s → 2 218/s   950/s → 2 213/s   1 000/s → 2 400/s   2.33x"
       "  Ring on http-kit  928/s → 2 209/s   –                 1 000/s → 2 400/s       –"
       "  core.async's go   107 → 25 threads  107 → 12 threads  1.00 s              8.92x"
       "  Spring on Tomcat  6.16 s → 2.16 s   5.10 s → 4.90 s   5.00 s → 1.00 s     1.04x" ""
       "  100 downloads: Confirmed, but less than published: all wait at once; pmap"
       "    takes 512 ms."]
      (take 13
        (str/split-lines (str/replace (report.text/report samples/published) "\u00a0" " "))))))

(deftest what-still-runs-has-a-column
  (is (= ["  contender     median  samples  limit line  x limit  in flight  still running"
          "  futures       201 ms        1      200 ms    1.01x          4              1"
          "  t/with-scope  202 ms        1      200 ms    1.01x          4              0"]
         (take 3 (drop 2 (str/split-lines (report.text/report samples/answers)))))))

(deftest a-server-under-load-has-columns-of-its-own
  (is
    (=
      ["Jetty under load"
       (str
         (str "  How many? 4 000 connections for 10 s, after 5 s to warm up; each contender has "
              "a server in a JVM of its own. ")
         "The load came from wrk.")
       (str "  contender             median  samples  limit line  x limit      p50      p99      "
            "              errors  threads     RSS  heap each  published")
       (str "  platform pool of 50    950/s        2     1 000/s    0.95x   118 ms   205 ms  2 "
            "read and 3 641 timeout    58–59  280 MB          –  843/s (limit line 1 000/s)")
       (str "  thrum.server         2 213/s        1    80 000/s    0.92x  51.0 ms  62.0 ms      "
            "                   0       12  361 MB      34 kB")
       (str "  Jetty                 failed        1           –        –        –        –      "
            "                   –        –       –          –")
       "  Jetty FAILED: lab-child: The server did not start."]
      (take 7 (str/split-lines (str/replace (report.text/report samples/loaded) "\u00a0" " "))))))

(deftest requests-at-once-are-a-table-and-a-curve
  (is
    (=
      ["At once"
       (str
         (str "  When? 100 requests of 1.00 s at once, a connection for each; a JVM for each "
              "configuration. ")
         "Warm: after 3 100 others, which do not count. The requests came from ab.")
       "  contender   median  samples  limit line  x limit   ok  failed     p50     p99"
       "  20 threads  5.06 s        1      5.00 s    1.01x  100       0  3.02 s  5.05 s"
       "  virtual     1.06 s        1      1.00 s    1.06x  100       0  1.02 s  1.04 s"
       "  virtual: 4.77x as fast as 20 threads; arithmetic allows 5.00x, published 2.85x." "" "More"
       (str
         (str "  And more? 10 and 400 requests of 100 ms at once, a connection for each; a JVM "
              "for each configuration. ")
         "The requests came from the lab's built-in generator.")
       "  contender        10 at once      400 at once"
       "  20 threads  104 ms (100 ms)  2.10 s (2.00 s)"
       "  virtual                   –                –" "  virtual FAILED: lab-load: No answer."]
      (take 13 (str/split-lines (str/replace (report.text/report samples/crowds) "\u00a0" " "))))))

(deftest what-channels-leave-has-columns
  (is
    (=
      ["Requests" "  How long?"
       (str "  contender   median            cold  samples  limit line  x limit  in flight  "
            "threads  published")
       "  go, alpha  skipped               –        0           –        –          –        –"
       (str "  go, avoid   1.06 s  1.25 s (1.25x)        2      1.00 s    1.06x        100  "
            "107–108  4.71 s, 107 threads (limit line 1.00 s)")
       "  go, alpha was skipped: no checkout." "" "Items" "  What is left?"
       (str "  contender       median  samples  limit line  x limit  in flight  threads          "
            "  left, closed  taken after  left, unread")
       (str "  pipeline-async  1.83 s        2      965 ms    1.90x         52       43  1 "
            "platform, 63 virtual      5–2 189             0")
       (str "  a/upipeline     1.19 s        1      1.00 s    1.19x         50       13          "
            "             0            0     2 virtual")]
      (take 12
        (str/split-lines (str/replace (report.text/report samples/channels) "\u00a0" " "))))))

(deftest an-interrupted-result-says-so-first
  (is (str/starts-with? (report.text/report
                          (assoc-in samples/result [:experiments 0 :interrupted?] true))
                        "Interrupted:")))

(deftest other-work-on-the-machine-is-told
  (let [result (assoc samples/result :machine (assoc samples/machine :load 27.4))]
    (is (str/starts-with?
          (report.text/report result)
          "Other work ran on this machine: its load was 27.4 before the run, on 2 processors."))
    (is (str/includes? (report.html/page result) "<p class=\"note\">Other work ran")))
  (is (not (str/includes? (report.text/report samples/result) "Other work"))))

(deftest other-work-during-the-run-is-told
  (let [report #(report.text/report (assoc-in samples/result [:machine :other-work] %))]
    (is (str/starts-with?
          (report 0.41)
          (str "Other work took 41 % of the processors' time during the run. Run it again before "
               "you conclude anything.")))
    (is (not (str/includes? (report 0.1) "Other work")))
    (is (not (str/includes? (report nil) "Other work")))))

(deftest outcomes-are-lines
  (let [outcomes [{:line 2, :url "http://a/", :status 200, :bytes 1000}
                  {:line 3, :url "x", :kind :bad-url, :message "no URL"}]]
    (is (= "t/pmap 8\n2  200  1 kB  http://a/\n3  x  bad url  no URL"
           (report.text/outcomes
             {:experiments [{:parts [{:contenders [{:name "t/pmap 8"
                                                    :samples [{:outcomes outcomes}]}]}]}]})))))

(deftest figures-have-units
  (are [words got] (= words (str/replace got "\u00a0" " "))
    "3.21 ms" (text/ms 3.214)
    "44.2 ms" (text/ms 44.21)
    "213 ms" (text/ms 213.4)
    "1.00 s" (text/ms 999.9)
    "44.2 s" (text/ms 44213.3)
    "1 103 s" (text/ms 1102802)
    "–" (text/ms nil)
    "1.05x" (text/ratio 1.05)
    "6 MB" (text/bytes 6000000)
    "1.5 kB" (text/bytes 1500)
    "999.9 kB" (text/bytes 999949)
    "1 MB" (text/bytes 999950)
    "1 GB" (text/bytes 999950000)
    "1 min 20 s" (text/duration 80000)
    "a, b and c" (text/commas ["a" "b" "c"])))

(ns thrum.lab.report.samples
  "A small result for the tests of both reports.")

(def machine
  {:cpu "Test CPU"
   :cpus 2
   :memory-gb 8.0
   :load 0.5
   :os "Linux 6 amd64"
   :clojure "1.12.6"
   :jdk {:version "25"
         :vm "Test VM"
         :vendor "Vendor"
         :flags ["-Xmx1g"]
         :collectors ["G1"]
         :max-heap-gb 2.0}
   :ulimit {:open-files 1024, :hard "4096"}
   :git {:sha "abc", :changed? false}})

(defn- result-of [& experiments]
  {:machine machine, :options {}, :experiments (vec experiments)})

(defn- experiment [experiment title & parts]
  {:experiment experiment, :title title, :parts (vec parts)})

(defn- row [contender row-name about verdict & {:as more}]
  (merge {:contender contender, :name row-name, :about about, :verdict verdict} more))

(defn- timed
  "A row that took so many ms, with a limit line."
  [contender row-name about limit median & {:as more}]
  (merge (row contender row-name about :done)
         {:limit-line-ms limit, :median-ms median, :samples [{:ms median}]}
         more))

(defn- loaded-row
  "A row of a server that answered so many requests per second, with a limit line."
  [contender row-name about limit median & {:as more}]
  (merge (row contender row-name about :done)
         {:limit-line-per-second limit
          :median-per-second median
          :samples [{:per-second median}]}
         more))

(def result
  (assoc
    (result-of
      (experiment :fan-out "Fan-out"
        {:part :downloads
         :title "Downloads"
         :about "How long?"
         :n 100
         :bytes 60000
         :rate 500000
         :scaled "Scaled: files of 60 kB instead of 6 MB."
         :contenders
         [(timed :core-map "clojure.core/map" "one by one" 12000.0 12600.0
                 :over-limit 1.05
                 :published {:ms 1102802.0, :limit-line-ms 1102802.0}
                 :samples [{:ms 12600.0, :ok 100, :failed 0, :peak 1, :kinds {}
                            :curve [[0 1] [12600.0 0]]}])
          (row :thrum-map "t/map" "all at once" :broke
               :thrum? true
               :limit-line-ms 120.0
               :expect :breaks
               :samples [{:ms 130.0, :ok 42, :failed 58, :peak 100
                          :kinds {:too-many-open-files 58}
                          :messages {:too-many-open-files "Too many open files"}
                          :curve [[0 100] [130.0 0]]}])
          (row :pool "platform pool of 50" "fixed" :not-run :limit-line-ms 240.0)]}
        {:part :files, :title "Files", :about "Who gets home?", :skipped "no shell"}))
    :thrum.lab/version 1
    :started "2026-11-21T00:00:00Z"))

(def answers
  "A result of the experiment scope."
  (result-of
    (experiment :scope "Scope"
      {:part :hangs
       :title "One hangs"
       :about "How long?"
       :n 4
       :limit-line-about "the deadline"
       :watch-ms 50
       :contenders [(timed :futures "futures" "as usual" 200.0 201.0
                           :over-limit 1.005
                           :samples [{:ms 201.0, :left 1, :peak 4, :watched-ms 251.0
                                      :curve [[0 4] [50.0 1] [251.0 0]]}])
                    (timed :thrum-scope "t/with-scope" "a fork each" 200.0 202.0
                           :thrum? true
                           :over-limit 1.01
                           :samples [{:ms 202.0, :left 0, :peak 4, :watched-ms 252.0
                                      :curve [[0 4] [50.0 1] [202.0 0]]}])]})))

(def loaded
  "A result of a server under load."
  (result-of
    (experiment :ring-jetty "Ring on Jetty"
      {:part :jetty-sleep
       :title "Jetty under load"
       :about "How many?"
       :connections 4000
       :seconds 10
       :warm-up-seconds 5
       :limit-line-about "connections ÷ sleep"
       :contenders
       [(loaded-row :pool-50 "platform pool of 50" "alone" 1000.0 950.0
                    :of-limit 0.95
                    :published {:per-second 843, :limit-line-per-second 1000.0}
                    :samples [{:per-second 950.0, :p50-ms 118.0, :p99-ms 204.0
                               :errors {:timeout 3600}, :threads 58, :rss 280000000
                               :generator :wrk}
                              {:per-second 951.0, :p50-ms 118.0, :p99-ms 206.0
                               :errors {:timeout 41, :read 2}, :threads 59, :rss 280000000
                               :generator :wrk}])
        (loaded-row :thrum "thrum.server" "run-server" 80000.0 2213.0
                    :thrum? true
                    :of-limit 0.92
                    :samples [{:per-second 2213.0, :p50-ms 51.0, :p99-ms 62.0, :errors {}
                               :threads 12, :rss 361000000, :heap-each 34000.0
                               :generator :wrk}])
        (row :bare "Jetty" "alone" :failed
             :samples [{:error {:class "lab-child", :message "The server did not start"}}])]})))

(def crowds
  "A result of the experiment spring-tomcat."
  (result-of
    (experiment :spring-tomcat "Spring"
      {:part :spring-100
       :title "At once"
       :about "When?"
       :n 100
       :sleep-ms 1000
       :limit-line-about "rounds"
       :against [{:slow :pool, :fast :virtual, :published 2.85} {:slow :pool, :fast :not-there}]
       :contenders [(timed :pool "20 threads" "max=20" 5000.0 5060.0
                           :over-limit 1.01
                           :samples [{:ms 5060.0, :ok 100, :failed 0, :p50-ms 3020.0
                                      :p99-ms 5050.0, :generator :ab}])
                    (timed :virtual "virtual" "profile" 1000.0 1060.0
                           :virtual? true
                           :over-limit 1.06
                           :samples [{:ms 1060.0, :ok 100, :failed 0, :p50-ms 1020.0
                                      :p99-ms 1040.0, :generator :ab}])]}
      {:part :spring-curve
       :title "More"
       :about "And more?"
       :n 2
       :sleep-ms 100
       :crowds [10 400]
       :limit-line-about "rounds"
       :contenders
       [(row :pool "20 threads" "max=20" :done
             :limit-points [[10 100.0] [400 2000.0]]
             :median-points [[10 104.0] [400 2100.0]]
             :samples [{:points [[10 104.0] [400 2100.0]], :generator :built-in}])
        (row :virtual "virtual" "profile" :failed
             :virtual? true
             :limit-points [[10 100.0] [400 100.0]]
             :samples [{:error {:class "lab-load", :message "No answer"}}])]})))

(def channels
  "A result of the experiments go-blocks and pipelines."
  (result-of
    (experiment :go-blocks "go blocks"
      {:part :go-blocks
       :title "Requests"
       :about "How long?"
       :n 100
       :limit-line-about "one round"
       :contenders [(row :go-target "go, alpha" "target" :skipped :skipped "no checkout")
                    (timed :go-avoid "go, avoid" "avoid" 1000.0 1060.0
                           :over-limit 1.06
                           :published {:ms 4712.4, :limit-line-ms 1000.0, :threads 107}
                           :samples [{:ms 1050.0, :cold-ms 1200.0, :threads 107, :peak 100}
                                     {:ms 1070.0, :cold-ms 1300.0, :threads 108, :peak 100}])]})
    (experiment :pipelines "Pipelines"
      {:part :pipelines
       :title "Items"
       :about "What is left?"
       :n 10000
       :limit-line-about "rounds"
       :contenders [(timed :core-pipeline-async "pipeline-async" "n + 2" 965.0 1830.0
                           :over-limit 1.9
                           :samples [{:ms 1830.0, :threads 43, :peak 52
                                      :closed {:platform 1, :virtual 63, :taken 2189}
                                      :unread {:platform 0, :virtual 0, :taken 0}}
                                     {:ms 1830.0, :threads 43, :peak 52
                                      :closed {:platform 0, :virtual 61, :taken 5}
                                      :unread {:platform 0, :virtual 0, :taken 0}}])
                    (timed :thrum-upipeline "a/upipeline" "ours" 1000.0 1190.0
                           :thrum? true
                           :over-limit 1.19
                           :samples [{:ms 1190.0, :threads 13, :peak 50
                                      :closed {:platform 0, :virtual 0, :taken 0}
                                      :unread {:platform 0, :virtual 2, :taken 9}}])]})))

(defn- headlined [system figure pairs beside part]
  (assoc part
         :headline
         (cond-> {:system system, :figure figure, :pairs pairs, :because "all wait at once"}
           beside (assoc :beside beside))))

(defn- published-ms [ms limit] {:ms ms, :limit-line-ms limit})
(defn- published-rate [n limit] {:per-second n, :limit-line-per-second limit})

(def published
  "A result of what was published: less than published, as published, skipped, on fewer threads, and
  worse."
  (assoc
    (result-of
      (experiment :fan-out "Fan-out"
        (headlined "100 downloads" :ms [[:core-map :thrum-pmap]] [:core-pmap "pmap takes %s"]
          {:part :downloads
           :title "Downloads"
           :n 100
           :contenders
           [(timed :core-map "map" nil 12000.0 12600.0
                   :published (published-ms 1102802.0 1102802.0))
            (timed :core-pmap "pmap" nil 480.0 512.0)
            (timed :thrum-pmap "t/pmap" nil 120.0 200.0
                   :thrum? true, :published (published-ms 11090.5 11028.0))]}))
      (experiment :ring-jetty "Jetty"
        (headlined "Ring on Jetty" :per-second [[:pool-50 :thrum]]
                   [:pool-all "a pool of 120 answers %s"]
                   {:part :jetty-sleep
                    :title "Under load"
                    :connections 120
                    :contenders
                    [(loaded-row :pool-50 "pool" nil 1000.0 950.0
                                 :published (published-rate 843 1000.0))
                     (row :pool-all "large pool" nil :not-run)
                     (loaded-row :thrum "thrum.server" nil 2400.0 2213.0
                                 :thrum? true, :published (published-rate 2218 2400.0))]}))
      (experiment :ring-http-kit "http-kit"
        (headlined "Ring on http-kit" :per-second [[:pool-50 :thrum]] nil
          {:part :http-kit-sleep
           :title "http-kit"
           :skipped "it is on Clojars"
           :contenders [(row :pool-50 "pool" nil :not-run
                             :limit-line-per-second 1000.0
                             :published (published-rate 928 1000.0))
                        (row :thrum "thrum.server" nil :not-run
                             :limit-line-per-second 2400.0
                             :published (published-rate 2209 2400.0))]}))
      (experiment :go-blocks "go blocks"
        (headlined "core.async's go" :threads [[:go-avoid :go-target] [:go :go-factory]] nil
          {:part :go-blocks
           :title "Requests"
           :n 100
           :contenders
           [(row :go-avoid "avoid" nil :skipped
                 :limit-line-ms 1000.0
                 :skipped "no network"
                 :published (assoc (published-ms 4712.4 1000.0) :threads 107))
            (row :go-target "target" nil :skipped
                 :limit-line-ms 1000.0
                 :skipped "no network"
                 :published (assoc (published-ms 3653.0 1000.0) :threads 25))
            (timed :go "go" nil 1000.0 1030.0 :samples [{:ms 1030.0, :threads 107}])
            (timed :go-factory "factory" nil 1000.0 1050.0
                   :thrum? true, :samples [{:ms 1050.0, :threads 12}])]}))
      (experiment :spring-tomcat "Spring"
        (headlined "Spring on Tomcat" :ms [[:platform :virtual]] nil
          {:part :spring-100
           :title "At once"
           :n 100
           :contenders [(timed :platform "20" nil 5000.0 5100.0
                               :published (published-ms 6161.0 6000.0))
                        (timed :virtual "virtual" nil 1000.0 4900.0
                               :published (published-ms 2163.0 2000.0))]})))
    :options {:form :tour}))

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
         :vendor "Nobody"
         :flags ["-Xmx1g"]
         :collectors ["G1"]
         :max-heap-gb 2.0}
   :ulimit {:open-files 1024, :hard "4096"}
   :git {:sha "abc", :changed? false}})

(def result
  {:thrum.lab/version 1
   :started "2026-11-21T00:00:00Z"
   :options {}
   :machine machine
   :experiments
   [{:experiment :fan-out
     :title "Fan-out"
     :parts [{:part :downloads
              :title "Downloads"
              :about "How long?"
              :n 100
              :bytes 60000
              :rate 500000
              :scaled "Scaled: files of 60 kB instead of 6 MB."
              :contenders
              [{:contender :core-map
                :name "clojure.core/map"
                :about "one by one"
                :limit-line-ms 12000.0
                :verdict :done
                :median-ms 12600.0
                :over-limit 1.05
                :published {:ms 1102802.0, :limit-line-ms 1102802.0}
                :samples
                [{:ms 12600.0, :ok 100, :failed 0, :peak 1, :kinds {}, :curve [[0 1] [12600.0 0]]}]}
               {:contender :thrum-map
                :name "t/map"
                :about "all at once"
                :thrum? true
                :limit-line-ms 120.0
                :verdict :broke
                :expect :breaks
                :samples [{:ms 130.0
                           :ok 42
                           :failed 58
                           :peak 100
                           :kinds {:too-many-open-files 58}
                           :messages {:too-many-open-files "Too many open files"}
                           :curve [[0 100] [130.0 0]]}]}
               {:contender :pool
                :name "platform pool of 50"
                :about "fixed"
                :limit-line-ms 240.0
                :verdict :not-run}]}
             {:part :files, :title "Files", :about "Who gets home?", :skipped "no shell"}]}]})

(def answers
  "A result of the experiment scope."
  {:machine machine
   :options {}
   :experiments [{:experiment :scope
                  :title "Scope"
                  :parts [{:part :hangs
                           :title "One hangs"
                           :about "How long?"
                           :n 4
                           :limit-line-about "the deadline"
                           :watch-ms 50
                           :contenders [{:contender :futures
                                         :name "futures"
                                         :about "as usual"
                                         :limit-line-ms 200.0
                                         :verdict :done
                                         :median-ms 201.0
                                         :over-limit 1.005
                                         :samples [{:ms 201.0
                                                    :left 1
                                                    :peak 4
                                                    :watched-ms 251.0
                                                    :curve [[0 4] [50.0 1] [251.0 0]]}]}
                                        {:contender :thrum-scope
                                         :name "t/with-scope"
                                         :about "a fork each"
                                         :thrum? true
                                         :limit-line-ms 200.0
                                         :verdict :done
                                         :median-ms 202.0
                                         :over-limit 1.01
                                         :samples [{:ms 202.0
                                                    :left 0
                                                    :peak 4
                                                    :watched-ms 252.0
                                                    :curve [[0 4] [50.0 1] [202.0 0]]}]}]}]}]})

(def loaded
  "A result of a server under load."
  {:machine machine
   :options {}
   :experiments [{:experiment :ring-jetty
                  :title "Ring on Jetty"
                  :parts [{:part :jetty-sleep
                           :title "Jetty under load"
                           :about "How many?"
                           :connections 4000
                           :seconds 10
                           :warm-up-seconds 5
                           :limit-line-about "connections ÷ sleep"
                           :contenders
                           [{:contender :pool-50
                             :name "platform pool of 50"
                             :about "alone"
                             :limit-line-per-second 1000.0
                             :verdict :done
                             :median-per-second 950.0
                             :of-limit 0.95
                             :published {:per-second 843, :limit-line-per-second 1000.0}
                             :samples [{:per-second 950.0
                                        :p50-ms 118.0
                                        :p99-ms 204.0
                                        :errors {:timeout 3600}
                                        :threads 58
                                        :rss 280000000
                                        :generator :wrk}
                                       {:per-second 951.0
                                        :p50-ms 118.0
                                        :p99-ms 206.0
                                        :errors {:timeout 41, :read 2}
                                        :threads 59
                                        :rss 280000000
                                        :generator :wrk}]}
                            {:contender :thrum
                             :name "thrum.server"
                             :about "run-server"
                             :thrum? true
                             :limit-line-per-second 80000.0
                             :verdict :done
                             :median-per-second 2213.0
                             :of-limit 0.92
                             :samples [{:per-second 2213.0
                                        :p50-ms 51.0
                                        :p99-ms 62.0
                                        :errors {}
                                        :threads 12
                                        :rss 361000000
                                        :heap-each 34000.0
                                        :generator :wrk}]}
                            {:contender :bare
                             :name "Jetty"
                             :about "alone"
                             :verdict :failed
                             :samples [{:error {:class "lab-child"
                                                :message "The server did not start"}}]}]}]}]})

(def crowds
  "A result of the experiment spring-tomcat."
  {:machine machine
   :options {}
   :experiments
   [{:experiment :spring-tomcat
     :title "Spring"
     :parts
     [{:part :spring-100
       :title "At once"
       :about "When?"
       :n 100
       :sleep-ms 1000
       :limit-line-about "rounds"
       :against [{:slow :pool, :fast :virtual, :published 2.85} {:slow :pool, :fast :not-there}]
       :contenders
       [{:contender :pool
         :name "20 threads"
         :about "max=20"
         :limit-line-ms 5000.0
         :verdict :done
         :median-ms 5060.0
         :over-limit 1.01
         :samples
         [{:ms 5060.0, :ok 100, :failed 0, :p50-ms 3020.0, :p99-ms 5050.0, :generator :ab}]}
        {:contender :virtual
         :name "virtual"
         :about "profile"
         :virtual? true
         :limit-line-ms 1000.0
         :verdict :done
         :median-ms 1060.0
         :over-limit 1.06
         :samples
         [{:ms 1060.0, :ok 100, :failed 0, :p50-ms 1020.0, :p99-ms 1040.0, :generator :ab}]}]}
      {:part :spring-curve
       :title "More"
       :about "And more?"
       :n 2
       :sleep-ms 100
       :crowds [10 400]
       :limit-line-about "rounds"
       :contenders [{:contender :pool
                     :name "20 threads"
                     :about "max=20"
                     :limit-points [[10 100.0] [400 2000.0]]
                     :median-points [[10 104.0] [400 2100.0]]
                     :verdict :done
                     :samples [{:points [[10 104.0] [400 2100.0]], :generator :built-in}]}
                    {:contender :virtual
                     :name "virtual"
                     :about "profile"
                     :virtual? true
                     :limit-points [[10 100.0] [400 100.0]]
                     :verdict :failed
                     :samples [{:error {:class "lab-load", :message "Nobody there"}}]}]}]}]})

(def channels
  "A result of the experiments go-blocks and pipelines."
  {:machine machine
   :options {}
   :experiments
   [{:experiment :go-blocks
     :title "go blocks"
     :parts [{:part :go-blocks
              :title "Requests"
              :about "How long?"
              :n 100
              :limit-line-about "one round"
              :contenders [{:contender :go-target
                            :name "go, alpha"
                            :about "target"
                            :skipped "no checkout"
                            :verdict :skipped}
                           {:contender :go-avoid
                            :name "go, avoid"
                            :about "avoid"
                            :limit-line-ms 1000.0
                            :verdict :done
                            :median-ms 1060.0
                            :over-limit 1.06
                            :published {:ms 4712.4, :limit-line-ms 1000.0, :threads 107}
                            :samples [{:ms 1050.0, :cold-ms 1200.0, :threads 107, :peak 100}
                                      {:ms 1070.0, :cold-ms 1300.0, :threads 108, :peak 100}]}]}]}
    {:experiment :pipelines
     :title "Pipelines"
     :parts [{:part :pipelines
              :title "Items"
              :about "What is left?"
              :n 10000
              :limit-line-about "rounds"
              :contenders [{:contender :core-pipeline-async
                            :name "pipeline-async"
                            :about "n + 2"
                            :limit-line-ms 965.0
                            :verdict :done
                            :median-ms 1830.0
                            :over-limit 1.9
                            :samples [{:ms 1830.0
                                       :threads 43
                                       :peak 52
                                       :closed {:platform 1, :virtual 63, :taken 2189}
                                       :unread {:platform 0, :virtual 0, :taken 0}}
                                      {:ms 1830.0
                                       :threads 43
                                       :peak 52
                                       :closed {:platform 0, :virtual 61, :taken 5}
                                       :unread {:platform 0, :virtual 0, :taken 0}}]}
                           {:contender :thrum-upipeline
                            :name "a/upipeline"
                            :about "ours"
                            :thrum? true
                            :limit-line-ms 1000.0
                            :verdict :done
                            :median-ms 1190.0
                            :over-limit 1.19
                            :samples [{:ms 1190.0
                                       :threads 13
                                       :peak 50
                                       :closed {:platform 0, :virtual 0, :taken 0}
                                       :unread {:platform 0, :virtual 2, :taken 9}}]}]}]}]})

(defn- headlined [headline part]
  (assoc part :headline (merge {:because "all wait at once"} headline)))

(def published
  "A result of what was published: less than published, as published, skipped, on fewer threads, and
  worse."
  {:machine machine
   :options {:form :tour}
   :experiments
   [{:experiment :fan-out
     :title "Fan-out"
     :parts [(headlined {:system "100 downloads"
                         :figure :ms
                         :pairs [[:core-map :thrum-pmap]]
                         :beside [:core-pmap "pmap takes %s"]}
                        {:part :downloads
                         :title "Downloads"
                         :n 100
                         :contenders [{:contender :core-map
                                       :name "map"
                                       :limit-line-ms 12000.0
                                       :verdict :done
                                       :median-ms 12600.0
                                       :published {:ms 1102802.0, :limit-line-ms 1102802.0}
                                       :samples [{:ms 12600.0}]}
                                      {:contender :core-pmap
                                       :name "pmap"
                                       :limit-line-ms 480.0
                                       :verdict :done
                                       :median-ms 512.0
                                       :samples [{:ms 512.0}]}
                                      {:contender :thrum-pmap
                                       :name "t/pmap"
                                       :thrum? true
                                       :limit-line-ms 120.0
                                       :verdict :done
                                       :median-ms 200.0
                                       :published {:ms 11090.5, :limit-line-ms 11028.0}
                                       :samples [{:ms 200.0}]}]})]}
    {:experiment :ring-jetty
     :title "Jetty"
     :parts [(headlined {:system "Ring on Jetty"
                         :figure :per-second
                         :pairs [[:pool-50 :thrum]]
                         :beside [:pool-all "a pool of 120 answers %s"]}
                        {:part :jetty-sleep
                         :title "Under load"
                         :connections 120
                         :contenders [{:contender :pool-50
                                       :name "pool"
                                       :limit-line-per-second 1000.0
                                       :verdict :done
                                       :median-per-second 950.0
                                       :published {:per-second 843, :limit-line-per-second 1000.0}
                                       :samples [{:per-second 950.0}]}
                                      {:contender :pool-all, :name "large pool", :verdict :not-run}
                                      {:contender :thrum
                                       :name "thrum.server"
                                       :thrum? true
                                       :limit-line-per-second 2400.0
                                       :verdict :done
                                       :median-per-second 2213.0
                                       :published {:per-second 2218, :limit-line-per-second 2400.0}
                                       :samples [{:per-second 2213.0}]}]})]}
    {:experiment :ring-http-kit
     :title "http-kit"
     :parts [(headlined
               {:system "Ring on http-kit", :figure :per-second, :pairs [[:pool-50 :thrum]]}
               {:part :http-kit-sleep
                :title "http-kit"
                :skipped "it is on Clojars"
                :contenders [{:contender :pool-50
                              :name "pool"
                              :limit-line-per-second 1000.0
                              :verdict :not-run
                              :published {:per-second 928, :limit-line-per-second 1000.0}}
                             {:contender :thrum
                              :name "thrum.server"
                              :limit-line-per-second 2400.0
                              :verdict :not-run
                              :published {:per-second 2209, :limit-line-per-second 2400.0}}]})]}
    {:experiment :go-blocks
     :title "go blocks"
     :parts [(headlined {:system "core.async's go"
                         :figure :threads
                         :pairs [[:go-avoid :go-target] [:go :go-factory]]}
                        {:part :go-blocks
                         :title "Requests"
                         :n 100
                         :contenders [{:contender :go-avoid
                                       :name "avoid"
                                       :limit-line-ms 1000.0
                                       :skipped "no network"
                                       :verdict :skipped
                                       :published {:ms 4712.4, :limit-line-ms 1000.0, :threads 107}}
                                      {:contender :go-target
                                       :name "target"
                                       :limit-line-ms 1000.0
                                       :skipped "no network"
                                       :verdict :skipped
                                       :published {:ms 3653.0, :limit-line-ms 1000.0, :threads 25}}
                                      {:contender :go
                                       :name "go"
                                       :limit-line-ms 1000.0
                                       :verdict :done
                                       :median-ms 1030.0
                                       :samples [{:ms 1030.0, :threads 107}]}
                                      {:contender :go-factory
                                       :name "factory"
                                       :thrum? true
                                       :limit-line-ms 1000.0
                                       :verdict :done
                                       :median-ms 1050.0
                                       :samples [{:ms 1050.0, :threads 12}]}]})]}
    {:experiment :spring-tomcat
     :title "Spring"
     :parts [(headlined {:system "Spring on Tomcat", :figure :ms, :pairs [[:platform :virtual]]}
                        {:part :spring-100
                         :title "At once"
                         :n 100
                         :contenders [{:contender :platform
                                       :name "20"
                                       :limit-line-ms 5000.0
                                       :verdict :done
                                       :median-ms 5100.0
                                       :samples [{:ms 5100.0}]
                                       :published {:ms 6161.0, :limit-line-ms 6000.0}}
                                      {:contender :virtual
                                       :name "virtual"
                                       :limit-line-ms 1000.0
                                       :verdict :done
                                       :median-ms 4900.0
                                       :samples [{:ms 4900.0}]
                                       :published {:ms 2163.0, :limit-line-ms 2000.0}}]})]}]})

(ns thrum.lab.experiments.own.meaning-test
  "What the figures of the user's own work are said to mean."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.experiments.own.handler :as handler]
   [thrum.lab.experiments.own.work :as work]))

(defn- plain [sentences] (map #(str/replace % "\u00a0" " ") sentences))

(defn- under-load
  [virtual & pools]
  {:part :handler
   :connections 120
   :contenders (cons {:name "virtual threads"
                      :thrum? true
                      :params {:pool nil}
                      :median-per-second virtual
                      :samples [{:p50-ms 54.2}]}
                     (for [[size per-second] pools]
                       {:name (str "platform pool of " size)
                        :params {:pool size}
                        :median-per-second per-second}))})

(deftest a-handler-that-waits
  (is
    (=
      ["On virtual threads 120 connections get 2 213/s, half of the answers within 54.2 ms."
       (str "platform pool of 50: 958/s; virtual threads answer 2.31x as much, because more "
            "requests can wait at once.")
       "platform pool of 120: 2 300/s; virtual threads do as well, and have no size to choose."
       "So your handler waits: its requests are limited by threads, not by processors."]
      (plain (handler/meaning (under-load 2213.0 [50 958.0] [120 2300.0]) false)))))

(deftest what-a-handler-does-shows-in-the-order-of-its-figures
  (are [words virtual small large]
    (str/includes? (last (handler/meaning (under-load virtual [50 small] [120 large]) false)) words)
    "hardly waits" 5000.0 9000.0 8000.0
    "limited by threads" 2213.0 958.0 2300.0
    "threads do not limit" 8000.0 8100.0 7900.0))

(deftest on-a-busy-machine-nothing-is-concluded
  (is (re-find #"^With so much other work .* run it again"
               (last (handler/meaning (under-load 387.0 [50 7072.0] [120 619.0]) true)))))

(deftest without-figures-to-compare-nothing-is-said
  (is (empty? (handler/meaning (under-load nil [50 958.0]) false)))
  (is (empty? (handler/meaning (under-load 2213.0) false)))
  (is (empty? (work/meaning {:contenders [{:name "t/pmap", :samples [{}]}]} false))))

(deftest calls-one-after-the-other-are-not-said-to-run-side-by-side
  (is (= ["map: 5 took 102 ms, one after the other. The longest took 21.0 ms."]
         (plain (work/meaning {:part :calls
                               :contenders [{:name "map"
                                             :params {:limit 512}
                                             :samples [{:ms 102.0, :busy-ms 101.0, :longest-ms 21.0
                                                        :peak 1, :ok 5, :failed 0}]}]}
                              false)))))

(deftest calls-side-by-side
  (let
    [sample {:ms 2000.0, :busy-ms 9000.0, :longest-ms 1900.0, :peak 8, :ok 19, :failed 1}
     sentences (fn [limit]
                 (plain (work/meaning
                          {:part :urls
                           :contenders
                           [{:name "t/pmap", :params {:limit limit}, :samples [sample]}]}
                          false)))
     took
     (str "t/pmap: 20 took 9.00 s together, and 2.00 s side by side: 4.50x. The longest took 1.90 "
          "s, and nothing can be faster than that.")]
    (is (= [took] (sentences 512)))
    (is (= [took "t/pmap: all 8 places were taken at once; a larger --limit might be faster."]
           (sentences 8)))))

(ns thrum.lab.published
  "The published figures, and the limit lines that belong to them. Of downloads: a laptop with 12
  CPUs downloaded a 6 MB file, limited to 500 kB/s, through nginx. Measured there: 1102.8 s for 100
  downloads one after the other, 11.03 s each."
  (:require
   [thrum.lab.limit-line :as limit-line]))

(set! *warn-on-reflection* true)

(def cpus "The CPUs of the published machine." 12)
(def bytes-each "The size of the published file." 6000000)
(def rate "Its rate limit, in bytes per second." 500000)
(def one-by-one-ms "100 downloads, one after the other." 1102802.057709)
(def download-ms "One download, from one-by-one-ms." (/ one-by-one-ms 100))

(def ^:private source "the Virtuoso README: laptop with 12 CPUs, nginx, 6 MB at 500 kB/s")

(defn- figure [ms rounds]
  {:ms ms, :limit-line-ms (limit-line/ms rounds download-ms), :source source})

(def figures
  "Published figures by part and contender."
  {:downloads {:core-map (figure one-by-one-ms 100)
               :core-pmap (figure 44213.30375 (limit-line/chunked-pmap 100 cpus))
               :thrum-map (figure 11124.417959 1)
               :thrum-pmap (figure 11090.514792 (limit-line/bounded 100 512))}
   :many {:thrum-pmap (figure 44684.907583 (limit-line/bounded 2000 512))}
   :files {:thrum-map {:text
                       "connection resets, retries; \"too many open connections\" in other clients"
                       :source source}}
   :unlimited {:core-map {:text "faster than pmap and than virtual threads; no figure given"
                          :source source}}})

(def ^:private ring-source "`wrk -t 12 -c 120` for 10 s, on another machine")

(defn- ring-figure [per-second threads]
  {:per-second per-second, :limit-line-per-second (/ (min 120 threads) 0.05), :source ring-source})

(def requests
  "Published requests per second by engine, question and contender: a Ring handler that sleeps 50
  ms, and 120 connections."
  {:jetty {:sleep {:pool-50 (ring-figure 843 50), :thrum (ring-figure 2218 120)}}
   :http-kit {:sleep {:pool-50 (ring-figure 928 50), :thrum (ring-figure 2209 120)}}})

(def ^:private spring-source
  (str "a demonstration of Spring Boot with Java 19, `ab` with 100 requests, 20 threads, on "
       "another machine"))

(defn- spring-figure [ms rounds]
  {:ms ms, :limit-line-ms (limit-line/ms rounds 1000), :source spring-source})

(def ^:private hundred
  {:platform-20 (spring-figure 6161.0 (limit-line/ab 100 20))
   :virtual (spring-figure 2163.0 (limit-line/ab 100 100))
   :platform-200 {:text "practically no difference; no figure given", :source spring-source}})

(def spring
  "Published times by part and application: 100 requests of a second, by ab. Whether the application
  was warm is not told."
  {:spring-100 hundred
   :spring-ab hundred
   :spring-1000 {:platform-200 {:text "connection resets at this size; no figure given"
                                :source spring-source}}})

(def spring-times
  "How many times as fast virtual threads were as 20 platform threads, as published."
  (/ 6161.0 2163.0))

(def ^:private go-blocks-source
  (str "an article: 100 requests to a server on the internet, Clojure 1.12.3, a JDK that is not "
       "told"))

(defn- go-blocks-figure [ms threads]
  {:ms ms, :limit-line-ms 1000.0, :threads threads, :source go-blocks-source})

(def go-blocks
  "Published times of 100 go blocks that each make a request of a second, and the threads that were
  seen, by contender. Right after the start of the program."
  {:go-target (go-blocks-figure 3652.99125 25)
   :go-avoid (go-blocks-figure 4712.404833 107)})

(def go-blocks-times
  "How many times as fast go blocks were on virtual threads as on platform threads, as published."
  (/ 4712.404833 3652.99125))

(ns thrum.lab.experiments.fan-out.published
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
   :files {:thrum-map {:text (str "connection resets, retries; \"too many open connections\" in "
                                  "other clients")
                       :source source}}
   :unlimited {:core-map {:text "faster than pmap and than virtual threads; no figure given"
                          :source source}}})

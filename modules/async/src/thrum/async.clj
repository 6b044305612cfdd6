(ns thrum.async
  "core.async's channels from plain blocking code on virtual threads. Use it as (require '[thrum.async :as a]).")

(set! *warn-on-reflection* true)

(ns thrum.lab.experiments.own.per-host
  "Gives out items host by host, so that no host has more than so many in flight and a slow one
  holds up none but its own. The state is plain data; only the consumer of the source waits, never
  one thread for each item."
  (:import
   (clojure.lang PersistentQueue)
   (java.util.concurrent LinkedBlockingQueue)))

(set! *warn-on-reflection* true)

(defn- queue [xs] (into PersistentQueue/EMPTY xs))

(defn start
  "Returns the state that knows items, each with a :host: {:waiting {host queue} :ready
  queue-of-hosts :running {host n}}. A host is ready while it has an item waiting and fewer than
  per-host running."
  [items per-host]
  {:per-host per-host
   :waiting (update-vals (group-by :host items) queue)
   :ready (queue (distinct (map :host items)))
   :running {}})

(defn- may-start? [{:keys [waiting running per-host]} host]
  (and (seq (waiting host)) (< (running host 0) per-host)))

(defn pick
  "Returns [item state] for the next item of the host whose turn it is; nil if no host is ready."
  [{:keys [ready waiting] :as state}]
  (when-let [host (peek ready)]
    (let [state (-> state
                    (update :ready pop)
                    (update-in [:waiting host] pop)
                    (update-in [:running host] (fnil inc 0)))]
      [(peek (waiting host))
       (cond-> state (may-start? state host) (update :ready conj host))])))

(defn finish
  "Returns the state after an item of host has ended."
  [state host]
  (let [was-ready? (may-start? state host), state (update-in state [:running host] dec)]
    (cond-> state
      (and (not was-ready?) (may-start? state host)) (update :ready conj host))))

(defn- settle
  "Returns the state after everything that has ended so far, without waiting."
  [state ^LinkedBlockingQueue ended]
  (if-let [host (.poll ended)]
    (recur (finish state host) ended)
    state))

(defn- items-from
  "Returns a lazy, unchunked seq of the items; realising one blocks while every host with items is
  at its bound."
  [state left ^LinkedBlockingQueue ended]
  (lazy-seq
    (when (pos? left)
      (let [state (settle state ended)]
        (if-let [[item state] (pick state)]
          (cons item (items-from state (dec left) ended))
          (items-from (finish state (.take ended)) left ended))))))

(defn source
  "Returns {:items seq, :ended! f}: the items in an order that keeps to per-host, provided that (f
  item) is called when an item has ended, on any thread. For one consumer; realise it once."
  [items per-host]
  (let [ended (LinkedBlockingQueue.)]
    {:items (items-from (start items per-host) (count items) ended)
     :ended! (fn [item] (.put ended (:host item)))}))

(ns thrum.watch.impl.locks
  "Who waits for whose monitor, in the JDK's dump (JDK 25): cycles, and holders that do not run."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.watch.impl.frames :as frames]
   [thrum.watch.impl.rules :as rules]))

(set! *warn-on-reflection* true)

(defn- in-object-wait? [{:keys [stack]}]
  (= "java.lang.Object" (ffirst stack)))

(defn- owners
  "Returns by monitor the thread that holds it. A thread that waits on a monitor, and has left it,
  is still shown as its owner: what it is blocked on is not its own, and a thread that is not in
  Object.wait goes before it."
  [threads]
  (into {}
        (for [{:keys [owned blocked-on] :as thread} (sort-by (complement in-object-wait?) threads)
              lock owned
              :when (not= lock blocked-on)]
          [lock thread])))

(defn- line [{:keys [stack]}]
  (frames/line stack))

(defn- waits [{:keys [name blocked-on] :as thread}]
  (str name " waits for " blocked-on " at " (line thread)))

(defn- cycle-conditions [threads owners]
  (let [by-tid (into {} (map (juxt :tid identity)) threads)
        edges (into {}
                    (keep (fn [{:keys [tid blocked-on]}]
                            (when-some [owner (owners blocked-on)] [tid [(:tid owner)]])))
                    threads)]
    (for [ids (rules/cycles edges) :let [members (map by-tid ids)]]
      (rules/condition :cycle (str/join " " (sort ids)) 0 (:stack (first members))
        {:threads ids, :locks (mapv :blocked-on members)}
        "A cycle of locks: " (str/join ", " (map waits members)) ", each held by the next"))))

(defn- unmounted? [{:keys [virtual? state carrier]}]
  (and virtual? (nil? carrier) (not= :runnable state)))

(defn- holder-conditions [threads owners cyclic]
  (for [[lock waiting] (group-by :blocked-on (filter :blocked-on threads))
        :let [{:keys [tid name state] :as holder} (owners lock)]
        :when (and holder (unmounted? holder) (not (cyclic tid)))]
    (rules/condition :lock-holder lock 1000 (:stack holder)
      {:lock lock, :holder tid, :threads (mapv :tid waiting)}
      (if (next waiting) (str (count waiting) " threads wait") "A thread waits")
      " for " lock ", held by " name ", which does not run: "
      (clojure.core/name state) " at " (line holder))))

(defn conditions
  "Returns the conditions of the threads of a dump."
  [threads]
  (let [owners (owners threads)
        cycles (cycle-conditions threads owners)
        cyclic (into #{} (mapcat (comp :threads :data)) cycles)]
    (vec (concat cycles (holder-conditions threads owners cyclic)))))

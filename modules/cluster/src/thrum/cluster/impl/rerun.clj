(ns thrum.cluster.impl.rerun
  "Decides what becomes of work whose member was lost. Pure: history in, decision out."
  {:no-doc true}
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(def ^:const most-starts "A run and three re-runs." 4)

(def fresh
  "The history of work that was not started yet: how often it was, on which members, and those that
  were lost while they ran it."
  {:starts 0, :last nil, :lost []})

(defn started
  "Returns the history with one more start."
  [history member]
  (-> history (update :starts inc) (assoc :last member)))

(defn lost
  "Returns the history with the loss of the member that ran it."
  [history]
  (update history :lost conj (:last history)))

(defn decision
  "Returns what is next: :run; :elsewhere, on another member; :alone, on a member that runs nothing
  else of this caller's, as two members were lost with it; :poison, as three were, the last of them
  with nothing else; :give-up after the last re-run. explained: a set of members whose loss is
  another item's fault; they do not count."
  [{:keys [starts lost]} explained]
  (let [deaths (count (remove explained lost))]
    (cond
      (<= 3 deaths) :poison
      (<= most-starts starts) :give-up
      (= 2 deaths) :alone
      (pos? starts) :elsewhere
      :else :run)))

(defn poison
  "Returns the exception for work that has ended its members."
  [{:keys [starts lost]} function items]
  (ex-info (str function " has ended the members that ran it: " (str/join ", " lost)
                ". On the last of them it ran alone")
           {:type :thrum/poison, :function (symbol function), :items items, :members lost
            :starts starts}))

(defn given-up
  "Returns the exception for work that no member has answered."
  [{:keys [starts lost]} function items]
  (ex-info (str function " was started " starts " times, and no member has answered")
           {:type :thrum/lost, :function (symbol function), :items items, :members lost
            :starts starts}))

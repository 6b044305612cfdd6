(ns thrum.lab.experiments.own.per-host-test
  "The bound for each host, and fairness among them."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.lab.experiments.own.per-host :as per-host]))

(defn- items [& counts-by-host]
  (for [[host n] (partition 2 counts-by-host), i (range n)]
    {:host host, :i i}))

(defn- picks
  "Returns the items that a state gives out while none ends, and the state after."
  [state]
  (loop [picked [], state state]
    (if-let [[item state] (per-host/pick state)]
      (recur (conj picked item) state)
      [picked state])))

(deftest hosts-take-turns-up-to-their-bound
  (is (= ["a" "b" "a"] (map :host (first (picks (per-host/start (items "a" 5, "b" 1) 2)))))))

(deftest an-end-lets-the-next-of-that-host-start
  (let [[_ state] (picks (per-host/start (items "a" 4, "b" 4) 1))]
    (is (= [{:host "b", :i 1}] (first (picks (per-host/finish state "b")))))))

(deftest no-host-gets-more-than-its-bound-and-every-item-is-run-once
  (let [items (items "a" 60, "b" 3, "c" 30), running (atom {}), most (atom {})
        {:keys [items ended!] :as source} (assoc (per-host/source items 4) :all items)
        f (fn [{:keys [host] :as item}]
            (let [now (get (swap! running update host (fnil inc 0)) host)]
              (swap! most update host (fnil max 0) now)
              (Thread/yield)
              (swap! running update host dec)
              (ended! item)
              item))
        seen (t/pmapv 64 f items)]
    (is (= (frequencies (:all source)) (frequencies seen)))
    (is (every? #(<= % 4) (vals @most)))))

(deftest a-slow-host-holds-up-none-but-its-own
  (let [gate (promise)
        {:keys [items ended!]} (per-host/source (items "slow" 20 "fast" 100) 2)
        fast (atom 0)
        f (fn [{:keys [host], :as item}]
            (if (= "slow" host)
              (deref gate 5000 :late)
              (when (= 100 (swap! fast inc)) (deliver gate :all-fast-done)))
            (ended! item)
            host)]
    (is (= {"slow" 20, "fast" 100} (frequencies (t/pmapv 4 f items))))
    (is (= :all-fast-done (deref gate 0 :late))
        "the fast host was done while the slow one held its two places")))

(ns thrum.server.impl.stage-test
  "What every event makes of every stage, and what holds for whole lives."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.stage :as stage])
  (:import
   (java.util Random)))

(set! *warn-on-reflection* true)

(def ^:private table
  "For each event, each stage and what comes of it: the next stage, and the effects."
  {:begin {:open [:open], :reading [:reading], :committed [:committed], :streaming [:streaming]
           :socket [:socket], :done [:done], :left [:left]
           :thrum/timeout [:thrum/timeout :cancel], :slow [:slow :cancel]
           :disconnected [:disconnected :cancel], :shutdown [:shutdown :cancel]}
   :handle {:open [:open], :reading [:reading]
            :committed [:committed :refuse], :streaming [:streaming :refuse]
            :socket [:socket :refuse], :done [:done :refuse], :left [:left :refuse]
            :thrum/timeout [:thrum/timeout :refuse], :slow [:slow :refuse]
            :disconnected [:disconnected :refuse], :shutdown [:shutdown :refuse]}
   :read {:open [:reading], :reading [:reading], :committed [:committed]
          :streaming [:streaming], :socket [:socket]
          :done [:done :refuse], :left [:left :refuse]
          :thrum/timeout [:thrum/timeout :refuse], :slow [:slow :refuse]
          :disconnected [:disconnected :refuse], :shutdown [:shutdown :refuse]}
   :read-ended {:open [:open], :reading [:open], :committed [:committed]
                :streaming [:streaming], :socket [:socket], :done [:done], :left [:left]
                :thrum/timeout [:thrum/timeout], :slow [:slow]
                :disconnected [:disconnected], :shutdown [:shutdown]}
   :commit {:open [:committed], :reading [:committed], :committed [:committed]
            :streaming [:streaming]
            :socket [:socket :refuse], :done [:done :refuse], :left [:left :refuse]
            :thrum/timeout [:thrum/timeout :refuse], :slow [:slow :refuse]
            :disconnected [:disconnected :refuse], :shutdown [:shutdown :refuse]}
   :stream {:open [:streaming], :reading [:streaming], :committed [:streaming]
            :streaming [:streaming]
            :socket [:socket :refuse], :done [:done :refuse], :left [:left :refuse]
            :thrum/timeout [:thrum/timeout :refuse], :slow [:slow :refuse]
            :disconnected [:disconnected :refuse], :shutdown [:shutdown :refuse]}
   :upgrade {:open [:open], :reading [:reading], :committed [:socket], :streaming [:streaming]
             :socket [:socket], :done [:done], :left [:left]
             :thrum/timeout [:thrum/timeout], :slow [:slow]
             :disconnected [:disconnected], :shutdown [:shutdown]}
   :finish {:open [:open], :reading [:reading], :committed [:done], :streaming [:done]
            :socket [:socket], :done [:done], :left [:left]
            :thrum/timeout [:thrum/timeout :refuse], :slow [:slow :refuse]
            :disconnected [:disconnected :refuse], :shutdown [:shutdown :refuse]}
   :fail {:open [:open :answer], :reading [:reading :answer]
          :committed [:committed :cut :log], :streaming [:streaming :cut :log]
          :socket [:socket :log], :done [:done :log], :left [:left]
          :thrum/timeout [:thrum/timeout], :slow [:slow]
          :disconnected [:disconnected], :shutdown [:shutdown]}
   :leave {:open [:left], :reading [:left], :committed [:left], :streaming [:left]
           :socket [:left], :done [:left], :left [:left]
           :thrum/timeout [:left :not-overdue], :slow [:left :not-overdue]
           :disconnected [:left :not-overdue], :shutdown [:left :not-overdue]}
   :thrum/timeout {:open [:thrum/timeout :overdue :count :answer :cancel :observe]
                   :reading [:thrum/timeout :overdue :count :cut :cancel :observe]
                   :committed [:thrum/timeout :overdue :count :cut :cancel :observe]
                   :streaming [:streaming], :socket [:socket], :done [:done], :left [:left]
                   :thrum/timeout [:thrum/timeout], :slow [:slow]
                   :disconnected [:disconnected], :shutdown [:shutdown]}
   :slow {:open [:slow :overdue :count :cut :cancel :observe]
          :reading [:slow :overdue :count :cut :cancel :observe]
          :committed [:slow :overdue :count :cut :cancel :observe]
          :streaming [:slow :overdue :count :cut :cancel :observe]
          :socket [:socket], :done [:slow :overdue :cancel], :left [:left]
          :thrum/timeout [:thrum/timeout], :slow [:slow]
          :disconnected [:disconnected], :shutdown [:shutdown]}
   :disconnected {:open [:disconnected :overdue :count :cut :cancel :observe]
                  :reading [:disconnected :overdue :count :cut :cancel :observe]
                  :committed [:disconnected :overdue :count :cut :cancel :observe]
                  :streaming [:disconnected :overdue :count :cut :cancel :observe]
                  :socket [:socket], :done [:disconnected :overdue :cancel], :left [:left]
                  :thrum/timeout [:thrum/timeout], :slow [:slow]
                  :disconnected [:disconnected], :shutdown [:shutdown]}
   :shutdown {:open [:shutdown :overdue :answer :cancel]
              :reading [:shutdown :overdue :cut :cancel]
              :committed [:shutdown :overdue :cut :cancel]
              :streaming [:shutdown :overdue :cut :cancel]
              :socket [:socket], :done [:shutdown :overdue :cancel], :left [:left]
              :thrum/timeout [:thrum/timeout], :slow [:slow]
              :disconnected [:disconnected], :shutdown [:shutdown]}})

(deftest every-event-at-every-stage
  (doseq [[event row] table, [before [after & effects]] row]
    (is (= [after (vec effects)] (stage/step before event)) (str event " at " before))))

(deftest the-table-is-whole
  (let [stages (set (keys (:begin table)))]
    (is (= 154 (count (for [[_ row] table, stage (keys row)] stage))))
    (is (every? #(= stages (set (keys %))) (vals table)))
    (is (= stage/ends (set (filter stage/ended? stages))))
    (is (every? stage/ends (filter stage/ends (keys table))))))

;; Lives, from :open to :left, with events in any order

(defn- life
  "Returns [stage event effects] for each of so many random events, and :leave."
  [^Random random n]
  (let [events (vec (remove #{:leave} (keys table)))]
    (loop [stage :open, left n, steps []]
      (let [event (if (zero? left) :leave (nth events (.nextInt random (count events))))
            [after effects] (stage/step stage event)
            steps (conj steps [stage event effects])]
        (if (zero? left) steps (recur after (dec left) steps))))))

(defn- exceptions
  "Returns the first of many random lives for which (holds? steps) is false, as a seq."
  [holds?]
  (let [random (Random. 7)]
    (->> (repeatedly 2000 #(life random (.nextInt random 12)))
         (remove holds?)
         (take 1))))

(defmacro ^:private holds-for-lives [holds?]
  `(is (= [] (exceptions ~holds?))))

(defn- effects-of [steps]
  (mapcat peek steps))

(defn- times [effect steps]
  (count (filter #{effect} (effects-of steps))))

(defn- after-its-end
  "Returns the steps that follow the one by which another thread has ended the exchange."
  [steps]
  (rest (drop-while #(not= :overdue (first (peek %))) steps)))

(deftest a-thread-is-overdue-once-until-it-leaves
  (holds-for-lives #(= (times :overdue %) (times :not-overdue %) (min 1 (times :overdue %)))))

(deftest what-has-been-ended-is-answered-and-cut-no-more
  (holds-for-lives #(not-any? #{:answer :cut :count :observe} (effects-of (after-its-end %)))))

(deftest what-has-been-ended-starts-no-handler-and-no-response
  (holds-for-lives (fn [steps]
                     (every? (fn [[_ event effects]]
                               (or (not (#{:handle :commit :stream} event)) (= [:refuse] effects)))
                             (after-its-end steps)))))

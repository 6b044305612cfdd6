(ns thrum.lab.sanity
  "What an experiment may complain of in its own figures. Each function returns sentences; rows are
  a part's, by contender. Pure.")

(set! *warn-on-reflection* true)

(def slack "How much a clock may flatter." 0.98)

(defn at-most
  "Complains of the contenders, as far as they are among the rows, that are beyond factor times
  their limit line."
  [rows factor contenders]
  (for [contender contenders
        :let [{:keys [over-limit skipped] :as row} (get rows contender)]
        :when (and row (not skipped) (not (and over-limit (<= over-limit factor))))]
    (str contender " should stay within " factor " times its limit line, and was at " over-limit)))

(defn times-faster
  "Complains unless contender a takes at least factor times as long as b."
  [rows a factor b]
  (let [[slow fast] (map #(get-in rows [% :median-ms]) [a b])]
    (cond
      (not (and slow fast)) [(str "no medians of " a " and " b)]
      (< slow (* factor fast))
      [(str a " should take " factor " times as long as " b ": " slow " ms, " fast " ms")])))

(defn every-sample
  "Complains, in words, of the contenders a figure of one of whose samples is not as expected, or is
  missing."
  [rows figure expected? words contenders]
  (for [contender contenders
        :let [values (mapv figure (get-in rows [contender :samples]))]
        :when (not (and (seq values) (every? some? values) (every? expected? values)))]
    (str contender " " words ": " values)))

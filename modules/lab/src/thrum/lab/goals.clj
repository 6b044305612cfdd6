(ns thrum.lab.goals
  "Figures beside their goals, and beside those of the last release. Pure.

  A figure is a map:
    :figure   what was measured, in words; no other figure of a run has the same
    :value    the number
    :at-most, :at-least  its goal, if it has one
    :cpu?     true of a cost in CPU time: a change of it is pointed out"
  (:require
   [clojure.string :as str]
   [thrum.lab.stats :as stats]
   [thrum.lab.table :as table]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private noticeable "The change of a cost that is pointed out, as a part of it." 0.15)

(defn figures
  "Returns the figures of a result, in order. experiments: by name."
  [experiments {plans :experiments}]
  (into []
        (mapcat (fn [{:keys [experiment parts]}]
                  (when-let [figures (:figures (experiments experiment))]
                    (mapcat figures parts))))
        plans))

(defn of-row
  "Returns the figures of a row that [figure words goal] name, each the median of its samples; none
  where they have no such figure."
  [what {:keys [samples]} figures]
  (for [[figure words goal] figures
        :let [median (stats/median (keep figure samples))]
        :when median]
    {:figure (str what ": " words), :value (double median), :at-most goal}))

(defn by-name
  "Returns {figure value} in the order of the names: what a release keeps."
  [figures]
  (into (sorted-map) (map (juxt :figure :value)) figures))

(defn met?
  "True if the figure reaches its goal, false if not; nil where it has none."
  [{:keys [value at-most at-least]}]
  (cond
    at-most (<= value at-most)
    at-least (<= at-least value)))

(defn- change [value before]
  (when (and before (pos? before))
    (dec (/ (double value) before))))

(defn- beside
  "Returns the figure with that of the last release, :released, and its :change since, a part of
  it."
  [released {:keys [figure value] :as row}]
  (let [before (get released figure)]
    (assoc row :released before :change (change value before))))

(defn- changed? [{:keys [cpu? change]}]
  (and cpu? change (< (double noticeable) (abs (double change)))))

(defn- number [x]
  (text/decimals (if (and x (<= 100 (abs (double x)))) 0 2) x))

(defn- goal [{:keys [at-most at-least]}]
  (cond
    at-most (str "<= " (number at-most))
    at-least (str ">= " (number at-least))))

(defn- verdict [row]
  (case (met? row) true "met", false "NOT MET", nil ""))

(defn- percent [{:keys [change]}]
  (when change (format "%+d %%" (Math/round (* 100 (double change))))))

(def ^:private columns
  [{:heading "figure", :left? true, :show :figure}
   {:heading "here", :show (comp number :value)}
   {:heading "goal", :show goal}
   {:heading "", :left? true, :show verdict}
   {:heading "last release", :show (comp number :released)}
   {:heading "change", :show percent}])

(defn- change-line [row]
  (str "CHANGED: " (:figure row) ", " (percent row) " against the last release"))

(defn- machine-line
  "Returns a line that says where the last release was measured, in a list; none where that was a
  machine of the same processors, or is unknown."
  [here released]
  (let [{:keys [cpu cpus] :as there} (select-keys released [:cpu :cpus])]
    (when (and (seq there) (not= there (select-keys here [:cpu :cpus])))
      [(str "The last release was measured on another machine: " cpu ", " cpus " processors.")])))

(defn report
  "Returns the table of the figures as text, :markdown? or for a terminal, with a line for each cost
  in CPU time that has changed by more than 15 %; nil without figures. released: the last release's
  :figures, {figure value}, and :machine. machine: this one, see thrum.lab.machine."
  [figures machine released & {:keys [markdown?]}]
  (when (seq figures)
    (let [rows (map #(beside (:figures released) %) figures)
          judged (keep met? rows)]
      (str/join "\n"
                (concat ((if markdown? table/markdown table/text) columns rows)
                        ["" (str (count (filter true? judged)) " of " (count judged)
                                 " goals are met.")]
                        (machine-line machine (:machine released))
                        (map change-line (filter changed? rows)))))))

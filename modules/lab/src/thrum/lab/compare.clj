(ns thrum.lab.compare
  "Two results of one machine, side by side. Unlike machines are refused: their figures say nothing
  about each other. Pure."
  (:require
   [clojure.string :as str]
   [thrum.lab.table :as table]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private same
  "What must be the same of two machines, as paths into the facts."
  [[:cpu] [:cpus] [:memory-gb] [:os]])
(def ^:private conditions
  "What must be the same of two rows."
  [:n :bytes :rate :limit :pool :deadline-ms :connections :sleep-ms :seconds :warm-up-seconds :path
   :job :generator :function :calls])

(defn- differences [paths a b]
  (remove #(= (get-in a %) (get-in b %)) paths))

(defn- refuse-unlike [{a :machine} {b :machine}]
  (when-let [unlike (seq (differences same a b))]
    (throw (ex-info (str "These results are of unlike machines: they differ in "
                         (text/commas (map (comp name last) unlike)) ".")
                    {:type :thrum/lab-usage, :differ (vec unlike)}))))

(defn- own-work
  "Returns which work of the user's a row has done: the function and the number of its calls."
  [experiment {:keys [own? samples]}]
  (when own?
    (let [{:keys [ok failed]} (first samples)]
      (assoc (select-keys experiment [:function]) :calls (+ (or ok 0) (or failed 0))))))

(defn- rows
  "Returns [[part contender] row] for every row of a result, in order, with the row's conditions."
  [{:keys [experiments]}]
  (for [experiment experiments
        part (:parts experiment)
        row (:contenders part)]
    [[(:part part) (:contender row)]
     (assoc row
            :conditions
            (select-keys (merge part
                                (:params row)
                                (select-keys row [:job])
                                (select-keys (first (:samples row)) [:generator])
                                (own-work experiment row))
                         conditions))]))

(def ^:private median (some-fn :median-ms :median-per-second))

(defn- pair
  [key a b]
  {:part (name (first key))
   :name (:name (or a b))
   :show (if (some :median-per-second [a b]) text/per-second text/ms)
   :a (median a)
   :b (median b)
   :differ
   (when (and a b)
     (map name (filter #(not= (get-in a [:conditions %]) (get-in b [:conditions %])) conditions)))})

(defn pairs
  "Returns a row for each contender of either result: {:part :name :a :b} with the medians, :show,
  which makes words of them, and :differ, the conditions that are not the same. Throws ex-info of
  :type :thrum/lab-usage for unlike machines."
  [a b]
  (refuse-unlike a b)
  (let [a-rows (rows a), b-rows (rows b), in-a (into {} a-rows), in-b (into {} b-rows)]
    (map #(pair % (in-a %) (in-b %)) (distinct (map first (concat a-rows b-rows))))))

(defn- change [{:keys [a b differ]}]
  (cond
    (seq differ) (str "not comparable: " (text/commas differ) " differ")
    (and a b) (text/ratio (/ b a))
    :else "–"))

(defn- cell [side]
  (fn [{:keys [show] :as pair}] (show (side pair))))

(defn- jdk-line [{a :machine} {b :machine}]
  (let [versions (map (comp :version :jdk) [a b])]
    (if (apply = versions)
      (str "JDK " (first versions))
      (str "JDK " (str/join " against " versions)))))

(def ^:private columns
  [{:heading "part", :left? true, :show :part}
   {:heading "contender", :left? true, :show :name}
   {:heading "A", :show (cell :a)}
   {:heading "B", :show (cell :b)}
   {:heading "B / A", :left? true, :show change}])

(defn report
  "Returns the comparison of results a and b as text."
  [a b]
  (str/join "\n" (cons (jdk-line a b) (map #(str "  " %) (table/text columns (pairs a b))))))

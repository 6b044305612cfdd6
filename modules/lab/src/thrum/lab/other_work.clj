(ns thrum.lab.other-work
  "How much of the processors' time other programs took while the lab ran. Linux alone says so."
  (:require
   [clojure.string :as str]
   [thrum.lab.proc :as proc]))

(set! *warn-on-reflection* true)

(defn- numbers [text]
  (mapv parse-long (re-seq #"-?\d+" text)))

(defn parse
  "Returns {:all :busy :own} of the texts of /proc/stat and /proc/self/stat, in the kernel's ticks:
  the time of all processors, the part in which they worked, and that of this process and of its
  children that have ended. nil without a text."
  [stat self]
  (when (and stat self)
    (let [[user nice system idle iowait irq softirq steal]
          (numbers (first (str/split-lines stat)))
          busy (+ user nice system irq softirq steal)
          ;; The name of the program comes before, in parentheses, and may have any characters.
          own (numbers (subs self (str/last-index-of self ")")))]
      {:all (+ busy idle iowait), :busy busy, :own (reduce + (subvec own 10 14))})))

(defn reading
  "Returns what the kernel says now, as parse does; nil where it does not."
  []
  (parse (proc/text "/proc/stat") (proc/text "/proc/self/stat")))

(defn share
  "Returns which part of the processors' time between two readings other programs took, 0 to 1; nil
  without a reading, or time between them."
  [before after]
  (when (and before after)
    (let [{:keys [all busy own]} (merge-with - after before)]
      (when (pos? all)
        (double (/ (max 0 (- busy own)) all))))))

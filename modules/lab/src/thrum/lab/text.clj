(ns thrum.lab.text
  "Figures as words, the same everywhere: in the terminal, in the report, in messages."
  (:refer-clojure :exclude [bytes])
  (:require
   [clojure.string :as str])
  (:import
   (java.util Locale)))

(set! *warn-on-reflection* true)

(defn- fixed [decimals x]
  (String/format Locale/ROOT (str "%." decimals "f") (to-array [(double x)])))

(defn decimals
  "Returns a number with that many decimals and commas between groups of three digits, nil as an
  empty cell: 1,234.5."
  [places x]
  (if x (String/format Locale/ROOT (str "%,." places "f") (to-array [(double x)])) ""))

(defn whole
  "Returns a number without decimals; see decimals."
  [x]
  (decimals 0 x))

(defn spread
  "Returns what stats/spread makes as `median (min-max)`, the median alone where all are equal, nil
  as an empty cell."
  [places {:keys [median min max] :as spread}]
  (cond
    (nil? spread) ""
    (= min max) (decimals places median)
    :else (str (decimals places median)
               " (" (decimals places min) "-" (decimals places max) ")")))

(defn thousands
  "Returns an integer with a thin gap between groups of three digits: 2 000."
  [n]
  (str/replace (str n) #"(?<=\d)(?=(\d{3})+$)" "\u00a0"))

(defn ms
  "Returns a duration with three or four significant digits: 3.21 ms, 213 ms, 1.62 s, 1 103 s."
  [ms]
  (cond
    (nil? ms) "–"
    (< ms 9.995) (str (fixed 2 ms) " ms")
    (< ms 999.5) (str (fixed (if (< ms 99.95) 1 0) ms) " ms")
    (< ms 9995) (str (fixed 2 (/ ms 1000)) " s")
    (< ms 99950) (str (fixed 1 (/ ms 1000)) " s")
    :else (str (thousands (Math/round (/ ms 1000.0))) " s")))

(defn per-second
  "Returns requests per second: 2 213/s."
  [n]
  (if n (str (thousands (Math/round (double n))) "/s") "–"))

(defn ratio
  "Returns a ratio with two decimals below 10, one below 100: 1.04x."
  [x]
  (cond
    (nil? x) "–"
    (< x 9.995) (str (fixed 2 x) "x")
    (< x 99.95) (str (fixed 1 x) "x")
    :else (str (thousands (Math/round (double x))) "x")))

(defn- trimmed [x]
  (str/replace (fixed 1 x) #"\.0$" ""))

(defn bytes
  "Returns a size in decimal units: 6 MB, 100 kB."
  [n]
  (cond
    (< n 1000) (str n " B")
    (< n 999950) (str (trimmed (/ n 1e3)) " kB")
    (< n 999950000) (str (trimmed (/ n 1e6)) " MB")
    :else (str (trimmed (/ n 1e9)) " GB")))

(defn rate
  "Returns a rate as words: 500 kB/s, no limit."
  [rate]
  (if (number? rate) (str (bytes rate) "/s") "no limit"))

(defn duration
  "Returns a rough duration for a person who waits: 8 s, 1 min 20 s, 26 min."
  [ms]
  (let [seconds (Math/round (/ ms 1000.0)), minutes (quot seconds 60)]
    (cond
      (< seconds 60) (str seconds " s")
      (< minutes 10) (str minutes " min " (rem seconds 60) " s")
      :else (str minutes " min"))))

(defn commas
  "Returns words joined by commas and a final \"and\"."
  [words]
  (if (next words)
    (str (str/join ", " (butlast words)) " and " (last words))
    (str (first words))))

(defn wrap
  "Returns a sentence as lines of at most width columns, broken between words."
  [width sentence]
  (let [[word & words] (str/split sentence #" ")]
    (reduce (fn [lines word]
              (let [line (str (peek lines) " " word)]
                (if (<= (count line) width)
                  (conj (pop lines) line)
                  (conj lines word))))
            [word]
            words)))

(defn class-word
  "Returns the last part of an object's class name, never empty: ConnectException."
  [x]
  (last (str/split (.getName (class x)) #"[.$]")))

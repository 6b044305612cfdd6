(ns thrum.cluster.jvm-work
  "Functions for members that are processes of their own. Each leaves its trail in a file of the
  folder that its item names."
  (:require
   [clojure.java.io :as io])
  (:import
   (java.lang ProcessHandle)))

(set! *warn-on-reflection* true)

(defn pid [] (.pid (ProcessHandle/current)))

(defn- note! [folder event item]
  (locking note!
    (spit (io/file folder (str (pid) ".log"))
          (str (name event) " " item " " (pid) "\n")
          :append true)))

(defn nap [[folder item ms]]
  (note! folder :start item)
  (try
    (Thread/sleep (long ms))
    (note! folder :end item)
    (* 10 (long item))
    (catch InterruptedException e
      (note! folder :interrupted item)
      (throw e))))

(defn nap-at
  "As nap; on the process slow it takes slow-ms."
  [[folder item ms slow slow-ms]]
  (nap [folder item (if (= slow (str (pid))) slow-ms ms)]))

(defn nothing [item] item)

(defn index [[item _bytes]] item)

(defn halt [[folder item :as arguments]]
  (if (= item 5)
    (do (note! folder :start item) (.halt (Runtime/getRuntime) 3))
    (nap arguments)))

(defn hoard [[folder item :as arguments]]
  (if (= item 5)
    (do (note! folder :start item)
        (loop [held []] (recur (conj held (long-array 4000000)))))
    (nap arguments)))

(defn compute
  "Holds a processor for so many ms."
  [ms]
  (let [end (+ (System/nanoTime) (* 1000000 (long ms)))]
    (while (< (System/nanoTime) end))
    ms))

(defn where [_] (pid))

(ns thrum.soak.visitors
  "A crowd of clients in a process of its own. Lines on its input are commands; lines on its output
  report what it did.

  Arguments: the port, and how many connections to open. Every second one asks once and is kept, the
  others say nothing. `again` on the input has those who asked ask once more; the end of the input
  ends the process."
  (:require
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage]))

(set! *warn-on-reflection* true)

(def ^:private at-a-time 128)

(defn- asked? [c]
  (stage/whole-200? (wire/ask! c (wire/get "/visitor"))))

(defn- arrive! [port i]
  (try
    (let [c (wire/connect port)]
      (when (or (odd? (long i)) (asked? c)) c))
    (catch java.io.IOException _ nil)))

(defn- arrive-all! [port n]
  (stage/bounded at-a-time n #(arrive! port %)))

(defn- ask-again!
  [clients]
  (count (filter true?
                 (stage/bounded at-a-time (count clients) (fn [i] (asked? (nth clients i)))))))

(defn- say! [what n]
  (println what n)
  (flush))

(defn -main
  "Opens the connections, and follows the commands."
  [port n]
  (let [clients (arrive-all! (parse-long port) (parse-long n))
        asking (vec (take-nth 2 clients))]
    (say! "arrived" (count (remove nil? clients)))
    (while (= "again" (read-line)) (say! "asked" (ask-again! asking)))
    (say! "silent"
          (count (filter #(= :silent (wire/after % 1)) (take 100 (take-nth 2 (rest clients))))))
    (System/exit 0)))

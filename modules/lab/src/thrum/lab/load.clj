(ns thrum.lab.load
  "Puts a web server under load: connections that send a request, wait for the answer, and send the
  next one.

  A job is EDN: {:url :connections :seconds :headers [[name value] …] :timeout-ms}, a plain http
  URL; :warm-up-seconds for which the same load comes before, and is not counted; and :processors,
  the numbers of those that wrk runs on. What comes of it: {:generator :wrk or :built-in, :requests
  n :seconds :per-second :p50-ms :p99-ms :max-ms :errors {:connect n :read n :write n :timeout n
  :status n}}, of errors those that occurred. :requests and :per-second count every answer, one with
  a bad status too.

  A burst is another job: {:url :requests :connections :headers :timeout-ms}, so many requests, so
  many at once, a connection for each. What comes of it is the same, :seconds being the time until
  the last answer; :generator is :ab or :built-in. All of a burst's first requests are sent at once
  by the built-in generator; ab sends one alone before."
  (:require
   [clojure.string :as str]
   [thrum.lab.load.ab :as ab]
   [thrum.lab.load.built-in :as built-in]
   [thrum.lab.load.wrk :as wrk]
   [thrum.lab.machine :as machine]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def browser-headers
  "What a browser sends with a request for a page; with Host, which the generator writes, twelve
  headers."
  [["Cache-Control" "max-age=0"] ["sec-ch-ua" "\"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\""]
   ["sec-ch-ua-mobile" "?0"] ["sec-ch-ua-platform" "\"Linux\""] ["Upgrade-Insecure-Requests" "1"]
   ["User-Agent" (str "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
                      "Chrome/130.0.0.0 Safari/537.36")]
   ["Accept"
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"]
   ["Sec-Fetch-Site" "same-origin"] ["Sec-Fetch-Mode" "navigate"]
   ["Accept-Encoding" "gzip, deflate, br, zstd"] ["Accept-Language" "en-GB,en;q=0.9,de;q=0.8"]])

(def ^:private generators
  {:wrk wrk/drive!, :built-in built-in/drive!})

(def generator
  "Delivers which generator this machine has: :wrk where that is installed, otherwise :built-in."
  (delay (if (machine/on-path? "wrk") :wrk :built-in)))

(defn- generator-name
  "Returns the name of a generator as reports show it."
  [generator]
  (case generator
    :wrk "wrk"
    :ab "ab"
    :built-in "the lab's built-in generator"))

(defn came-from
  "Returns a sentence, after a blank, about the generators of the samples of rows; nil where there
  are none."
  [what rows]
  (when-let [generators (seq (distinct (keep :generator (mapcat :samples rows))))]
    (str " " what " came from " (text/commas (map generator-name generators)) ".")))

(defn- by-kind [errors]
  (when (seq errors)
    (str ": " (str/join ", " (map (fn [[kind n]] (str n " " (name kind))) errors)))))

(defn- unanswered [{:keys [url]} {:keys [errors]}]
  (ex-info (str "No request to " url " was answered" (by-kind errors))
           {:type :thrum/lab-load, :errors errors}))

(defn drive!
  "Does the job with that generator, by default the one that this machine has, in a process of its
  own, and returns what came of it. Blocks for the seconds and what the process takes to start and
  to end. Throws ex-info of :type :thrum/lab-load when no request was answered or the generator
  failed; an interrupt ends the process."
  ([job] (drive! @generator job))
  ([generator job]
   (let [figures ((generators generator) job)]
     (when (zero? (:requests figures))
       (throw (unanswered job figures)))
     (assoc figures :generator generator))))

;; Bursts

(defn open-bursts!
  "Returns what bursts come from: {:generator :burst! :close!}. generator is :ab, which must be
  installed, or :built-in, which is a JVM of its own until close! ends it."
  [generator]
  (assoc (case generator
           :ab {:burst! ab/burst!, :close! (constantly nil)}
           :built-in (built-in/open!))
         :generator generator))

(defn- incomplete
  [{:keys [url requests]} figures]
  (ex-info (str "Of " requests
                " requests to " url
                ", " (:requests figures)
                " were answered" (by-kind (:errors figures)))
           {:type :thrum/lab-load, :errors (:errors figures)}))

(defn burst!
  "Does the job, a burst, from a generator that open-bursts! returned, and returns what came of it.
  Blocks. Throws ex-info of :type :thrum/lab-load where a request failed, since the time of the
  others says nothing, and where the generator did; an interrupt ends ab."
  [{:keys [generator burst!]} job]
  (let [{:keys [requests errors] :as figures} (burst! job)]
    (when (or (seq errors) (not= (:requests job) requests))
      (throw (incomplete job figures)))
    (assoc figures :generator generator)))

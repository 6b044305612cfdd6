(ns thrum.impl.retry-after
  "Reads the header Retry-After of a response (RFC 9110, 10.2.3) from an HTTP client's exception."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.impl.error :as error])
  (:import
   (java.time Instant ZonedDateTime)
   (java.time.format DateTimeFormatter)))

(set! *warn-on-reflection* true)

(defn- header? [k]
  (and (or (string? k) (ident? k)) (= "retry-after" (str/lower-case (name k)))))

(defn- text
  "Returns the header's value, as a string, or nil."
  [t]
  (let [headers (:headers (ex-data (error/beneath t)))
        v (when (map? headers) (some (fn [[k v]] (when (header? k) v)) headers))]
    (some-> (if (sequential? v) (first v) v) str str/trim)))

(defn- until-date
  "Returns the ms to an HTTP date, at least 0."
  [text now]
  (let [^Instant date (.toInstant (ZonedDateTime/parse text DateTimeFormatter/RFC_1123_DATE_TIME))]
    (max 0 (- (.toEpochMilli date) (long now)))))

(defn ms
  "Returns how many ms the throwable's response asks to wait, from now, a time of day in ms; nil
  where it does not, or cannot be read."
  [t now]
  (try
    (when-some [text (text t)]
      (if (re-matches #"\d{1,9}" text)
        (* 1000 (parse-long text))
        (until-date text now)))
    (catch Exception _ nil)))

(ns thrum.server.engine.http-kit.head
  "The first bytes of an answer, and what headers say. Headers are an array of name, value, name,
  value ..."
  (:require
   [thrum.server.engine.http-kit.library :as library])
  (:import
   (java.nio.charset StandardCharsets)
   (java.time Instant ZoneOffset)
   (java.time.format DateTimeFormatter)
   (java.util Locale)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(defn bytes-of
  "Returns the characters as bytes."
  ^bytes [^String s]
  (.getBytes s StandardCharsets/ISO_8859_1))

(defn value
  "Returns the first value of a header, or nil."
  ^String [^objects headers ^String n]
  (loop [i 0]
    (when (< i (alength headers))
      (if (.equalsIgnoreCase n (aget headers i))
        (aget headers (inc i))
        (recur (+ i 2))))))

(defn closes?
  "Tells whether the headers end the connection."
  [headers]
  (boolean (some->> (value headers "connection") (re-find #"(?i)\bclose\b"))))

(def ^:private ^DateTimeFormatter imf-fixdate
  (-> (DateTimeFormatter/ofPattern "EEE, dd MMM yyyy HH:mm:ss 'GMT'" Locale/US)
      (.withZone ZoneOffset/UTC)))

(def ^:private ^AtomicReference clock
  "[second date]"
  (AtomicReference. [0 ""]))

(defn- date
  "Returns the moment as a Date header has it (RFC 9110, 5.6.7)."
  []
  (let [now (quot (System/currentTimeMillis) 1000)
        [second text] (.get clock)]
    (if (= now second)
      text
      (let [text (.format imf-fixdate (Instant/ofEpochSecond now))]
        (.set clock [now text])
        text))))

(defn- add-line! [^StringBuilder to n value]
  (doto to (.append (str n)) (.append ": ") (.append (str value)) (.append "\r\n")))

(defn head
  "Returns the first bytes of an answer; extra: further headers, as pairs. A Date is added where
  there is none."
  ^bytes [lib status ^objects headers extra]
  (let [lines (StringBuilder. 256)]
    (.append lines (String. (library/status-line lib status) StandardCharsets/ISO_8859_1))
    (loop [i 0]
      (when (< i (alength headers))
        (add-line! lines (aget headers i) (aget headers (inc i)))
        (recur (+ i 2))))
    (when-not (value headers "date") (add-line! lines "Date" (date)))
    (doseq [[n value] extra] (add-line! lines n value))
    (bytes-of (str (.append lines "\r\n")))))

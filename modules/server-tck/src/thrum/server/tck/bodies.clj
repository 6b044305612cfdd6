(ns thrum.server.tck.bodies
  "Response bodies that note what is done with them."
  (:require
   [thrum.server.tck.scene :as scene :refer [expect]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayInputStream FilterInputStream InputStream)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn file-of
  "Returns a File of text that is deleted at the end of the case."
  [env ^String text]
  (let [path (Files/createTempFile "tck" ".txt" (make-array FileAttribute 0))]
    (scene/at-end env #(Files/deleteIfExists path))
    (.toFile (Files/writeString path text (make-array java.nio.file.OpenOption 0)))))

(defn stream
  "Returns an InputStream of text that notes in trail when it is read and when it is closed."
  [trail text]
  (proxy [FilterInputStream] [(ByteArrayInputStream. (wire/bytes-of text))]
    (read ([] (swap! trail conj :read) (let [^FilterInputStream this this] (proxy-super read)))
          ([bs] (swap! trail conj :read) (let [^FilterInputStream this this] (proxy-super read bs)))
          ([bs off n]
           (swap! trail conj :read)
           (let [^FilterInputStream this this] (proxy-super read bs off n))))
    (close [] (swap! trail conj :closed) (let [^FilterInputStream this this] (proxy-super close)))))

(defn endless
  "Returns an InputStream without end, and a promise of its being closed."
  []
  (let [closed (promise)]
    [(proxy [InputStream] []
       (read ([] 120) ([bs] (count bs)) ([_ _ n] n))
       (close [] (deliver closed true)))
     closed]))

(defn expect-trail
  "Fails unless the trail comes to hold what is wanted, and never the unwanted."
  [wanted unwanted trail]
  (scene/eventually #(some #{wanted} @trail))
  (expect (some #{wanted} @trail) wanted @trail)
  (expect (not-any? #{unwanted} @trail) (str "no " unwanted) @trail))

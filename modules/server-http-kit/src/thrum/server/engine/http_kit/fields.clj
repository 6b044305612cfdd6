(ns thrum.server.engine.http-kit.fields
  "What http-kit's decoder keeps a request's headers in: all of them in their order, but it is shown
  none that say whether a body follows. So it takes every request for complete at the end of its
  head, and the body is left to us: http-kit would hold all of it in memory, make trailers headers,
  and say 100 before anybody has looked at the request."
  (:import
   (java.util ArrayList HashMap Map)))

(set! *warn-on-reflection* true)

(def ^:private hidden #{"content-length" "transfer-encoding" "expect"})

;; shown: as http-kit joins what is repeated, with line feeds.
(deftype Fields [^HashMap shown ^ArrayList all]
  Map
  (get [_ k] (.get shown k))
  (put [_ k value]
    (let [before (.get shown k)]
      (doto all
        (.add k)
        (.add (if before (subs value (inc (count before))) value)))
      (when-not (hidden k) (.put shown k value))
      before)))

(defn fields
  "Returns a fresh, empty one."
  ^Fields []
  (Fields. (HashMap.) (ArrayList. 32)))

(defn all
  "Returns name, value, name ... in the order of arrival; names are in lower case."
  ^objects [^Fields fields]
  (.toArray ^ArrayList (.-all fields)))

(ns thrum.test-kit.locale
  "What must not depend on the locale of the machine."
  (:import
   (java.util Locale)))

(set! *warn-on-reflection* true)

(defn in-turkish
  "Returns (f), called where Turkish is the default locale: there I is not the upper case of i."
  [f]
  (let [before (Locale/getDefault)]
    (try
      (Locale/setDefault (Locale/of "tr" "TR"))
      (f)
      (finally (Locale/setDefault before)))))

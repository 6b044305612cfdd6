(ns control.reflects
  "The control of the reflection check: it reflects, and the check must say so.")

(defn length
  "Calls a method of an unknown class."
  [x]
  (.length x))

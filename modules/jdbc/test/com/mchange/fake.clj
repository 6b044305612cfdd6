(ns com.mchange.fake
  "A connection as c3p0 has it: of a class in its package."
  (:require
   [thrum.jdbc.wrapper :as wrapper])
  (:import
   (java.sql Connection)))

(set! *warn-on-reflection* true)

(defn wrapper
  "Returns a connection around another. Its abort calls on-abort alone."
  ^Connection [inside on-abort]
  (wrapper/around inside on-abort))

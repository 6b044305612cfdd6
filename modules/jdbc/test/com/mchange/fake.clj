(ns com.mchange.fake
  "A connection as c3p0 has it: of a class in its package."
  (:import
   (java.sql Connection)))

(set! *warn-on-reflection* true)

(defn wrapper
  "Returns a connection around another. Its abort calls on-abort alone."
  ^Connection [^Connection inside on-abort]
  (reify Connection
    (createStatement [_] (.createStatement inside))
    (getAutoCommit [_] (.getAutoCommit inside))
    (setAutoCommit [_ on] (.setAutoCommit inside on))
    (rollback [_] (.rollback inside))
    (unwrap [_ interface] (.unwrap inside interface))
    (abort [_ _] (on-abort))
    (close [_] (.close inside))))

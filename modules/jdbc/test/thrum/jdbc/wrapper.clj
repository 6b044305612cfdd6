(ns thrum.jdbc.wrapper
  "Connections as pools have them, in wrappers of a class of the pool's."
  (:import
   (java.sql Connection)))

(set! *warn-on-reflection* true)

(defmacro around
  "Returns a connection around another, of a class in the package of the namespace around this form.
  Its abort calls on-abort alone."
  [inside on-abort]
  `(let [^Connection inside# ~inside]
     (reify Connection
       (createStatement [_#] (.createStatement inside#))
       (getAutoCommit [_#] (.getAutoCommit inside#))
       (setAutoCommit [_# on#] (.setAutoCommit inside# on#))
       (rollback [_#] (.rollback inside#))
       (unwrap [_# interface#] (.unwrap inside# interface#))
       (abort [_# _executor#] (~on-abort))
       (close [_#] (.close inside#)))))

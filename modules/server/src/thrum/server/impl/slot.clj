(ns thrum.server.impl.slot
  "The answer of an asynchronous handler: the first call of respond or raise counts."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(defn- fill! [^AtomicReference slot thread kind value]
  (when (.compareAndSet slot nil [kind value])
    (LockSupport/unpark thread))
  nil)

(defn- thrown [value]
  (if (instance? Throwable value)
    value
    (ex-info "A handler raised what is no Throwable" {:value (spi/datum value)})))

(defn call
  "Calls an asynchronous handler, and waits for its answer, which it returns or throws."
  [handler request]
  (let [slot (AtomicReference.), fill! (partial fill! slot (Thread/currentThread))]
    ;; What it throws after it has answered is not the answer.
    (try
      (handler request #(fill! :responded %) #(fill! :raised %))
      (catch Throwable t (fill! :raised t)))
    (spi/wait-until slot nil #(some? (.get slot)))
    (let [[kind value] (.get slot)]
      (if (= :raised kind)
        (throw (thrown value))
        value))))

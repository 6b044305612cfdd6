(ns thrum.server.impl.async-handler
  "The answer of an asynchronous handler: the first call of respond or raise counts."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(defn- fill! [^AtomicReference answer thread kind value]
  (when (.compareAndSet answer nil [kind value])
    (LockSupport/unpark thread))
  nil)

(defn- thrown [value]
  (if (instance? Throwable value)
    value
    (ex-info "A handler raised what is no Throwable" {:value (spi/datum value)})))

(defn call
  "Calls an asynchronous handler, and waits for its answer, which it returns or throws."
  [handler request]
  (let [answer (AtomicReference.), fill! (partial fill! answer (Thread/currentThread))]
    ;; What it throws after it has answered is not the answer.
    (try
      (handler request #(fill! :responded %) #(fill! :raised %))
      (catch Throwable t (fill! :raised t)))
    (spi/wait-until answer nil #(some? (.get answer)))
    (let [[kind value] (.get answer)]
      (if (= :raised kind)
        (throw (thrown value))
        value))))

(ns thrum.server.engine.helidon.http1
  "HTTP/1 on one connection: one request after another, each on a fresh thread."
  (:require
   [thrum.server.engine.helidon.answer :as answer]
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.head]
   [thrum.server.engine.helidon.input :as input]
   [thrum.server.engine.helidon.tls :as tls]
   [thrum.server.engine.helidon.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.server.engine.helidon.connection Connection)
   (thrum.server.engine.helidon.head Head)
   (thrum.server.engine.helidon.wire Ends)))

(set! *warn-on-reflection* true)

(def ^:private ^AtomicLong numbers (AtomicLong.))

(defn- refuse! [^Connection connection status]
  (try
    (answer/write-whole! connection (answer/refusal status) nil)
    (catch IOException _))
  (engine/refused! (.-options connection) status (connection/remote connection))
  false)

(defn- turn!
  "Serves the next request; returns whether another may follow."
  [^Ends ends serve]
  (let [head (input/head! (.-input ends))]
    (cond
      (instance? Head head) (wire/serve! ends head serve)
      head (refuse! (.-connection ends) head))))

(defn- take-turns!
  "Has one request after the other served, each on a fresh thread: that which has served one starts
  the next, and ends."
  [^Ends ends serve]
  (let [^CountDownLatch over (.-over ends)
        turn (fn []
               (try
                 (if (turn! ends serve)
                   (take-turns! ends serve)
                   (.countDown over))
                 (catch Throwable _ (.countDown over))))]
    (.start (spi/clean-thread (str "http-" (.incrementAndGet numbers)) turn))))

(defn talk!
  "Serves one request after the other on this connection; ssl: its socket of TLS, or nil. Returns
  when the connection is to end; a handler may still run, whose client has been answered."
  [connection ssl serve]
  (let [^CountDownLatch over (CountDownLatch. 1)
        ends (Ends. connection
                    (input/input connection)
                    over
                    (if ssl "https" "http")
                    (some-> ssl
                            tls/certificate))]
    (take-turns! ends serve)
    (.await over)))

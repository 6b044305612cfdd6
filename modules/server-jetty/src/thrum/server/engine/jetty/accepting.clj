(ns thrum.server.engine.jetty.accepting
  "Connections between their accept and their opening. Jetty forgets them, and leaves their sockets
  open, when it stops meanwhile: so they are waited for before it does."
  (:require
   [clojure.string :as str])
  (:import
   (java.nio.channels SelectableChannel)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap)
   (org.eclipse.jetty.io Connection Connection$Listener SelectorManager$AcceptListener)
   (org.eclipse.jetty.server ServerConnector)))

(set! *warn-on-reflection* true)

;; channels: those that are being accepted.
(deftype Accepting [connectors ^Set channels]
  SelectorManager$AcceptListener
  (onAccepting [_ channel] (.add channels channel))
  (onAcceptFailed [_ channel _] (.remove channels channel))
  Connection$Listener
  (onOpened [_ connection]
    (.remove channels (.getTransport (.getEndPoint ^Connection connection)))))

(defn watch
  "Starts to watch what the connectors accept; to be called before they start."
  ^Accepting [connectors]
  (let [accepting (Accepting. connectors (ConcurrentHashMap/newKeySet))]
    (doseq [^ServerConnector connector connectors]
      (.addEventListener connector accepting)
      (.addEventListener (.getSelectorManager connector) accepting))
    accepting))

(defn- acceptor?
  "True if the thread accepts for the connector. Jetty says so in its name only."
  [connector ^Thread thread]
  (str/includes? (.getName thread)
                 (str "ServerConnector@"
                      (Integer/toHexString (System/identityHashCode connector)))))

(defn- acceptors [^Accepting accepting]
  (filter (fn [thread] (some #(acceptor? % thread) (.-connectors accepting)))
          (keys (Thread/getAllStackTraces))))

(defn- idle?
  "True if an acceptor waits: what it had accepted it has handed over."
  [^Thread acceptor]
  (contains? #{Thread$State/WAITING Thread$State/TIMED_WAITING Thread$State/TERMINATED}
             (.getState acceptor)))

(defn- over? [acceptors ^Accepting accepting]
  (and (every? idle? acceptors)
       (not-any? #(.isOpen ^SelectableChannel %) (.-channels accepting))))

(def ^:private ^:const most-ms 1000)

(defn await-end!
  "Waits, a second at most, until each connection that was accepted is open; to be called when the
  listeners have been closed. Closes the others."
  [^Accepting accepting]
  (let [end (+ (System/nanoTime) (* most-ms 1000000))
        acceptors (acceptors accepting)]
    (while (and (not (over? acceptors accepting)) (neg? (- (System/nanoTime) end)))
      (Thread/sleep 1))
    (run! #(.close ^SelectableChannel %) (.-channels accepting))))

(ns thrum.server.engine.jdk.fixed
  "What the JDK's server reads from system properties, once for the JVM: the first server sets it,
  unless it is set already, and one that asks for other values is refused."
  {:no-doc true}
  (:require
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(def ^:private ^AtomicReference fixed
  "The options that the JVM's first server has fixed."
  (AtomicReference.))

(defn properties
  "Returns the system properties that this server needs, by name."
  [{:keys [idle-timeout-ms max-connections]}]
  {"sun.net.httpserver.idleInterval" (str (max 1 (quot (+ (long idle-timeout-ms) 999) 1000)))
   "jdk.httpserver.maxConnections" (str max-connections)
   ;; 200 by default: a connection beyond them is closed when its request has been answered.
   "sun.net.httpserver.maxIdleConnections" (str max-connections)
   ;; Ours is the bound: this one would answer in its own words.
   "sun.net.httpserver.maxReqHeaders" "10000"
   ;; Its clock: every 10 s by default, which would add that to each silence.
   "sun.net.httpserver.clockTick" "1000"
   "sun.net.httpserver.nodelay" "true"})

(def ^:private by-option
  "The properties that options ask for."
  {:idle-timeout-ms "sun.net.httpserver.idleInterval"
   :max-connections "jdk.httpserver.maxConnections"})

(defn- set-properties!
  "Sets those that are not set. Throws where one is set otherwise than the user has asked for: by
  another server of the JDK's, that of thrum.watch or any other, or for the JVM."
  [options properties]
  (doseq [option (engine/given options (keys by-option))
          :let [k (by-option option), v (properties k), was (System/getProperty k v)]]
    (when-not (= v was)
      (throw (spi/invalid (str "The JDK's servers have one " k " for the whole JVM; it is " was
                            " already, and cannot be " v
                            ": start this server before the others")
               {:option option, :value (option options), :fixed was}))))
  (doseq [[k v] properties]
    (when-not (System/getProperty k) (System/setProperty k v))))

(defn- check-fixed!
  [wanted]
  (doseq [[k v] wanted
          :let [was (get (.get fixed) k)]]
    (when-not (= v was)
      (throw (spi/invalid (str "The JDK's server has one " k
                            " for the whole JVM; it is " was
                            " already, and cannot be " v)
               {:option k, :value v, :fixed was})))))

(defn fix!
  "Sets the properties for these options, once for the JVM. Throws :thrum/invalid for what they
  cannot be any more. Of two servers that start at once the second waits: the JDK reads the
  properties when the first is made."
  [options]
  (locking fixed
    (when-not (.get fixed)
      (set-properties! options (properties options))
      (.set fixed (select-keys options [:idle-timeout-ms :max-connections]))))
  ;; What was not asked for is not missed.
  (check-fixed! (select-keys options
                             (conj (engine/given options [:max-connections]) :idle-timeout-ms))))

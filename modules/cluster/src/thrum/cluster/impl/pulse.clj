(ns thrum.cluster.impl.pulse
  "The beat of a node, five times a second: it ends waits for members that are lost, repeats
  cancels, extends its leases, and stops the work of callers that are gone. On a platform thread: a
  node whose carriers all compute still has its leases."
  {:no-doc true}
  (:require
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.impl.crew :as crew]
   [thrum.cluster.impl.member :as member]
   [thrum.cluster.impl.wire :as wire]
   [thrum.cluster.spi :as engine])
  (:import
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.cluster.impl.caller Caller Pending)))

(set! *warn-on-reflection* true)

(def ^:private ^:const beat-ms 200)

(defn- gone
  "Returns the set of those nodes that are not in the cluster."
  [engine node nodes]
  (into #{} (filter #(and (not= node %) (engine/lost? engine %))) nodes))

(defn- workers-with-work [^Caller caller]
  (into #{} (map #(.-worker ^Pending %)) (vals (.-pending caller))))

(defn- end-lost! [^Caller caller lost]
  (doseq [^Pending pending (vals (.-pending caller)) :when (lost (.-worker pending))]
    (caller/fail-pending! pending "The member was lost")))

(defn- repeat-cancels! [^Caller caller]
  (doseq [[run ^Pending pending] (.-pending caller)
          :when (.get ^AtomicBoolean (.-cancelled pending))]
    (caller/send-cancel! caller run pending)))

(defn- extend-leases! [^Caller caller]
  (doseq [worker (workers-with-work caller) :when (not= worker (.-node caller))]
    (caller/send! caller worker (wire/plain :alive (.-node caller)))))

(defn- stop-lost! [member lost]
  (run! #(member/stop-caller! member % :caller-lost) lost))

;; A view may be behind for a moment: gone is what was gone at two beats.
(defn- beat!
  "Returns what the next beat takes."
  [{:keys [^Caller caller member lease-ms before n] :as state}]
  (let [engine (.-engine caller)
        nodes (into (workers-with-work caller) (some-> member member/callers))
        gone (gone engine (.-node caller) nodes)
        lost (into #{} (filter gone) before)]
    (crew/retain! (.-crew caller) (set (engine/workers engine)))
    (end-lost! caller lost)
    (repeat-cancels! caller)
    (when (zero? (rem (long n) (max 1 (quot (long lease-ms) (* 4 (long beat-ms))))))
      (extend-leases! caller))
    (when member
      (stop-lost! member lost)
      (member/expire! member lease-ms))
    (crew/wake! (.-crew caller))
    (assoc state :before gone, :n (inc (long n)))))

(defn- beat-until-stopped! [^AtomicBoolean stopped state]
  (loop [state state]
    (when-not (.get stopped)
      (Thread/sleep (long beat-ms))
      (recur (try (beat! state) (catch Exception _ state))))))

(defn start!
  "Starts the beat of a node; returns a function that stops it."
  [{:keys [^Caller caller] :as state}]
  (let [stopped (AtomicBoolean.)
        run #(try (beat-until-stopped! stopped (merge {:before #{}, :n 0} state))
                  (catch InterruptedException _))
        thread (-> (Thread/ofPlatform)
                   (.name (str "thrum-cluster-" (.-node caller)))
                   (.daemon)
                   (.start ^Runnable run))]
    (fn []
      (.set stopped true)
      (.interrupt thread)
      (.join thread))))

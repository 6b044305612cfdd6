(ns thrum.cluster.impl.pulse
  "The beat of a node, five times a second: it ends waits for members that are lost or silent, and
  for answers that are lost, repeats cancels, extends its leases, shows callers that it is there,
  and stops the work of callers that are gone. On a platform thread: a node whose carriers all
  compute still has its leases, and is not silent."
  {:no-doc true}
  (:require
   [thrum.cluster.impl.caller :as caller]
   [thrum.cluster.impl.crew :as crew]
   [thrum.cluster.impl.member :as member]
   [thrum.cluster.impl.pending :as pending]
   [thrum.cluster.impl.silence :as silence]
   [thrum.cluster.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.cluster.impl.caller Caller)))

(set! *warn-on-reflection* true)

(def ^:const beat-ms "How long a beat takes." 200)

(defn- gone
  "Returns the set of those nodes that are not in the cluster."
  [engine node nodes]
  (into #{} (filter #(and (not= node %) (engine/lost? engine %))) nodes))

(defn- end-lost! [by-member lost]
  (doseq [[member entries] by-member :when (lost member)
          [_ pending] entries]
    (pending/fail! pending "The member was lost")))

(defn- repeat-cancels! [^Caller caller]
  (doseq [[run pending] (.-pending caller) :when (pending/cancel-again? pending)]
    (caller/send-cancel! caller run pending)))

(def ^:private ^:const alive-beats "Each so many beats a node shows that it is there." 2)

(def ^:private alive-ms "How long that takes." (* (long alive-beats) (long beat-ms)))

(defn- most-absences [heartbeat-ms]
  (max 13 (quot (long heartbeat-ms) (long alive-ms))))

(defn- show-alive! [^Caller caller nodes by-member heartbeat-ms]
  (doseq [node nodes :when (not= node (.-node caller))]
    (caller/show-alive! caller node (by-member node) (most-absences heartbeat-ms) alive-ms)))

(defn- count-silence!
  "Counts a beat for the members with work of ours, and for those that are silent. Returns them."
  [^Caller caller silence with-work]
  (let [silent? #(silence/silent? silence %)
        watched (-> (into #{} (filter silent?) (engine/workers (.-engine caller)))
                    (into with-work)
                    (disj (.-node caller)))]
    (silence/beat! silence watched)
    watched))

(def ^:private ^:const quiet-ms
  "A caller that the engine does not have, and that has sent something since, is not gone: another
  node may have been cut off from it, and have put it out."
  1500)

(defn- stop-lost! [member lost]
  (run! #(member/stop-caller! member % :caller-lost)
        (filter #(member/expired? member % quiet-ms) lost)))

;; A view may be behind for a moment: gone is what was gone at two beats. It may also never change:
;; an engine has one view for all, and a member that this node alone cannot reach stays in it.
(defn- beat!
  "Returns what the next beat takes."
  [{:keys [^Caller caller member silence heartbeat-ms lease-ms before n] :as state}]
  (let [engine (.-engine caller)
        by-member (pending/by-member (.-pending caller))
        with-work (set (keys by-member))
        served (member/callers member)
        gone (gone engine (.-node caller) (into with-work served))
        lost (into #{} (filter gone) before)
        watched (count-silence! caller silence with-work)]
    (crew/retain! (.-crew caller) (set (caller/workers caller)))
    (end-lost! by-member (into lost (filter #(silence/silent? silence %)) watched))
    (repeat-cancels! caller)
    (when (zero? (rem (long n) (long alive-beats)))
      (show-alive! caller (into watched served) by-member heartbeat-ms))
    (stop-lost! member lost)
    (member/expire! member lease-ms)
    (crew/wake! (.-crew caller))
    (assoc state :before gone, :n (inc (long n)))))

(defn- beat-until-stopped! [^AtomicBoolean stopped state]
  (let [report! (spi/reporter)]
    (loop [state state]
      (when-not (.get stopped)
        (Thread/sleep (long beat-ms))
        ;; Without its beat a node is lost: an Error does not end it either. The catch itself needs
        ;; no memory.
        (recur (try
                 (beat! state)
                 (catch Throwable t
                   (when-not (.get stopped) (report! t))
                   state)))))))

(defn start!
  "Starts the beat of a node; returns a function that stops it."
  [{:keys [^Caller caller] :as state}]
  (let [stopped (AtomicBoolean.)
        run #(try (beat-until-stopped! stopped (assoc state :before #{}, :n 0))
                  (catch InterruptedException _))
        thread (doto (spi/platform-thread (str "thrum-cluster-" (.-node caller)) run) .start)]
    (fn []
      (.set stopped true)
      (.interrupt thread)
      (.join thread))))

(ns thrum.soak.restarts
  "Restarts under load: a request that a handler was given is answered once, and wholly."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.io IOException)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(def ^:private times 200)

(def ^:private filler (str/join (repeat 2000 "f")))

(defn- id-of [request] (subs (:uri request) 1))

(defn- body-for [id]
  (if (even? (long (parse-long id)))
    (str id filler)
    (map str [id filler])))

(defn- handle
  "Notes the request as accepted, takes up to 5 ms, and gives its name back: whole, or in chunks."
  [^ConcurrentHashMap entered never]
  (fn [request]
    (let [id (id-of request)]
      (.merge entered id 1 +)
      (deref never (stage/chance 6) nil)
      {:status 200, :headers {}, :body (body-for id)})))

;; Clients

(defn- judged
  "Returns what became of a request: whether :answered, :refused with an error, its connection
  :closed, or :forgotten: neither answered nor closed; or a map that says what is wrong."
  [id answer]
  (cond
    (and (stage/whole-200? answer) (= (str id filler) (:body answer))) :answered
    (and (#{500 503} (:status answer)) (wire/complete? answer)) :refused
    (nil? (:status answer)) (if (= :silent (:ended answer)) :forgotten :closed)
    :else {:id id, :answer (update answer :body #(when % (subs % 0 (min 60 (count %)))))}))

(defn- ask-once [c id]
  (judged id (wire/ask! c (wire/get (str "/" id)))))

(defn- connected [port]
  (try (wire/connect port) (catch IOException _ nil)))

(defn- visit!
  "Asks on one connection up to n times, noting what became of each request."
  [port n ^AtomicLong ids ^ConcurrentHashMap fates]
  (if-some [c (connected port)]
    (try
      (loop [n (long n)]
        (let [id (str (.incrementAndGet ids)), fate (ask-once c id)]
          (.put fates id fate)
          (when (and (= :answered fate) (< 1 n)) (recur (dec n)))))
      (finally (wire/close! c)))
    (stage/pause! 2)))

(defn- clients!
  "Starts clients who ask until over is delivered, half of them on connections that they keep;
  returns a promise of their end."
  [port over ids fates]
  (stage/start
    #(stage/each 12 (fn [i]
                      (while (not (realized? over))
                        (visit! port (if (even? (long i)) 1000 1) ids fates))))))

;; Verdict

(defn- lost
  "Returns the accepted requests whose client was not answered, and those accepted twice."
  [^ConcurrentHashMap entered ^ConcurrentHashMap fates]
  (for [[id n] entered :when (or (not= 1 n) (not= :answered (.get fates id)))]
    {:id id, :entered n, :fate (.get fates id)}))

(def ^:private most-forgotten
  "How many sockets the engines may forget that were accepted in the moment of a stop. Jetty forgets
  one in some 15 stops on a busy machine; where the end of the JVM does not close them their clients
  wait for their own time-out."
  50)

(defn- expect-none-lost
  [^ConcurrentHashMap entered ^ConcurrentHashMap fates]
  (let [broken (filter map? (.values fates))
        lost (lost entered fates)
        forgotten (count (filter #{:forgotten} (.values fates)))]
    (expect (<= forgotten (long most-forgotten))
            (str "at most " most-forgotten " forgotten sockets")
            forgotten)
    (expect (empty? lost)
            "that each accepted request is answered once"
            {:count (count lost), :first (take 3 lost)})
    (expect (empty? broken)
            "that each response is complete"
            {:count (count broken), :first (take 3 broken)})))

(defn- restart!
  "Serves on the port for a while, and stops while clients ask."
  [stage port handler]
  (let [server (server/run-server handler (stage/options-of stage {:port port}))]
    (stage/pause! (+ 20 (stage/chance 40)))
    (server/stop! server)
    (expect (= :stopped (:state (server/status server)))
            "that it has stopped"
            (server/status server))))

(def ^:private restarts
  {:name "restarts"
   :sentence
   (str "In 200 restarts under load no accepted request is lost or answered twice, and each "
        "response is complete.")
   :controls [["stop! does not wait for what is in flight"
               #(assoc-in % [:options :shutdown-timeout-ms] 0)]]
   :run (fn [stage]
          (let [entered (ConcurrentHashMap.)
                fates (ConcurrentHashMap.)
                ids (AtomicLong.)
                over (promise)
                handler (handle entered (promise))
                first-one (stage/serve stage handler {})
                port (server/port first-one)
                _ (server/stop! first-one)
                clients (clients! port over ids fates)]
            (scene/at-end stage #(deliver over true))
            (dotimes [_ times] (restart! stage port handler))
            (deliver over true)
            (let [{:keys [thrown]} (deref clients 20000 {:thrown (ex-info "A client hangs" {})})]
              (when thrown (throw thrown)))
            (expect-none-lost entered fates)
            {:restarts times, :accepted (count entered), :fates (frequencies (.values fates))}))})

(def ordeals
  "The ordeals of this namespace."
  [restarts])

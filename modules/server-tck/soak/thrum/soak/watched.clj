(ns thrum.soak.watched
  "A watch over servers under load: it has nothing to say."
  (:require
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.lang AutoCloseable)))

(set! *warn-on-reflection* true)

(def ^:private limiter (delay (t/limiter 64 {:name "soak"})))

(defn- work! [_]
  (t/with-permit @limiter (Thread/sleep (stage/chance 20))))

(defn- handle
  "Does what handlers do: forks, maps, waits for permits, and meets deadlines."
  [_]
  (case (stage/chance 4)
    0 (t/with-scope [s] (t/fork s (work! 0)) (t/fork s (work! 1)))
    1 (t/pmapv 3 work! (range 6))
    2 (t/with-timeout [(stage/chance 30) :late] (work! 0))
    3 (reduce + (range 10000)))
  {:status 200, :headers {}, :body "ok"})

;; Of the versions of JDK and libraries, which no load changes.
(def ^:private of-versions #{:jdk-hang :thread-local-pool :pgjdbc})

(defn- watch!
  "Starts a watch that ends with the ordeal; each lint's sentence goes to the atom. Loaded here: who
  loads it watches the whole JVM."
  [stage said]
  (let [start! (requiring-resolve 'thrum.watch/start!)
        note! (fn [{:keys [rule sentence]}]
                (when-not (of-versions rule) (swap! said conj sentence)))
        watch (start! {:port 0, :on-lint note!})]
    (scene/at-end stage #(.close ^AutoCloseable watch))))

(def ^:private ^:const chunk-ms "Clients are given up after a minute." 30000)

(defn- load!
  "Has clients ask for so many ms; returns how many requests there were."
  [port ms]
  (loop [left (long ms), calls 0]
    (if (pos? left)
      (recur (- left (long chunk-ms))
             (+ calls (long (stage/until 24 (min left (long chunk-ms))
                              #(stage/ask port (wire/get "/"))))))
      calls)))

(defn- watched! [{:keys [seconds] :as stage}]
  (let [said (atom [])
        ;; First: the JDK's has an idle time of its own, which a watch would set.
        server (stage/serve stage handle {:max-concurrent 64, :request-timeout-ms 10000})
        _ (watch! stage said)
        calls (load! (server/port server) (* 1000 (long seconds)))]
    (expect (empty? @said) "that the watch has nothing to say" (take 5 @said))
    {:requests calls, :minutes (quot (long seconds) 60)}))

(defn- with-hog
  "Has one handler in a thousand hold its carrier for some seconds."
  [stage]
  (assoc stage :wrap (fn [handler]
                       (fn [request]
                         (when (zero? (stage/chance 1000))
                           (let [end (+ (stage/now-ms) 2500)]
                             (while (< (stage/now-ms) end))))
                         (handler request)))))

(def ^:private watched
  "Of false alarms: --only watched --seconds 1800."
  {:name "watched"
   :sentence "A watch over a healthy server says nothing, however long it is under load."
   :alone? true
   :controls [["a handler holds its carrier" with-hog]]
   :run watched!})

(def ordeals
  "The ordeals of this namespace."
  [watched])

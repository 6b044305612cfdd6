(ns thrum.lab.experiments.ring.experiment
  "A Ring handler under load, on one engine: a pool of 50 platform threads, one as large as the
  connections, the engine alone on virtual threads, and Thrum's run-server. Each contender has a
  server in a JVM of its own, and each sample a fresh one."
  (:require
   [clojure.set :as set]
   [thrum.lab.checkout :as checkout]
   [thrum.lab.load :as load]
   [thrum.lab.server-sample :as server-sample]
   [thrum.lab.subject :as subject]))

(set! *warn-on-reflection* true)

(def ^:private sleep-ms "As published." 50)

(def quick
  "The sizes of the quick form: one short run of each."
  {:warm-up-seconds {:sleep 2, :no-sleep 5}
   :seconds {:sleep 2, :no-sleep 3}
   :repeat {:sleep 1, :no-sleep 1}
   :parts [:sleep :no-sleep]})

(def full
  "The sizes of the judged form: three runs, warmed up, in turns, of which the median counts; of ten
  seconds where figures were published, as published."
  {:warm-up-seconds {:sleep 3, :no-sleep 5, :many 3}
   :seconds {:sleep 5, :no-sleep 5, :many 5, :published 10}
   :repeat {:sleep 3, :no-sleep 3, :many 1}
   :parts [:sleep :no-sleep :many]})

(def engines
  "The engines, in the order of a run."
  [:jdk :jetty :tomcat :helidon :http-kit])

(def ^:private name-of
  {:jdk "the JDK's server"
   :jetty "Jetty"
   :tomcat "Tomcat"
   :helidon "Helidon"
   :http-kit "http-kit"})

(defn- experiment-name [engine]
  (keyword (str "ring-" (name engine))))

(def ^:private absent
  {:jetty "Jetty is not on the class path: add io.github.thrum-clj/thrum-server-jetty"
   :tomcat "Tomcat is not on the class path: add io.github.thrum-clj/thrum-server-tomcat"
   :helidon "Helidon is not on the class path: add io.github.thrum-clj/thrum-server-helidon"
   :http-kit (str "http-kit is neither on the class path, nor is this a checkout of Thrum: add "
                  "http-kit/http-kit 2.9.0 or newer")})

(def ^:private questions
  "The parts of each engine's experiment."
  [{:question :sleep
    :title "%s: a handler that sleeps 50 ms, 120 connections"
    :about (str "Every request waits 50 ms, as for a database. How many does the server answer "
                "in a second?")
    :connections 120
    :sleep-ms sleep-ms
    :contenders [:pool-50 :pool-all :bare :thrum]}
   {:question :no-sleep
    :title "%s: a handler that does not wait, 120 connections"
    :about (str "There is nothing to wait for, and a browser's twelve headers to read: what does "
                "each way cost?")
    :connections 120
    :contenders [:bare :thrum]}
   {:question :many
    :title "%s: a handler that sleeps 50 ms, 4 000 connections"
    :about (str "As many connections as a pool of platform threads is seldom given: which way "
                "answers all of them, and in what memory?")
    :connections 4000
    :sleep-ms sleep-ms
    :contenders [:pool-50 :pool-all :bare :thrum]}])

(def ^:private source "`wrk -t 12 -c 120` for 10 s, on another machine")

(defn- published-figure [per-second threads]
  {:per-second per-second, :limit-line-per-second (/ (min 120 threads) 0.05), :source source})

(def ^:private published
  "Published requests per second by engine, question and contender: a Ring handler that sleeps 50
  ms, and 120 connections."
  {:jetty {:sleep {:pool-50 (published-figure 843 50), :thrum (published-figure 2218 120)}}
   :http-kit {:sleep {:pool-50 (published-figure 928 50), :thrum (published-figure 2209 120)}}})

;; Plan

(defn- pool-of [contender connections]
  (case contender
    :pool-50 50
    :pool-all connections
    nil))

(defn- way [contender engine-name pool]
  (case contender
    :bare {:name (str engine-name ", virtual threads"), :about "the engine alone, its own API"}
    :thrum {:name "thrum.server", :about (str "run-server on " engine-name), :thrum? true}
    {:name (str "platform pool of " pool), :about "the engine alone, its own API"}))

(defn part-name
  "Returns the name of an engine's part, which no other experiment has: :jdk-sleep."
  [engine question]
  (keyword (str (name engine) "-" (name question))))

(defn- headline
  "Returns the headline of an engine's part where figures were published for it."
  [engine question]
  (when (get-in published [engine question])
    {:system (str "Ring on " (name-of engine))
     :figure :per-second
     :pairs [[:pool-50 :thrum]]
     :beside [:pool-all "a platform pool of 120 answers %s"]
     :because "50 threads wait for 50 requests at once, virtual threads for all 120"
     :tour [:pool-50 :pool-all :bare :thrum]}))

(defn- per-second
  "Returns the limit line of so many connections, or of a pool that is smaller."
  [connections pool sleep-ms]
  (when sleep-ms
    (/ (* 1000.0 (min connections (or pool connections))) sleep-ms)))

(defn- seconds-of
  "Returns how long a run takes."
  [{:keys [seconds]} engine question]
  (or (when (get-in published [engine question]) (:published seconds))
      (seconds question)))

(defn- estimate-ms [{:keys [warm-up-seconds repeat] :as sizes} engine question]
  (* (repeat question)
     (server-sample/estimate-ms (warm-up-seconds question) (seconds-of sizes engine question))))

(defn- row [engine {:keys [question connections sleep-ms]} sizes contender]
  (let [pool (pool-of contender connections)
        figure (get-in published [engine question contender])]
    (cond-> (merge {:contender contender, :thrum? false}
                   (way contender (name-of engine) pool)
                   {:job {:engine engine, :way (if (= :thrum contender) :thrum :bare), :pool pool}
                    :params {:pool pool}
                    :limit-line-per-second (per-second connections pool sleep-ms)
                    :repeat ((:repeat sizes) question)
                    :estimate-ms (estimate-ms sizes engine question)})
      figure (assoc :published figure))))

(defn- scaled
  "Returns what the quick form leaves out, in words."
  [sizes engine question]
  (when-not (= full sizes)
    (str "Scaled: one run of " (seconds-of sizes engine question) " s instead of "
         (if (= 1 (get-in full [:repeat question])) "one of " "three of ")
         (seconds-of full engine question) " s, and little time to warm up.")))

(defn- fitting
  "Returns those of the contenders that there can be on the engine: Helidon has no pools."
  [engine contenders]
  (cond->> contenders (= :helidon engine) (remove #{:pool-50 :pool-all})))

(def ^:private limit-line-about
  "connections, or threads where there are fewer, ÷ the handler's sleep")

(defn- part-plan
  [engine {:keys [question title contenders], :as part}
   {:keys [warm-up-seconds], :as sizes}]
  (-> (dissoc part :question)
      (assoc :part (part-name engine question)
             :title (format title (name-of engine))
             :warm-up-seconds (warm-up-seconds question)
             :seconds (seconds-of sizes engine question)
             :scaled (scaled sizes engine question)
             :limit-line-about limit-line-about
             :in-turns? true
             :headline (headline engine question)
             :contenders (mapv #(row engine part sizes %) (fitting engine contenders)))))

(defn- sizes-of
  "Returns the sizes that the options ask for: a part that the quick form leaves out runs in it
  where it is asked for by name."
  [engine {full? :full, :keys [only]}]
  (if full?
    full
    (cond-> quick
      (= only (part-name engine :many)) (-> (update :parts conj :many)
                                            (assoc-in [:warm-up-seconds :many] 3)
                                            (assoc-in [:seconds :many] 4)
                                            (assoc-in [:repeat :many] 1)))))

(defn- skipped
  "Returns the one part of an experiment whose engine is not there."
  [engine part]
  (-> (part-plan engine part quick)
      (assoc :title (name-of engine), :skipped (absent engine))))

(defn- engines-here [] {:engines (subject/engines)})

(defn- fetched?
  "True if the engine is not on the class path, but a checkout may download it."
  [engine {:keys [engines checkout]}]
  (and (= :http-kit engine) checkout (not (contains? engines engine))))

(defn- parts [engine options facts]
  (let [{:keys [parts] :as sizes} (sizes-of engine options)]
    (if (or (contains? (:engines facts) engine) (fetched? engine facts))
      (mapv #(part-plan engine % sizes) (filter (comp (set parts) :question) questions))
      [(skipped engine (first questions))])))

(defn- plan [engine options facts]
  {:experiment (experiment-name engine)
   :title (str "Ring on " (name-of engine))
   :about "A Ring handler under load, on platform threads and on virtual ones."
   :not-counted (when (fetched? engine facts) "the download of http-kit, the first time")
   :parts (parts engine options facts)})

;; Run

(defn- open! [engine _]
  (if (fetched? engine {:engines (subject/engines), :checkout (checkout/folder)})
    (set/rename-keys (subject/http-kit-class-path! (checkout/folder)) {:problem :skipped})
    {}))

(defn- sample! [env part {:keys [job]} _]
  (server-sample/sample (merge job (select-keys env [:class-path]))
                        (assoc part :headers load/browser-headers)))

(defn experiment
  "Returns the experiment for an engine."
  [engine]
  {:name (experiment-name engine)
   :doc (str "a Ring handler under load, on " (name-of engine))
   :parts (mapv (fn [{:keys [question about]}] [(part-name engine question) about]) questions)
   :left-out [(part-name engine :many)]
   :toured (mapv #(part-name engine %) (keys (published engine)))
   :facts engines-here
   :plan (partial plan engine)
   :open! (partial open! engine)
   :sample! sample!
   :conditions server-sample/conditions
   :columns server-sample/columns})

(def experiments (mapv experiment engines))

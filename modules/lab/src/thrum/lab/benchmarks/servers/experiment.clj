(ns thrum.lab.benchmarks.servers.experiment
  "What thrum.server costs on each engine, against the same engine alone with a handler in its own
  API, both on virtual threads; and where the engine can serve a connection's requests on one
  thread, as it may be asked to and the engine alone does, also that. The servers are the lab's,
  each in a JVM of its own, and take the load in turns. Other servers, peers, are measured where the
  user names them.

  What a request costs is asked twice: with the load on the server's own processors, and apart, with
  the server on one half of the machine's processors and the load on the other, as if it came from
  elsewhere. The two differ a lot (doc/decisions/0055)."
  (:require
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.child :as child]
   [thrum.lab.load :as load]
   [thrum.lab.processors :as processors]
   [thrum.lab.server-sample :as server-sample]
   [thrum.lab.stats :as stats]
   [thrum.lab.subject :as subject]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private questions
  "What is asked of each engine: what a request costs, with a browser's headers and with Host alone;
  and what it does with connections whose handlers sleep."
  [{:question :cost, :connections 120, :seconds 1, :rounds 7}
   {:question :plain-cost, :connections 120, :seconds 1, :rounds 7}
   {:question :apart, :connections 120, :seconds 1, :rounds 3}
   {:question :plain-apart, :connections 120, :seconds 1, :rounds 3}
   {:question :sleep, :connections 120, :sleep-ms 50, :seconds 1, :rounds 1}
   {:question :many, :connections 4000, :sleep-ms 50, :seconds 2, :rounds 3}])

(def ^:private costs? #{:cost :plain-cost :apart :plain-apart})
(def ^:private plain? #{:plain-cost :plain-apart})
(def ^:private apart? #{:apart :plain-apart})

(defn- askable
  "Returns the questions that this machine can be asked: apart, the server and the load have a half
  of the processors each, :halves."
  []
  (let [halves (when (= :wrk @load/generator) (processors/halves))]
    (for [{:keys [question] :as asked} questions
          :when (or halves (not (apart? question)))]
      (cond-> asked (apart? question) (assoc :halves halves)))))

(def ^:private reusing "The engines with :reuse-threads?." #{:tomcat :helidon :http-kit})

(defn- jobs
  "Returns a job for each engine on the class path: its servers are asked all questions."
  [size]
  (case size
    :full (let [questions (askable)]
            (for [engine [:jdk :jetty :tomcat :helidon :http-kit]
                  :when ((subject/engines) engine)]
              (cond-> {:engine engine, :warm-up-seconds 6, :questions questions}
                (reusing engine) (assoc :reuse? true))))
    :quick [{:engine :jdk
             :warm-up-seconds 1
             :questions
             [{:question :many, :connections 20, :sleep-ms 50, :seconds 1, :rounds 1}]}]))

(defn- peer-jobs
  "Returns a job for each peer that the command line names. Its servers are asked what the first job
  asks."
  [size {:keys [peers]}]
  (for [peer peers]
    (-> (first (jobs size))
        (dissoc :engine)
        (assoc :peer peer))))

;; In the child

(defn- subjects
  "Returns the servers to start, as pairs of way and job."
  [{:keys [engine peer reuse?]}]
  (if peer
    [[:peer {:peer peer, :way :peer}]]
    (cond-> [[:bare {:engine engine, :way :bare}]
             [:thrum {:engine engine, :way :thrum}]]
      reuse?
      (conj [:reuse {:engine engine, :way :thrum, :engine-options {:reuse-threads? true}}]))))

(defn- started
  "Returns the servers by way; stops those that have started when one does not."
  [job]
  (reduce (fn [servers [way subject]]
            (try
              (assoc servers way (subject/start! subject))
              (catch Throwable t
                (run! child/stop! (vals servers))
                (throw t))))
          {} (subjects job)))

(defn- order
  "Returns the ways in the order of a round, which is another in the next."
  [servers round]
  (if (even? round) (keys servers) (reverse (keys servers))))

(defn- turns [servers {:keys [rounds question] :as job}]
  (reduce (fn [taken way]
            (let [figures (if (costs? question) server-sample/costs server-sample/figures)]
              (update taken way conj (figures (servers way) job))))
          (update-vals servers (constantly []))
          (mapcat #(order servers %) (range rounds))))

(defn- apart-turns
  "As turns, with the servers on one half of the processors and the load on the other."
  [servers {[ours theirs] :halves, :as job}]
  (let [move! (fn [processors] (run! #(processors/move! % processors) (vals servers)))]
    (move! ours)
    (try
      (turns servers (assoc job :processors theirs))
      (finally (move! (concat ours theirs))))))

(defn- heaps
  "Returns the bytes of heap for each connection whose handler sleeps, by way; for few connections
  the figure is noise. Not of a peer: it may have too few threads for so many sleepers."
  [servers {:keys [question connections]}]
  (when (and (= :many question) (:thrum servers))
    (update-vals servers #(subject/heap-per-sleeper % connections))))

(defn- with-headers
  "Returns the question as the load takes it."
  [{:keys [question] :as asked}]
  (cond-> asked
    (not (plain? question)) (assoc :headers load/browser-headers)))

(defn- answer
  "Returns {:taken {way [figures, see thrum.lab.server-sample ...]}, :heap {way bytes}}, :heap nil
  where that is not asked."
  [servers {:keys [question halves] :as asked}]
  (let [servers (cond-> servers (or halves (not (costs? question))) (dissoc :reuse))
        asked (with-headers asked)
        heap (heaps servers asked)]
    {:taken ((if halves apart-turns turns) servers asked), :heap heap}))

(defn measure
  "Returns the answers, question -> answer. The servers have compiled their code before the first."
  [{:keys [warm-up-seconds questions] :as job}]
  (let [servers (started job)
        warm-up (assoc (with-headers (first questions)) :warm-up-seconds warm-up-seconds)]
    (try
      (run! #(server-sample/warm-up! % warm-up) (vals servers))
      (into {} (map (juxt :question #(answer servers %))) questions)
      (finally (run! child/stop! (vals servers))))))

;; In the parent

(defn- each
  "Returns a figure of each run: the median of its rounds."
  [runs way figure]
  (map #(stats/median (map figure (get-in % [:taken way]))) runs))

(defn- compared
  "Returns a row that compares the figures of a way, run by run, with those of the bare engine."
  [row runs way figure]
  (let [bare (each runs :bare figure), ours (each runs way figure)]
    (assoc row
           :bare (stats/spread bare), :thrum (stats/spread ours)
           :ratio (stats/spread (map / ours bare)))))

(defn- errors-of
  [runs way]
  (stats/spread (map (fn [run] (reduce + (mapcat (comp vals :errors) (get-in run [:taken way]))))
                  runs)))

(defn- of-limit [{:keys [connections sleep-ms]} runs]
  (stats/spread (map #(/ % (/ (* 1000.0 connections) sleep-ms)) (each runs :thrum :per-second))))

(defn- requests [runs way]
  (compared {:figure :requests} runs way :per-second))

(def ^:private most-cpu
  "What a request may cost, by engine, x bare."
  {:tomcat 1.25})

(defn- best [figures] (apply min (map :cpu-us figures)))

(defn- cpu
  "Returns the row of what a request costs, of the medians, with the ratio of the :best rounds."
  [{:keys [engine]} runs way]
  (let [most (most-cpu engine 1.12)]
    (assoc (compared {:figure :cpu} runs way :cpu-us)
           :best (stats/spread (for [{:keys [taken]} runs]
                                 (/ (best (way taken)) (best (:bare taken)))))
           :most most
           :goal (str "<= " (text/decimals 2 most) " x bare"))))

(defn- of-cost
  "Returns the rows of a question about costs. p99 says how evenly connections are served that ask
  again at once."
  [job runs way]
  (for [row [(requests runs way)
             (cpu job runs way)
             (compared {:figure :p99} runs way :p99-ms)]]
    (cond-> row (= :reuse way) (assoc :reuse? true))))

(defn- of-heap [runs]
  (let [bare (map (comp :bare :heap) runs), ours (map (comp :thrum :heap) runs)]
    {:figure :heap
     :bare (stats/spread bare), :thrum (stats/spread ours)
     :ratio (stats/spread (map / ours bare))
     :goal "<= 1.20 x bare"}))

(defn- of-question
  "Returns the rows of one question, asked of an engine."
  [{:keys [question], :as job} runs]
  (case question
    :sleep [(assoc (requests runs :thrum) :goal ">= 0.97 x limit" :of-limit (of-limit job runs))]
    :many
    [(assoc (requests runs :thrum) :of-limit (of-limit job runs))
     {:figure :errors, :bare (errors-of runs :bare), :thrum (errors-of runs :thrum), :goal "none"}
     (assoc (compared {:figure :p99} runs :thrum :p99-ms) :goal "<= 1.05 x bare")
     (of-heap runs)]
    (mapcat #(of-cost job runs %) (filter (:taken (first runs)) [:thrum :reuse]))))

(defn- of-peer
  "Returns the rows of one question, asked of a peer: its figures stand with those of bare engines."
  [{:keys [question]} runs]
  (let [spread #(stats/spread (each runs :peer %))
        requests {:figure :requests, :bare (spread :per-second)}]
    (case question
      :sleep [requests]
      :many [requests
             {:figure :errors, :bare (errors-of runs :peer)}
             {:figure :p99, :bare (spread :p99-ms)}]
      [requests {:figure :cpu, :bare (spread :cpu-us)} {:figure :p99, :bare (spread :p99-ms)}])))

(defn rows
  "Returns a row for each figure of each question of each job."
  [results]
  (for [{{:keys [engine peer questions]} :job, runs :runs} results
        {:keys [question] :as asked} questions
        :let [asked (merge asked (if peer {:peer peer} {:engine engine}))]
        row ((if peer of-peer of-question) asked (map question runs))]
    (merge (select-keys asked [:engine :peer :question :connections :sleep-ms]) row)))

(def ^:private most-p99 "The p99 at 4 000 connections, x bare." 1.05)
(def ^:private least-tomcat "The requests/s of :tomcat at 4 000 connections." 30000)

(defn- judged
  "Returns the figures that a row is judged by."
  [{:keys [engine question figure ratio best thrum most reuse?]}]
  (let [what (str (name engine) (when reuse? ", reused threads,") " " (name question))]
    (case [(if (costs? question) :cost question) figure]
      [:cost :cpu]
      [{:figure (str what ": CPU x bare, medians")
        :value (:median ratio)
        :at-most most
        :cpu? true}
       {:figure (str what ": CPU x bare, best rounds"), :value (:median best), :at-most most}
       {:figure (str what ": CPU, us a request"), :value (:median thrum), :cpu? true}]

      [:many :p99]
      [{:figure (str what ": p99 x bare"), :value (:median ratio), :at-most most-p99}]

      [:many :requests]
      [(cond-> {:figure (str what ": requests/s"), :value (:median thrum)}
         (= :tomcat engine) (assoc :at-least least-tomcat))]

      nil)))

(defn- beside-peers
  "Returns the figures of the best engine beside the best peer; none without peers."
  [rows]
  (for [[[question figure] words best goal]
        [[[:cost :cpu] "CPU" min {:at-most 1.1}] [[:plain-cost :cpu] "CPU" min {:at-most 1.1}]
         [[:many :requests] "requests/s" max {:at-least 1.0}]
         [[:many :p99] "p99" min {:at-most 1.0}]]
        :let [asked (filter #(= [question figure] ((juxt :question :figure) %)) rows)
              {peers true, ours false} (group-by (comp some? :peer) asked)]
        :when (and (seq peers) (seq ours))]
    (merge {:figure (str (name question) ": " words ", the best x the best peer's")
            :value (/ (apply best (map (comp :median :thrum) ours))
                      (apply best (map (comp :median :bare) peers)))}
           goal)))

(defn figures
  "Returns the figures that the rows are judged by."
  [rows]
  (concat (mapcat judged (filter :engine rows)) (beside-peers rows)))

(def ^:private shown-as
  {:requests {:name "requests/s", :places 0}
   :cpu {:name "CPU, us a request", :places 2}
   :errors {:name "errors and time-outs", :places 0}
   :p99 {:name "p99, ms", :places 1}
   :heap {:name "heap, B per sleeping connection", :places 0}})

(defn- conditions [{:keys [question connections sleep-ms reuse?]}]
  (str (if sleep-ms (str sleep-ms " ms") "no sleep")
       ", " (text/whole connections) " connections"
       (when (plain? question) ", no headers")
       (when (apart? question) ", apart")
       (when reuse? ", :reuse-threads?")))

(defn- subject-name [{:keys [engine peer]}]
  (if peer (str peer) (name engine)))

(defn- shown [way]
  (fn [{:keys [figure] :as row}] (text/spread (get-in shown-as [figure :places]) (way row))))

(def experiment
  (benchmark/experiment
    {:name :bench/servers
     :doc "thrum.server on each engine, beside the engine alone"
     :title "Servers"
     :about (str "thrum.server against the same engine alone with a handler in its own API, both "
                 "on virtual threads, a JVM each (-Xmx1g), a browser's twelve headers or Host "
                 "alone; load from wrk where it is installed, in turns, on the same processors; "
                 "apart: the server on one half of them, the load on the other. With "
                 ":reuse-threads? a connection's requests have one thread, as on the bare engine. "
                 "The limit is connections / sleep. Other servers: --peers. Measured once, on two "
                 "processors, CPU time of a request with Host alone, :helidon = 1: :helidon with "
                 ":reuse-threads? 0.82, enso 0.86, hirundo 0.94, Go's net/http 1.25, http-kit "
                 "1.29, ring-jetty-adapter 2.88.")
     :jvm-opts ["-Xmx512m"]
     :jobs jobs
     :asked peer-jobs
     :measure `measure
     :rows rows
     :figures figures
     :jvms 1
     :columns [{:heading "engine", :left? true, :show subject-name}
               {:heading "handler", :left? true, :show conditions}
               {:heading "figure", :left? true, :show #(get-in shown-as [(:figure %) :name])}
               {:heading "bare", :show (shown :bare)}
               {:heading "thrum.server", :show (shown :thrum)}
               {:heading "x bare", :show #(text/spread 2 (:ratio %))}
               {:heading "best rounds", :show #(text/spread 2 (:best %))}
               {:heading "x limit", :show #(text/spread 2 (:of-limit %))}
               {:heading "goal", :left? true, :show :goal}]}))

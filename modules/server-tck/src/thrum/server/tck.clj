(ns thrum.server.tck
  "The contract of a Ring server as cases over raw sockets: (run run-server options).

  Authors of other servers add io.github.thrum-clj/thrum-server-tck, which needs Clojure alone, to
  their tests. They give a function from a handler and a map of options to a running server, and
  functions that stop it and return its port:

    (tck/run my/run-server {:stop my/stop!, :port my/port, :capabilities #{:http-1.0}})

  thrum.server.tck.assertions/check makes an outcome an assertion of clojure.test.

  An outcome is {:id :sentence :section :outcome :detail :ms}. Its :outcome is one of

  :passed
  :failed  - :detail says what was expected and what was found
  :refused - the server lacks a capability that the case needs, and throws when asked for it
  :skipped - the case uses a function that the caller did not give
  :gap     - the case failed, as :gaps says"
  (:require
   [clojure.string :as str]
   [thrum.server.tck.admission]
   [thrum.server.tck.async]
   [thrum.server.tck.chunks]
   [thrum.server.tck.connections]
   [thrum.server.tck.deadline]
   [thrum.server.tck.disconnect]
   [thrum.server.tck.drain]
   [thrum.server.tck.early]
   [thrum.server.tck.events]
   [thrum.server.tck.expect-continue]
   [thrum.server.tck.failure]
   [thrum.server.tck.fields]
   [thrum.server.tck.h2]
   [thrum.server.tck.h2-frames]
   [thrum.server.tck.hosts]
   [thrum.server.tck.http-1-0]
   [thrum.server.tck.lengths]
   [thrum.server.tck.no-body]
   [thrum.server.tck.observer]
   [thrum.server.tck.pace]
   [thrum.server.tck.pipelining]
   [thrum.server.tck.proxies]
   [thrum.server.tck.request]
   [thrum.server.tck.request-line]
   [thrum.server.tck.response]
   [thrum.server.tck.response-head]
   [thrum.server.tck.reuse]
   [thrum.server.tck.ring]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.silence]
   [thrum.server.tck.sizes]
   [thrum.server.tck.start]
   [thrum.server.tck.threads]
   [thrum.server.tck.tls :as tls]
   [thrum.server.tck.trailers]
   [thrum.server.tck.ws-handshake]
   [thrum.server.tck.ws-life]
   [thrum.server.tck.ws-messages])
  (:import
   (java.util.concurrent Callable ExecutorService Executors)))

(set! *warn-on-reflection* true)

(def ^:private chapters
  "The namespaces of the cases, in the order of their report."
  (map #(symbol (str "thrum.server.tck." %))
       '[request proxies response no-body reuse response-head failure lengths request-line hosts
         fields chunks trailers pipelining early expect-continue http-1-0 admission sizes silence
         pace connections deadline async events drain observer threads start ring ws-handshake
         ws-messages ws-life disconnect tls h2 h2-frames]))

(def ^:private all-cases
  (into [] (mapcat scene/cases-in) chapters))

(defn cases
  "Returns the cases as data: maps of :id, :section (of doc/reference/promises.md), :sentence,
  :needs (capabilities), :refuses (the options that must throw at start where a capability is
  absent), :uses (functions of the caller), :run."
  []
  all-cases)

;; What the caller gives

(defn- thrums
  "Returns the function of Thrum of that name, or nil."
  [sym]
  (try (some-> (requiring-resolve sym) deref)
       (catch java.io.FileNotFoundException _ nil)))

(def ^:private names-in-thrum
  "By the caller's names."
  '{:stop thrum.server/stop!, :port thrum.server/port, :ssl-port thrum.server/ssl-port
    :status thrum.server/status, :ready? thrum.server/ready?, :sse thrum.server/sse
    :send! thrum.server/send!, :access-log thrum.server/access-log, :close! thrum.server/close!
    :pong! thrum.server/pong!, :open? thrum.server/open?, :remaining-ms thrum.core/remaining-ms
    :pmap thrum.core/pmap})

(def ^:private thrum-tools (delay (update-vals names-in-thrum thrums)))

(defn- tools-of
  "Returns the caller's functions; Thrum's own where the caller gives neither :stop nor :port."
  [{:keys [stop port] :as given}]
  (merge (when-not (or stop port) @thrum-tools) (select-keys given (keys names-in-thrum))))

(def ^:private usual-options
  {:host "127.0.0.1", :port 0, :stop-on-shutdown? false, :shutdown-timeout-ms 1000})

(defn- env-of [run-server {:keys [options limit-ms] :or {limit-ms 15000}} tools]
  {:run-server run-server
   :limit-ms limit-ms
   :options (merge usual-options options)
   :tools tools
   :endings (atom [])})

(defn- capabilities-of
  [{:keys [capabilities options]}]
  (or capabilities
      (when-let [ask (thrums 'thrum.server/capabilities)] (ask (:engine options :jdk)))
      #{}))

;; One case

(defn- passed [] {:outcome :passed})

(defn- failed
  [^Throwable t]
  (let [{:keys [expected found], ::scene/keys [failed skipped]} (ex-data t)]
    (cond skipped {:outcome :skipped, :detail (ex-message t)}
          failed {:outcome :failed, :detail {:expected expected, :found found}}
          :else {:outcome :failed
                 :detail {:expected "no exception"
                          :found (str t)
                          :at (mapv str (take 6 (.getStackTrace t)))}})))

(defn- overrun [^Thread thread limit-ms]
  (let [at (mapv str (take 12 (.getStackTrace thread)))]
    (.interrupt thread)
    {:outcome :failed, :detail {:expected (str "an end within " limit-ms " ms"), :found at}}))

(defn- on-thread
  "Returns (f) or how it failed, at the latest after the limit."
  [limit-ms f]
  (let [done (promise)
        thread (scene/thread #(deliver done (try (f) (catch Throwable t (failed t)))))]
    (deref done limit-ms nil)
    (if (realized? done) @done (overrun thread limit-ms))))

(defn- in-scene
  "Calls (f env) with a fresh scene, which has ended when it returns. A server that does not stop is
  left behind."
  [{:keys [limit-ms] :as env} f]
  (let [env (assoc env :endings (atom []))]
    (try (on-thread limit-ms #(do (f env) (passed)))
         (finally (on-thread limit-ms #(scene/end! env))))))

(defn- expect-refusal
  "Starts a server with what it cannot do, which must throw."
  [{:keys [refuses]} env]
  (when-not refuses (scene/skip "declared absent; nothing asks for it at start"))
  (when-not (try (scene/serve env scene/ok refuses) nil (catch Exception e e))
    (scene/fail (str "that asking for " (keys refuses) " throws") :started)))

(defn- refused [{:keys [outcome] :as result}]
  (cond-> result (= :passed outcome) (assoc :outcome :refused)))

(defn- outcome-of [{:keys [needs uses run] :as case} env capabilities]
  (let [missing (remove (:tools env) uses)]
    (cond
      (not-every? capabilities needs) (refused (in-scene env #(expect-refusal case %)))
      (seq missing) {:outcome :skipped, :detail (str "no " (str/join ", " missing) " was given")}
      :else (in-scene env run))))

(defn- timed
  [case f]
  (let [start (System/nanoTime)
        result (f)]
    (merge (select-keys case [:id :section :sentence])
           {:detail nil}
           result
           {:ms (quot (- (System/nanoTime) start) 1000000)})))

;; All cases

(defn- chosen [only]
  (if only (filter (comp (set only) :id) all-cases) all-cases))

(defn- run-four
  "Calls (f case) for the cases, four at a time; returns the results in the order of the cases."
  [f cases]
  (let [^ExecutorService pool (Executors/newFixedThreadPool 4)]
    (try (mapv deref (doall (for [case cases] (.submit pool ^Callable #(f case)))))
         (finally (.shutdown pool)))))

(defn- judged
  "Returns the outcome of a case that may be a known gap."
  [{:keys [gaps may-pass]} {:keys [id outcome] :as result}]
  (if-some [why (get gaps id)]
    (cond
      (= :failed outcome) (assoc result :outcome :gap, :detail why)
      (not= :passed outcome) result
      (contains? (set may-pass) id) result
      :else (assoc result :outcome :failed, :detail "This gap is closed: take it from :gaps"))
    result))

(defn run
  "Runs the cases against (run-server handler options), and returns their outcomes.

  :capabilities - the set of what the server has; without it Thrum's own engine is asked
  :options      - given to every server, beside those of the case
  :only         - the ids of the cases to run
  :report       - a function of each outcome, called when it is there
  :limit-ms     - how long a case may take (15000)
  :gaps         - the cases that the server is known to fail, id -> why: their outcome
                  is :gap, or :failed when they pass
  :may-pass     - the ids of those gaps that only some JDKs have: their outcome is :gap or :passed
  :stop :port   - functions of what run-server returns; without them thrum.server's are
                  taken, for the following too: :ssl-port :status :ready? (of the server) :sse
                  :send! :close! :pong! :open? :access-log :remaining-ms :pmap; cases that use one
                  that is not given are skipped"
  [run-server {:keys [only report] :as given}]
  (let [env (env-of run-server given (tools-of given))
        capabilities (set (capabilities-of given))
        _ (when (:tls capabilities) (tls/make-keys!))
        run-one (fn [case]
                  (let [outcome (judged given (timed case #(outcome-of case env capabilities)))]
                    (when report (report outcome))
                    outcome))
        {alone true, others false} (group-by (comp boolean :alone?) (chosen only))]
    (into (run-four run-one others) (mapv run-one alone))))

;; The table

(def ^:private marks
  {:passed "yes", :failed "**no**", :gap "**no**", :refused "refused", :skipped "–"})

(defn- row [cells]
  (str "| " (str/join " | " cells) " |"))

(defn- escaped [sentence]
  (-> sentence (str/replace "|" "\\|") (str/replace #"\s+" " ")))

(defn table
  "Returns a markdown table of the cases and how each engine fares: engine -> outcomes, in the order
  of engines."
  [engines outcomes-of]
  (let [by-id (update-vals outcomes-of (fn [outcomes] (into {} (map (juxt :id :outcome)) outcomes)))
        mark (fn [engine id] (marks (get-in by-id [engine id]) ""))]
    (str/join "\n"
              (concat [(row (concat ["§" "what holds"] (map name engines)))
                       (row (repeat (+ 2 (count engines)) "---"))]
                      (for [{:keys [id section sentence]} all-cases
                            :when (some #(get-in by-id [% id]) engines)]
                        (row (concat [section (escaped sentence)] (map #(mark % id) engines))))
                      [""]))))

(ns thrum.cluster.main
  "The command line of a cluster: a member of its own process, and the status of the members."
  (:require
   [clojure.edn :as edn]
   [clojure.string :as str]
   [thrum.cluster :as cluster])
  (:import
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(def ^:private usage
  "Usage:
  member --allow NS[,NS ...]   start a member that runs the functions of these namespaces; SIGTERM
                               drains it
  status                       print the members, what they run and have run; where none answers,
                               exit with 1

Options: --cluster NAME  --name NAME  --host ADDRESS  --port N  --seeds HOST:PORT[,HOST:PORT ...]
  --dns NAME  --lease-ms N  --heartbeat-ms N  --drain-timeout-ms N
  --engine NS/NAME  what starts the engine (default Infinispan's)
  --options FILE   an EDN map of options of thrum.cluster/join!, for :tls and the :secret too
  THRUM_CLUSTER_SECRET in the environment is the :secret")

;; Arguments

(defn- refuse [message]
  (throw (ex-info message {:type ::arguments})))

(defn- listed [text] (mapv str/trim (str/split text #",")))

(defn- number [text]
  (or (parse-long text) (refuse (str "A number is expected, not " text))))

(defn- function [text]
  (let [f (try
            (some-> (requiring-resolve (symbol text)) deref)
            (catch Exception e
              (throw (ex-info (str "No function " text ": " (ex-message e))
                              {:type ::arguments}
                              e))))]
    (if (fn? f) f (refuse (str "No function " text)))))

(def ^:private readers
  {"--allow" [:allow #(into #{} (map symbol) (listed %))]
   "--seeds" [:seeds listed]
   "--cluster" [:cluster str]
   "--name" [:name str]
   "--host" [:host str]
   "--dns" [:dns str]
   "--engine" [:engine function]
   "--port" [:port number]
   "--lease-ms" [:lease-ms number]
   "--heartbeat-ms" [:heartbeat-ms number]
   "--drain-timeout-ms" [:drain-timeout-ms number]})

(defn- read-options [file]
  (let [options (try
                  (edn/read-string (slurp file))
                  (catch Exception e
                    (refuse (str "The file " file " holds no options: " (ex-message e)))))]
    (if (map? options)
      options
      (refuse (str "The file " file " holds no options: they are a map")))))

(defn parse
  "Returns [command options] for the arguments. Throws an ex-info of type ::arguments."
  [[command & arguments]]
  (when-not (#{"member" "status"} command)
    (refuse (if command (str "No command " (pr-str command)) "A command is missing")))
  (loop [options {}, [flag value & more :as arguments] arguments]
    (cond
      (empty? arguments) [command options]
      (nil? value) (refuse (str flag " needs a value"))
      (= "--options" flag) (recur (merge options (read-options value)) more)
      (readers flag) (let [[k parse] (readers flag)] (recur (assoc options k (parse value)) more))
      :else (refuse (str "Unknown option " flag)))))

;; Commands

;; The engines' logging goes to the JDK's, which prints every step of a join, and the stack of one
;; that fails. What fails is thrown too.
(def ^:private loggers
  "Each logger with its level after the join."
  (update-keys {"org.infinispan" Level/WARNING
                "org.jgroups" Level/WARNING
                "com.hazelcast" Level/WARNING
                ;; It warns of each close!.
                "com.hazelcast.instance.impl.Node" Level/SEVERE}
               #(Logger/getLogger %)))

(defn- join! [options]
  (run! #(.setLevel ^Logger % Level/OFF) (keys loggers))
  (let [node (try
               (cluster/join! options)
               (catch clojure.lang.ExceptionInfo e (throw e))
               (catch Exception e
                 (throw (ex-info (str "The engine could not be started: " e) {} e))))]
    (doseq [[logger level] loggers] (.setLevel ^Logger logger level))
    node))

(defn- member! [options]
  (when-not (seq (:allow options)) (refuse "A member needs --allow: the namespaces that it runs"))
  (let [node (join! options)
        line (fn [text] (println text) (flush))]
    (.addShutdownHook (Runtime/getRuntime)
                      (Thread. (fn []
                                 (line "draining")
                                 (cluster/close! node)
                                 (line "left"))))
    (line (str "joined " node))
    @(promise)))

(defn table
  "Returns the lines of a status."
  [{:keys [members]}]
  (cons (format "%-40s %8s %9s  %s" "member" "running" "finished" "state")
        (for [{:keys [member running finished draining?]} members]
          (format "%-40s %8s %9s  %s"
                  member
                  (or running "-")
                  (or finished "-")
                  (cond (nil? running) "no answer" draining? "draining" :else "up")))))

(defn check-answers
  "Throws where no member has answered."
  [{:keys [members]}]
  (when-not (some :running members)
    (throw (ex-info "No member has answered" {:type ::no-member}))))

(defn- status! [options]
  (with-open [^java.lang.AutoCloseable node (join! (dissoc options :allow))]
    (let [status (cluster/status node)]
      (run! println (table status))
      (check-answers status))))

(defn- secret []
  (when-some [secret (System/getenv "THRUM_CLUSTER_SECRET")] {:secret secret}))

(defn- run-command [arguments]
  (let [[command options] (parse arguments)
        options (merge (secret) options)]
    (case command
      "member" (member! options)
      "status" (status! options))))

(defn run
  "Runs the command. Returns the code to exit with: 1, after a sentence, where it cannot run."
  [arguments]
  (try
    (run-command arguments)
    0
    (catch clojure.lang.ExceptionInfo e
      (binding [*out* *err*]
        (println (ex-message e))
        (when (= ::arguments (:type (ex-data e))) (println usage)))
      1)))

(defn -main
  "Runs the command; exits with 1 and a sentence where it cannot."
  [& arguments]
  (System/exit (run arguments)))

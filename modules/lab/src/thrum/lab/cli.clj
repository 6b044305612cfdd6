(ns thrum.lab.cli
  "The command line as data: commands, options, and what is wrong with an argv, in one sentence with the nearest known word."
  (:require
   [clojure.string :as str]
   [clojure.tools.cli :as tools.cli]
   [thrum.lab.contender :as contender]
   [thrum.lab.nearest :as nearest]
   [thrum.lab.result :as result]))

(set! *warn-on-reflection* true)

(def commands
  "Every command: its name, how it is called, and what it does."
  [{:name "run", :usage "[options]", :doc "every experiment, in its quick form (the default)"}
   {:name "fan-out", :usage "fan-out [options]", :doc "this experiment; with --urls or --call, your own work"}
   {:name "scope", :usage "scope [options]", :doc "this experiment: four calls under a deadline, one of which goes wrong"}
   {:name "ring-jdk", :usage "ring-jdk [options]", :doc "this experiment: a Ring handler under load, on the JDK's own server"}
   {:name "ring-jetty", :usage "ring-jetty [options]", :doc "the same on Jetty"}
   {:name "ring-tomcat", :usage "ring-tomcat [options]", :doc "the same on Tomcat"}
   {:name "ring-helidon", :usage "ring-helidon [options]", :doc "the same on Helidon, which has no pools of platform threads"}
   {:name "ring-http-kit", :usage "ring-http-kit [options]", :doc "the same on http-kit, which must be on the class path"}
   {:name "spring-tomcat", :usage "spring-tomcat [options]", :doc "this experiment: a Spring Boot application, many requests at once; Maven builds it"}
   {:name "go-blocks", :usage "go-blocks [options]", :doc "this experiment: 100 blocking requests at once from core.async's go blocks, and in other ways"}
   {:name "pipelines", :usage "pipelines [options]", :doc "this experiment: 10 000 items through each kind of pipeline, and what is left of an abandoned one"}
   {:name "handler", :usage "handler NS/F [options]", :doc "your own Ring handler under load"}
   {:name "compare", :usage "compare A.edn B.edn", :doc "two results of one machine, side by side"}
   {:name "help", :usage "help", :doc "this text"}])

(defn- parse-rate [s]
  (if (= "unlimited" s) :unlimited (or (parse-long s) :bad)))

(defn- parse-contenders [s]
  (mapv keyword (str/split s #",")))

(def ^:private positive [#(and (int? %) (pos? %)) "must be a whole number, 1 or more"])

(def ^:private engines [:jdk :jetty :tomcat :helidon :http-kit])

(def options
  "Every option, as rows of tools.cli; the row that checks an option also documents it."
  [[nil "--only NAME" "one experiment, or one part of it: downloads, many, files, unlimited; hangs, fails, deaf; jdk-sleep, jdk-no-sleep, jdk-many and so on; spring-100, spring-ab, spring-curve, spring-1000; go-blocks; pipelines" :parse-fn keyword]
   [nil "--full" "the published sizes, and servers in the judged form; takes some 115 minutes"]
   [nil "--limit N" "how many downloads or calls at once" :default 512, :parse-fn parse-long, :validate positive]
   [nil "--rate R" "bytes per second of each download, or unlimited; as published, 500000" :parse-fn parse-rate
    :validate [#(or (= :unlimited %) (and (int? %) (pos? %))) "must be a whole number of bytes per second, or unlimited"]]
   [nil "--out DIR" "where the results go" :default "lab-results"]
   [nil "--json" "print the result as JSON; progress goes to standard error"]
   [nil "--print-plan" "print the plan as EDN and run nothing"]
   [nil "--urls FILE" "download the URLs of FILE, one in a line"]
   [nil "--per-host N" "how many downloads at once from one host (with --urls)" :default 8, :parse-fn parse-long, :validate positive]
   [nil "--timeout SECONDS" "how long one download may take (with --urls)" :default 60, :parse-fn parse-long, :validate positive]
   [nil "--call NS/F" "call your function on each input (with --inputs)" :parse-fn symbol
    :validate [qualified-symbol? "must be a name with its namespace, such as my.ns/f"]]
   [nil "--inputs FILE" "the inputs of --call: one vector or list, as EDN"]
   [nil "--contenders A,B" "the contenders to run your own work with" :parse-fn parse-contenders]
   [nil "--outcomes" "print what became of each URL or input"]
   [nil "--engine NAME" "the engine of the command handler: jdk, jetty, tomcat, helidon or http-kit" :default :jdk, :parse-fn keyword
    :validate [(set engines) "must be jdk, jetty, tomcat, helidon or http-kit"]]
   [nil "--connections N" "how many connections ask your handler at once" :default 120, :parse-fn parse-long, :validate positive]
   [nil "--path PATH" "what your handler is asked for" :default "/", :validate [#(str/starts-with? % "/") "must begin with /"]]
   ["-h" "--help" "this text"]])

(def ^:private needs
  "Options that mean nothing without another one."
  [[:per-host :urls] [:timeout :urls] [:inputs :call] [:call :inputs]])

(defn- flag [option] (str "--" (name option)))

(defn- option-names []
  (map #(re-find #"--[a-z-]+" (second %)) options))

(defn- unknown-option [error]
  (when-let [[_ word] (re-find #"Unknown option: \"(.*)\"" error)]
    (str "There is no option " word (nearest/hint word (option-names)) ".")))

(defn- sentence [error]
  (or (unknown-option error)
      (str (str/replace error #"^Failed to validate \"([^\"]*)\": " "$1: ") ".")))

(defn- unknown-contender [{:keys [contenders]}]
  (when-let [unknown (first (remove (set (contender/ids)) contenders))]
    (str "There is no contender " (name unknown) (nearest/hint (name unknown) (map name (contender/ids))) ".")))

(defn- lonely [given]
  (some (fn [[option other]]
          (when (and (given option) (not (given other)))
            (str (flag option) " needs " (flag other) ".")))
        needs))

(def ^:private of-handler "Options that mean something with the command handler alone." [:engine :connections :path])

(defn- without-handler [given {:keys [options]}]
  (when-not (:handler options)
    (when-let [option (first (filter given of-handler))]
      (str (flag option) " belongs to the command handler."))))

(defn- with-handler [given {:keys [options]}]
  (when (:handler options)
    (when-let [option (first (filter given [:urls :call :only :limit :rate]))]
      (str (flag option) " does not go with the command handler."))))

(defn- own? [given] (or (:urls given) (:call given)))

(defn- conflict [given]
  (cond
    (and (:urls given) (:call given)) "Give --urls or --call, not both."
    (and (own? given) (:only given)) "--only chooses an experiment; it does not go with --urls or --call."
    (and (own? given) (:rate given)) "--rate is for the lab's own server; it does not go with --urls or --call."
    (and (own? given) (:full given)) "--full is for the lab's own server; it does not go with --urls or --call."
    (and (:contenders given) (not (own? given))) "--contenders needs --urls or --call."
    (and (:outcomes given) (not (own? given))) "--outcomes needs --urls or --call."))

(defn- given-options
  "Returns the options that argv names, without the defaults."
  [argv]
  (set (keys (:options (tools.cli/parse-opts argv options :no-defaults true)))))

(defn- unknown-command [word]
  (str "There is no command " word (nearest/hint word (map :name commands)) "."))

(def ^:private experiments
  #{"fan-out" "scope" "ring-jdk" "ring-jetty" "ring-tomcat" "ring-helidon" "ring-http-kit" "spring-tomcat" "go-blocks" "pipelines"})

(defn- handler-command [[function & more]]
  (let [function (some-> function symbol)]
    (cond
      (not (qualified-symbol? function)) {:error "handler takes the name of a Ring handler: handler my.app/handler."}
      more {:error (str "There is one word too many: " (first more) ".")}
      :else {:command :run, :options {:handler function}})))

(defn- command [[word & more]]
  (cond
    (nil? word) {:command :run}
    (= "compare" word) (if (= 2 (count more))
                         {:command :compare, :files (vec more)}
                         {:error "compare takes two result files: compare A.edn B.edn."})
    (not-any? #{word} (map :name commands)) {:error (unknown-command word)}
    (= "handler" word) (handler-command more)
    more {:error (str "There is one word too many: " (first more) ".")}
    (experiments word) {:command :run, :named (keyword word)}
    :else {:command (keyword word)}))

(defn- problem [errors options given command]
  (or (some-> (first errors) sentence)
      (unknown-contender options)
      (lonely given)
      (conflict given)
      (:error command)
      (without-handler given command)
      (with-handler given command)))

(defn- misplaced-own-work [options {:keys [named]}]
  (when (and (own? options) named (not= :fan-out named))
    "--urls and --call belong to fan-out."))

(defn parse
  "Returns argv as {:command :run|:compare|:help, :options {…}}, with :named for an experiment given as the command,
  :handler among the options for the command of that name, and :files for compare; or {:error sentence}."
  [argv]
  (let [{:keys [options arguments errors]} (tools.cli/parse-opts argv options)
        command (command arguments)
        problem (or (problem errors options (given-options argv) command) (misplaced-own-work options command))]
    (cond
      (:help options) {:command :help}
      problem {:error problem}
      :else (-> (if (own? options) (dissoc command :named) command)
                (assoc :options (merge options (:options command)))))))

(defn- table [rows]
  (let [width (apply max (map (comp count first) rows))]
    (str/join "\n" (map (fn [[left right]] (format (str "  %-" width "s  %s") left right)) rows))))

(defn help
  "Returns the text of --help."
  []
  (str "./cljw -M:lab measures, on this machine, what virtual threads buy.\n\n"
       "Commands\n" (table (map (juxt :usage :doc) commands))
       "\n\nOptions\n" (:summary (tools.cli/parse-opts [] options))
       "\n\nContenders\n" (table (map (juxt (comp name :id) :about) contender/ways))
       "\n\nExit codes\n" (table (map (fn [[code meaning]] [(str code) meaning]) result/exit-codes))))

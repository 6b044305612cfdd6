(ns thrum.lab.cli
  "The command line as data: commands, options, and what is wrong with an argv, in one sentence with
  the nearest known word."
  (:require
   [clojure.string :as str]
   [clojure.tools.cli :as tools.cli]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.experiments.own.work :as work]
   [thrum.lab.result :as result]
   [thrum.lab.text :as text]
   [thrum.spi.options :as spi.options]))

(set! *warn-on-reflection* true)

;; What there is

(def ^:private owners (experiments/owners experiments/all))

(def ^:private experiment-names (map (comp name :name) experiments/all))

(def commands
  "Every command: its name, how it is called, and what it does."
  [{:name "tour", :usage "tour", :doc "five published systems in 3 minutes; the default"}
   {:usage "EXPERIMENT", :doc (str/join ", " experiment-names)}
   {:name "handler"
    :usage "handler NS/F"
    :doc "your own Ring handler, on pools and on virtual threads"}
   {:name "bench", :usage "bench", :doc "what Thrum itself costs; see help bench"}
   {:name "compare", :usage "compare A.edn B.edn", :doc "two results of one machine, side by side"}
   {:name "help", :usage "help NAME", :doc "the parts of an experiment, the options of handler"}])

(def ^:private words "Every command's name." (into (vec (keep :name commands)) experiment-names))

(def ^:private options-of-all
  "The options of every run, as rows of tools.cli; the row that checks an option also documents it."
  [[nil "--json" "print the result as JSON; progress goes to standard error"]
   [nil "--markdown" "print the tables as Markdown"]
   [nil "--print-plan" "print what would run, as EDN, and run nothing"]
   ["-h" "--help" "this text"]])

(def ^:private options-of-lab
  (into [[nil "--all" "every experiment, in its quick form"]
         [nil "--full" "the published sizes, in the judged form; about 70 minutes"]
         [nil "--only NAME" "one experiment, or one part of it" :parse-fn keyword]
         [nil "--out DIR" "where the results go" :default "lab-results"]]
        options-of-all))

(def options
  "Every option of the lab, those of experiments too."
  (into options-of-lab (mapcat :options) (concat experiments/all experiments/own)))

(defn- benchmark-names []
  (str/join ", " (map (comp name :name) @experiments/benchmarks)))

(defn- parse-peers [s]
  (mapv symbol (str/split s #",")))

(defn- parse-benchmarks [s]
  (mapv #(keyword "bench" %) (str/split s #",")))

(defn- options-of-bench []
  (let [known (benchmark-names)]
    (into [[nil "--quick" "tiny sizes in one JVM each: shows that it works, measures nothing"]
           [nil "--only NAME" (str "one or, with commas, several of: " known)
            :parse-fn parse-benchmarks
            :validate [#(every? experiments/by-name %)
                       (str "is one or, with commas, several of: " known)]]
           [nil "--jvms N" "how many JVMs the medians are of: by the benchmark, or 1 with --quick"
            :parse-fn parse-long, :validate work/positive]
           [nil "--peers NS/F"
            (str "other servers, for servers: one or, with commas, several functions, each from "
                 "a Ring handler to the port of the server that it has started")
            :parse-fn parse-peers
            :validate [#(every? qualified-symbol? %) "is a function's name: my.peers/jetty"]]
           [nil "--against FILE" "the figures of the last release, which the run is compared with"
            :default "bench/results/latest.edn"]
           [nil "--out DIR" "where the results go" :default "target/bench"]]
          options-of-all)))

;; What is wrong with an argv

(defn- there-is-no
  "Returns the sentence that answers an unknown word, with the known one that is spelled most like
  it."
  [kind word known]
  (str "There is no " kind " " word "; the nearest one is " (spi.options/nearest word known) "."))

(defn- flag [option] (str "--" (name option)))

(defn- flags [options] (map #(re-find #"--[a-z-]+" (second %)) options))

(defn- sentence [error options]
  (if-let [[_ word] (re-find #"Unknown option: \"(.*)\"" error)]
    (there-is-no "option" word (flags options))
    (str (str/replace error #"^Failed to validate \"([^\"]*)\": " "$1: ") ".")))

(defn- unknown-contender [{:keys [contenders]}]
  (when-let [unknown (first (remove (set (contender/ids)) contenders))]
    (there-is-no "contender" (name unknown) (map name (contender/ids)))))

(defn- unknown-part
  "Returns what is wrong with --only: it names nothing, or nothing of the experiment that the
  command names."
  [{:keys [only]} {:keys [named]}]
  (let [known (if named (filter #(= named (owners %)) (keys owners)) (keys owners))]
    (when (and only (not-any? #{only} known))
      (there-is-no "experiment" (name only) (map name known)))))

(def ^:private needs
  "Options that mean nothing without another one."
  [[:per-host :urls] [:timeout :urls] [:inputs :call] [:call :inputs]])

(defn- lonely [given]
  (some (fn [[option other]]
          (when (and (given option) (not (given other)))
            (str (flag option) " needs " (flag other) ".")))
        needs))

(defn- own? [given] (or (:urls given) (:call given)))

(defn- misplaced
  "Returns what is wrong between the command and the options: the handler's belong to handler, the
  user's own work to fan-out."
  [given {:keys [named options]}]
  (let [option (fn [wanted] (some->> (first (filter given wanted)) flag))]
    (if (:handler options)
      (some-> (option [:urls :call :only :all :limit :rate])
              (str " does not go with the command handler."))
      (or (some-> (option [:engine :connections :path]) (str " belongs to the command handler."))
          (when (and (own? given) named (not= :fan-out named))
            "--urls and --call belong to fan-out.")))))

(defn- conflict [given]
  (let [lab's (first (filter given [:rate :all :full]))]
    (cond
      (and (:urls given) (:call given)) "Give --urls or --call, not both."
      (and (own? given) (:only given))
      "--only chooses an experiment; it does not go with --urls or --call."
      (and (own? given) lab's)
      (str (flag lab's) " is for the lab's own server; it does not go with --urls or --call.")
      (and (:contenders given) (not (own? given))) "--contenders needs --urls or --call."
      (and (:outcomes given) (not (own? given))) "--outcomes needs --urls or --call.")))

(defn- given-options
  "Returns the options that argv names, without the defaults."
  [argv]
  (set (keys (:options (tools.cli/parse-opts argv options :no-defaults true)))))

;; Commands

(defn- one-too-many [[word]]
  (str "There is one word too many: " word "."))

(defn- handler-command
  [[function & more]]
  (let [function (some-> function symbol)]
    (cond
      (not (qualified-symbol? function))
      {:error "handler takes the name of a Ring handler: handler my.app/handler."}
      more {:error (one-too-many more)}
      :else {:command :run, :options {:handler function}})))

(defn- compare-command [files]
  (if (= 2 (count files))
    {:command :compare, :files (vec files)}
    {:error "compare takes two result files: compare A.edn B.edn."}))

(defn- help-command [[topic]]
  (cond
    (nil? topic) {:command :help}
    (#{"handler" "bench"} topic) {:command :help, :topic (keyword topic)}
    (some #{topic} (keep :name commands)) {:command :help}
    (owners (keyword topic)) {:command :help, :topic (owners (keyword topic))}
    :else (let [known (map name (conj (keys owners) :handler :bench))]
            {:error (there-is-no "experiment" topic known)})))

(defn- command [[word & more]]
  (cond
    (nil? word) {:command :run}
    (= "compare" word) (compare-command more)
    (= "handler" word) (handler-command more)
    (= "help" word) (help-command more)
    (not-any? #{word} words) {:error (there-is-no "command" word words)}
    more {:error (one-too-many more)}
    (= "tour" word) {:command :run}
    :else {:command :run, :named (keyword word)}))

(defn- problem [error given-values given command]
  (or (some-> error (sentence options))
      (unknown-contender given-values)
      (lonely given)
      (conflict given)
      (:error command)
      (misplaced given command)
      (unknown-part given-values command)))

(defn- parse-lab [argv]
  (let [{:keys [arguments errors] values :options} (tools.cli/parse-opts argv options)
        command (command arguments)
        problem (problem (first errors) values (given-options argv) command)]
    (cond
      (:help values) {:command :help
                      :topic (or (:named command) (#{:handler} (keyword (first arguments))))}
      problem {:error problem}
      :else (-> (if (own? values) (dissoc command :named) command)
                (assoc :options (merge values (:options command)))))))

(defn- parse-bench [argv]
  (let [rows (options-of-bench)
        {:keys [options arguments errors]} (tools.cli/parse-opts argv rows)]
    (cond
      errors {:error (sentence (first errors) rows)}
      (seq arguments) {:error (one-too-many arguments)}
      (:help options) {:command :help, :topic :bench}
      :else {:command :run, :options (assoc options :bench true)})))

(defn parse
  "Returns argv as {:command :run|:compare|:help, :options {…}}, with :named for an experiment given
  as the command, :files for compare, :topic for help; or {:error sentence}."
  [[word & more :as argv]]
  (if (= "bench" word) (parse-bench more) (parse-lab argv)))

;; Help

(def ^:private width "How many columns help has." 80)

(defn- table
  "Returns lines: words and what they mean, wrapped beside them."
  [rows]
  (let [left (+ 4 (apply max (map (comp count first) rows)))]
    (for [[word meaning] rows
          [start line] (map vector
                            (cons (str "  " word) (repeat ""))
                            (text/wrap (- width left) meaning))]
      (str (format (str "%-" left "s") start) line))))

(defn- option-table [rows]
  (table (for [[short long doc & {:keys [default]}] rows
               :let [shown (if (keyword? default) (name default) default)]]
           [(str (some-> short (str ", ")) long) (str doc (when shown (str " (" shown ")")))])))

(def ^:private exit-codes
  (str "Exit codes: "
       (str/join ", " (map (fn [[code meaning]] (str code " " meaning)) result/exit-codes))
       "."))

(defn- overview []
  (concat ["./cljw -M:lab [COMMAND] [OPTIONS] measures what virtual threads buy here." ""]
          (table (map (juxt :usage :doc) commands))
          [""]
          (option-table options-of-lab)
          ["" "Your own work: --urls FILE or --call NS/F, see help fan-out."]
          (text/wrap width exit-codes)))

(defn- options-of
  "Returns the rows of an experiment's options, with those of the user's own work that belongs to
  it."
  [topic]
  (into []
        (mapcat :options)
        (filter (comp #{topic} (some-fn :belongs-to :name))
                (concat experiments/all experiments/own))))

(defn- section [title lines]
  (when (seq lines)
    (concat [title] lines [""])))

(defn- page
  "Returns help on one experiment: what it does, its parts, its options."
  [{topic :name, :keys [doc parts]}]
  (let [usage (str (name topic) (when (= :handler topic) " NS/F"))]
    (concat (text/wrap width (str "./cljw -M:lab " usage ": " doc "."))
            [""]
            (section "Parts, by --only NAME"
                     (when parts (table (for [[part question] parts] [(name part) question]))))
            (section "Options" (some-> (not-empty (options-of topic)) option-table))
            (when (= :fan-out topic)
              (section "Contenders" (table (map (juxt (comp name :id) :about) contender/ways)))))))

(defn- bench-page []
  (concat ["./cljw -M:bench, or ./cljw -M:lab bench: what Thrum itself costs." ""]
          (section "Benchmarks, by --only NAME"
                   (table (map (juxt (comp name :name) :doc) @experiments/benchmarks)))
          (section "Options" (option-table (options-of-bench)))))

(defn help
  "Returns the text of --help, or of help on a topic: the name of an experiment, :handler or
  :bench."
  [topic]
  (->> (case topic
         nil (overview)
         :bench (bench-page)
         (page (experiments/by-name topic)))
       (str/join "\n")
       str/trim-newline))

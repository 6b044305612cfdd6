(ns thrum.lab.cli
  "The command line as data: commands, options, and what is wrong with an argv, in one sentence with
  the nearest known word."
  (:require
   [clojure.string :as str]
   [clojure.tools.cli :as tools.cli]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.ring :as ring]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.result :as result]
   [thrum.lab.text :as text]
   [thrum.spi.options :as options]))

(set! *warn-on-reflection* true)

;; What there is

(def ^:private owners (experiments/owners experiments/all))

(def ^:private experiment-names (map (comp name :name experiment/about) experiments/all))

(def ^:private commands
  "Every command: its name, how it is called, and what it does."
  [{:name "tour", :usage "tour", :doc "five published systems in 3 minutes; the default"}
   {:usage "EXPERIMENT", :doc (str/join ", " experiment-names)}
   {:name "handler", :usage "handler NS/F"
    :doc "your own Ring handler, on pools and on virtual threads"}
   {:name "compare", :usage "compare A.edn B.edn", :doc "two results of one machine, side by side"}
   {:name "help", :usage "help NAME", :doc "the parts of an experiment, the options of handler"}])

(def ^:private words "Every command's name." (into (vec (keep :name commands)) experiment-names))

(defn- parse-rate [s]
  (if (= "unlimited" s) :unlimited (or (parse-long s) :bad)))

(defn- parse-contenders [s]
  (mapv keyword (str/split s #",")))

(def ^:private positive [#(and (int? %) (pos? %)) "must be a whole number, 1 or more"])

(def ^:private engine-names (str/replace (text/commas (map name ring/engines)) " and " " or "))

(def ^:private options-of
  "Every option, as rows of tools.cli, by what it belongs to; the row that checks an option also
  documents it."
  {:lab
   [[nil "--all" "every experiment, in its quick form"]
    [nil "--full" "the published sizes, in the judged form; about an hour"]
    [nil "--only NAME" "one experiment, or one part of it" :parse-fn keyword]
    [nil "--out DIR" "where the results go" :default "lab-results"]
    [nil "--json" "print the result as JSON; progress goes to standard error"]
    [nil "--print-plan" "print what would run, as EDN, and run nothing"]
    ["-h" "--help" "this text"]]
   :fan-out
   [[nil "--limit N" "how many downloads or calls at once"
     :default 512, :parse-fn parse-long, :validate positive]
    [nil "--rate R" "bytes per second of each download, or unlimited; published: 500000"
     :parse-fn parse-rate
     :validate [#(or (= :unlimited %) (and (int? %) (pos? %)))
                "must be a whole number of bytes per second, or unlimited"]]
    [nil "--urls FILE" "download your own URLs, one in a line"]
    [nil "--per-host N" "how many at once from one host (with --urls)"
     :default 8, :parse-fn parse-long, :validate positive]
    [nil "--timeout SECONDS" "how long one may take (with --urls)"
     :default 60, :parse-fn parse-long, :validate positive]
    [nil "--call NS/F" "call your own function on each input (with --inputs)" :parse-fn symbol
     :validate [qualified-symbol? "must be a name with its namespace, such as my.ns/f"]]
    [nil "--inputs FILE" "the inputs of --call: one vector or list, as EDN"]
    [nil "--contenders A,B" "how to run your own work; t/pmap alone unless told otherwise"
     :parse-fn parse-contenders]
    [nil "--outcomes" "print what became of each URL or input"]]
   :handler
   [[nil "--engine NAME" engine-names
     :default :jdk, :parse-fn keyword, :validate [(set ring/engines) (str "must be " engine-names)]]
    [nil "--connections N" "how many connections ask at once"
     :default 120, :parse-fn parse-long, :validate positive]
    [nil "--path PATH" "what your handler is asked for"
     :default "/", :validate [#(str/starts-with? % "/") "must begin with /"]]]})

(def options "Every option." (into [] (mapcat options-of) [:lab :fan-out :handler]))

;; What is wrong with an argv

(defn- there-is-no
  "Returns the sentence that answers an unknown word, with the known one that is spelled most like
  it."
  [kind word known]
  (str "There is no "
       kind
       " "
       word
       "; the nearest one is "
       (options/nearest word known)
       "."))

(defn- flag [option] (str "--" (name option)))

(def ^:private flags (map #(re-find #"--[a-z-]+" (second %)) options))

(defn- sentence [error]
  (if-let [[_ word] (re-find #"Unknown option: \"(.*)\"" error)]
    (there-is-no "option" word flags)
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

(defn- handler-command
  [[function & more]]
  (let [function (some-> function
                         symbol)]
    (cond (not (qualified-symbol? function))
          {:error "handler takes the name of a Ring handler: handler my.app/handler."}
          more {:error (str "There is one word too many: " (first more) ".")}
          :else {:command :run, :options {:handler function}})))

(defn- compare-command [files]
  (if (= 2 (count files))
    {:command :compare, :files (vec files)}
    {:error "compare takes two result files: compare A.edn B.edn."}))

(defn- help-command [[topic]]
  (cond
    (nil? topic) {:command :help}
    (= "handler" topic) {:command :help, :topic :handler}
    (some #{topic} (keep :name commands)) {:command :help}
    (owners (keyword topic)) {:command :help, :topic (owners (keyword topic))}
    :else {:error (there-is-no "experiment" topic (map name (conj (keys owners) :handler)))}))

(defn- command [[word & more]]
  (cond
    (nil? word) {:command :run}
    (= "compare" word) (compare-command more)
    (= "handler" word) (handler-command more)
    (= "help" word) (help-command more)
    (not-any? #{word} words) {:error (there-is-no "command" word words)}
    more {:error (str "There is one word too many: " (first more) ".")}
    (= "tour" word) {:command :run}
    :else {:command :run, :named (keyword word)}))

(defn- problem [errors options given command]
  (or (some-> (first errors) sentence)
      (unknown-contender options)
      (lonely given)
      (conflict given)
      (:error command)
      (misplaced given command)
      (unknown-part options command)))

(defn parse
  "Returns argv as {:command :run|:compare|:help, :options {…}}, with :named for an experiment given
  as the command, :files for compare, :topic for help; or {:error sentence}."
  [argv]
  (let [{:keys [options arguments errors]} (tools.cli/parse-opts argv options)
        given (given-options argv)
        command (command arguments)
        problem (problem errors options given command)]
    (cond
      (:help options) {:command :help, :topic (:named command)}
      problem {:error problem}
      :else (-> (if (own? options) (dissoc command :named) command)
                (assoc :options (merge options (:options command)))))))

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
          (option-table (options-of :lab))
          ["" "Your own work: --urls FILE or --call NS/F, see help fan-out." ""]
          (text/wrap width exit-codes)))

(defn- page
  "Returns help on one command: what it does, its parts, its options."
  [{topic :name, :keys [doc parts]}]
  (concat (text/wrap width (str "./cljw -M:lab " (name topic) (when (= :handler topic) " NS/F")
                                ": " doc "."))
          [""]
          (when parts
            (concat ["Parts, by --only NAME"]
                    (table (for [[part question] parts] [(name part) question]))
                    [""]))
          (when-let [rows (options-of topic)]
            (concat ["Options"] (option-table rows) [""]))
          (when (= :fan-out topic)
            (concat ["Contenders"] (table (map (juxt (comp name :id) :about) contender/ways))))))

(defn help
  "Returns the text of --help, or of help on a topic: the name of an experiment, or :handler."
  [topic]
  (->> (case topic
         nil (overview)
         :handler (page (experiment/about (first (experiments/chosen {:handler 'handler}))))
         (page (experiment/about ((experiments/by-name experiments/all) topic))))
       (str/join "\n")
       str/trim-newline))

(ns thrum.lab.cli-test
  "What the lab makes of an argv, and what it says of a wrong one."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.result :as result]))

(deftest no-words-run-everything
  (let [{:keys [command options named]} (cli/parse [])]
    (is (= [:run nil 512 "lab-results" 8]
           [command named (:limit options) (:out options) (:per-host options)]))))

(deftest a-wrong-word-is-answered-in-one-sentence
  (are [argv sentence] (= sentence (:error (cli/parse argv)))
    ["--limt" "3"]
    "There is no option --limt; the nearest one is --limit."
    ["--zzzzzzzzz"]
    "There is no option --zzzzzzzzz; the nearest one is --path."
    ["--only" "fils"]
    "There is no experiment fils; the nearest one is files."
    ["fan-out" "--only" "hangs"]
    "There is no experiment hangs; the nearest one is many."
    ["help" "ring-jet"]
    "There is no experiment ring-jet; the nearest one is ring-jetty."
    ["help" "handlr"]
    "There is no experiment handlr; the nearest one is handler."
    ["fanout"]
    "There is no command fanout; the nearest one is fan-out."
    ["--limit" "0"]
    "--limit 0: must be a whole number, 1 or more."
    ["--limit" "many"]
    "--limit many: must be a whole number, 1 or more."
    ["--limit"]
    "Missing required argument for \"--limit N\"."
    ["--rate" "-5"]
    "--rate -5: must be a whole number of bytes per second, or unlimited."
    ["--call" "f" "--inputs" "x"]
    "--call f: must be a name with its namespace, such as my.ns/f."
    ["--per-host" "3"]
    "--per-host needs --urls."
    ["--call" "a/b"]
    "--call needs --inputs."
    ["--inputs" "x"]
    "--inputs needs --call."
    ["--urls" "a" "--call" "a/b" "--inputs" "c"]
    "Give --urls or --call, not both."
    ["--urls" "a" "--rate" "3"]
    "--rate is for the lab's own server; it does not go with --urls or --call."
    ["--urls" "a" "--contenders" "thrum-pmp"]
    "There is no contender thrum-pmp; the nearest one is thrum-pmap."
    ["--contenders" "pool"]
    "--contenders needs --urls or --call."
    ["compare" "a.edn"]
    "compare takes two result files: compare A.edn B.edn."
    ["scope" "--urls" "f"]
    "--urls and --call belong to fan-out."
    ["ring-jdk" "--call" "a/b" "--inputs" "c"]
    "--urls and --call belong to fan-out."
    ["ring-jety"]
    "There is no command ring-jety; the nearest one is ring-jetty."
    ["handler"]
    "handler takes the name of a Ring handler: handler my.app/handler."
    ["handler" "app"]
    "handler takes the name of a Ring handler: handler my.app/handler."
    ["handler" "my.app/handler" "more"]
    "There is one word too many: more."
    ["handler" "my.app/handler" "--engine" "tomkat"]
    "--engine tomkat: must be jdk, jetty, tomcat, helidon or http-kit."
    ["handler" "my.app/handler" "--path" "x"]
    "--path x: must begin with /."
    ["handler" "my.app/handler" "--only" "many"]
    "--only does not go with the command handler."
    ["ring-jdk" "--engine" "jetty"]
    "--engine belongs to the command handler."
    ["--connections" "3"]
    "--connections belongs to the command handler."
    ["fan-out" "more"]
    "There is one word too many: more."))

(deftest words-become-data
  (is (= {:command :compare, :files ["a" "b"]} (dissoc (cli/parse ["compare" "a" "b"]) :options)))
  (is (= :fan-out (:named (cli/parse ["fan-out"]))))
  (is (= [:run {:handler 'my.app/handler, :engine :jetty, :connections 7, :path "/"}]
         ((juxt :command #(select-keys (:options %) [:handler :engine :connections :path]))
          (cli/parse ["handler" "my.app/handler" "--engine" "jetty" "--connections" "7"]))))
  (is (= [:ring-jetty :ring-tomcat :ring-helidon :spring-tomcat :go-blocks :pipelines]
         (map #(:named (cli/parse [%]))
              ["ring-jetty" "ring-tomcat" "ring-helidon" "spring-tomcat" "go-blocks" "pipelines"])))
  (is (= :tomcat
         (get-in (cli/parse ["handler" "my.app/handler" "--engine" "tomcat"]) [:options :engine])))
  (is (= :unlimited (get-in (cli/parse ["--rate" "unlimited"]) [:options :rate])))
  (is (= [:pool :core-map]
         (get-in (cli/parse ["--urls" "f" "--contenders" "pool,core-map"]) [:options :contenders])))
  (is (= {:command :help, :topic nil} (cli/parse ["--limit" "3" "--help"]))))

(deftest own-work-names-no-experiment
  (is (nil? (:named (cli/parse ["fan-out" "--urls" "f"])))))

(deftest the-tour-is-what-no-words-ask-for
  (is (= (cli/parse []) (cli/parse ["tour"]))))

(deftest help-is-asked-for-by-any-name-that-it-knows
  (are [topic argv] (= {:command :help, :topic topic} (dissoc (cli/parse argv) :options))
    :ring-jetty ["help" "ring-jetty"]
    :ring-jetty ["help" "jetty-many"]
    :ring-jetty ["ring-jetty" "--help"]
    :handler ["handler" "--help"]
    :handler ["handler" "my.app/handler" "--help"]
    :handler ["help" "handler"])
  (is (= {:command :help} (dissoc (cli/parse ["help" "compare"]) :options))))

(deftest help-is-one-screen
  (let [lines (str/split-lines (cli/help nil))]
    (is (<= (count lines) 24))
    (is (every? #(<= (count %) 80) lines))))

(defn- one-line [text] (str/replace text #"\s+" " "))

(deftest help-names-every-experiment-and-exit-code
  (let [help (one-line (cli/help nil))]
    (doseq [words (concat (map (comp name :name) experiments/all)
                          (map (fn [[code meaning]] (str code " " meaning)) result/exit-codes))]
      (is (str/includes? help words)))))

(deftest help-of-an-experiment-has-its-parts-on-one-screens-width
  (doseq [{topic :name, :keys [parts doc]} (concat experiments/all [(experiments/by-name :handler)])
          :let [help (cli/help topic)]]
    (is (every? #(<= (count %) 80) (str/split-lines help)))
    (doseq [words (cons doc (mapcat (fn [[part question]] [(name part) question]) parts))]
      (is (str/includes? (one-line help) words)))))

(deftest help-of-the-benchmarks-names-them-and-their-options
  (let [help (cli/help :bench)]
    (is (every? #(<= (count %) 80) (str/split-lines help)))
    (doseq [words (concat ["--quick" "--only" "--jvms" "--out" "--markdown"]
                          (mapcat (juxt (comp name :name) :doc) @experiments/benchmarks))]
      (is (str/includes? (one-line help) words)))))

(deftest benchmarks-have-a-command-line-of-their-own
  (is (= [:run {:bench true, :quick true, :only [:bench/overhead :bench/stream], :jvms 2}]
         ((juxt :command #(select-keys (:options %) [:bench :quick :only :jvms]))
          (cli/parse ["bench" "--quick" "--only" "overhead,stream" "--jvms" "2"]))))
  (are [argv sentence] (str/starts-with? (:error (cli/parse (cons "bench" argv))) sentence)
    ["--quik"] "There is no option --quik; the nearest one is --quick."
    ["--jvms" "0"] "--jvms 0: must be a whole number, 1 or more."
    ["--peers" "my.peers/f,g"] "--peers my.peers/f,g: is a function's name: my.peers/jetty"
    ["--only" "scope"] "--only scope: is one or, with commas, several of: overhead, scopes, "
    ["overhead"] "There is one word too many: overhead."))

(deftest every-option-is-in-some-help
  (let [help (str/join "\n" (map cli/help [nil :fan-out :handler]))]
    (doseq [[_ option] cli/options]
      (is (str/includes? help option)))))

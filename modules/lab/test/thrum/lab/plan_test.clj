(ns thrum.lab.plan-test
  "From options to plans."
  (:require
   [clojure.edn :as edn]
   [clojure.test :refer [deftest is]]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.experiments.fan-out.experiment :as fan-out]
   [thrum.lab.experiments.own.handler :as handler]
   [thrum.lab.experiments.own.urls :as urls]
   [thrum.lab.experiments.ring.experiment :as ring]
   [thrum.lab.plan :as plan]))

(def ^:private facts {:cpus 2, :hard-file-limit? true})

(defn- plan-of [& argv]
  (plan/plan (cli/parse (cons "--all" argv)) facts [fan-out/experiment]))

(defn- part [plan name]
  (first (filter #(= name (:part %)) (mapcat :parts (:experiments plan)))))

(defn- row [plan name id]
  (first (filter #(= id (:contender %)) (:contenders (part plan name)))))

(deftest the-quick-form-is-planned-to-end-within-a-minute
  (is (< 10000 (:estimate-ms (plan-of)) 60000)))

(deftest the-full-form-has-the-published-sizes-and-rate
  (let [{:keys [bytes rate n scaled]} (part (plan-of "--full") :downloads)]
    (is (= [6000000 500000 100 nil] [bytes rate n scaled]))
    (is (= 1200000.0 (:limit-line-ms (row (plan-of "--full") :downloads :core-map))))
    (is (= 48000.0 (:limit-line-ms (row (plan-of "--full") :downloads :core-pmap))))
    (is (nil? (row (plan-of "--full") :downloads :core-pmap-unchunked)))))

(deftest the-full-form-has-every-contender-of-which-something-was-published
  (let [published #(for [{:keys [part contenders]} (mapcat :parts (:experiments %))
                         row contenders
                         :when (:published row)]
                     [part (:contender row)])]
    (is (= (published (plan-of)) (published (plan-of "--full"))))))

(deftest open-files-are-counted-on-small-ones-in-either-form
  (is (= (part (plan-of) :files) (part (plan-of "--full") :files))))

(deftest what-is-scaled-is-said
  (is (= "Scaled: files of 60 kB instead of 6 MB." (:scaled (part (plan-of) :downloads)))))

(deftest the-limit-is-the-users
  (is (= [7 "t/pmap 7" 15]
         ((juxt (comp :limit :params) :name :rounds)
          (row (plan-of "--limit" "7") :downloads :thrum-pmap)))))

(deftest the-rate-is-the-users
  (is (= 1000 (:rate (part (plan-of "--rate" "1000") :many))))
  (is (nil? (:limit-line-ms (row (plan-of "--rate" "unlimited") :downloads :core-map)))))

(deftest only-chooses-an-experiment-or-a-part
  (is (= [:downloads :many :files :unlimited]
         (map :part (:parts (first (:experiments (plan-of "--only" "fan-out")))))))
  (is (= [:files]
         (map :part (:parts (first (:experiments (plan-of "fan-out" "--only" "files"))))))))

(deftest a-part-that-cannot-run-is-planned-as-skipped
  (let [plan (plan/plan (cli/parse ["--only" "files"])
                        (assoc facts :hard-file-limit? false)
                        [fan-out/experiment])]
    (is (string? (:skipped (part plan :files))))
    (is (= [:files] (:asked plan)))))

(deftest the-unbounded-contender-is-declared-to-break
  (is (= [:breaks nil]
         (map #(:expect (row (plan-of) :files %)) [:thrum-map :thrum-pmap-fd-limit]))))

(deftest own-urls-run-with-pmap-alone
  (let [plan (plan/plan (cli/parse ["fan-out" "--urls" "f" "--limit" "3"])
                        facts
                        [urls/experiment])]
    (is (= ["t/pmap 3"] (map :name (:contenders (part plan :urls)))))
    (is (= [8 60000] ((juxt :per-host :timeout-ms) (part plan :urls))))
    (is (nil? (:estimate-ms plan)))))

(def ^:private all-engines [:jdk :jetty :tomcat :helidon :http-kit])

(defn- ring-plan
  [engines & argv]
  (plan/plan (cli/parse (cons "--all" argv))
             (assoc facts :engines engines)
             (map ring/experiment all-engines)))

(defn- part-names [plan]
  (map :part (mapcat :parts (:experiments plan))))

(def ^:private all-facts
  (assoc facts
         :engines (set all-engines)
         :ab? true
         :checkout "x"
         :spring-boot {:folder "x", :compiler? true}
         :postgres? true))

(defn- plan-of-all [facts & argv]
  (plan/plan (cli/parse argv) facts experiments/all))

(deftest a-plan-is-printable-edn
  (doseq [argv [[] ["--all"] ["--full"]], :let [plan (apply plan-of-all all-facts argv)]]
    (is (= plan (edn/read-string (pr-str plan))))))

(deftest the-tour-is-five-parts-of-less-than-three-minutes
  (let [plan (plan-of-all all-facts)]
    (is (= [:downloads :jetty-sleep :http-kit-sleep :spring-100 :go-blocks] (part-names plan)))
    (is (= [:tour nil] ((juxt (comp :form :options) :asked) plan)))
    (is (< 60000 (:estimate-ms plan) 170000))))

(deftest the-tour-has-the-contenders-of-each-headline
  (doseq [{:keys [headline contenders part]} (mapcat :parts (:experiments (plan-of-all all-facts)))
          :let [ids (set (map :contender contenders))]]
    (is (= (set (:tour headline)) ids) part)
    (is (every? ids (conj (first (:pairs headline)) (first (:beside headline)))) part)
    (is (some (comp some? :published) contenders) part)))

(deftest what-the-tour-cannot-run-stands-in-it-with-the-reason-and-what-was-published
  (let [plan (plan-of-all (assoc all-facts :engines #{:jdk :jetty} :checkout nil :spring-boot {}))]
    (is (= [:downloads :jetty-sleep :http-kit-sleep :spring-100 :go-blocks] (part-names plan)))
    (doseq [name [:http-kit-sleep :spring-100]]
      (is (string? (:skipped (part plan name))))
      (is (some (comp some? :published) (:contenders (part plan name)))))))

(defn- form-of [plan] (get-in plan [:options :form]))

(deftest only-a-command-line-that-asks-for-nothing-is-the-tour
  (is (= [:tour :tour :tour]
         (map #(form-of (apply plan-of-all all-facts %)) [[] ["tour"] ["--limit" "3" "--json"]])))
  (is (= [:quick :quick :quick :full]
         (map #(form-of (apply plan-of-all all-facts %))
              [["--all"] ["scope"] ["--only" "many"] ["--full"]])))
  (is (= (map :name experiments/all)
         (map :experiment (:experiments (plan-of-all all-facts "--all"))))))

(deftest help-says-how-long-the-full-form-takes
  (is (< 3900000 (:estimate-ms (plan-of-all all-facts "--full")) 4500000) "about 70 minutes"))

(deftest a-part-of-an-engine-that-is-not-there-is-skipped-by-its-name
  (is (= [[:jetty-sleep true]]
         (map (juxt :part (comp string? :skipped))
              (mapcat :parts (:experiments (plan-of-all facts "--only" "jetty-many")))))))

(deftest ring-experiments-have-a-quick-form-of-less-than-a-minute-each
  (doseq [plan (:experiments (ring-plan (set all-engines)))]
    (is (< 10000 (experiment/estimate-ms plan) 60000) (:title plan))))

(deftest four-thousand-connections-are-for-the-full-form-or-asked-for-by-name
  (is (= [:jdk-sleep :jdk-no-sleep] (part-names (ring-plan (set all-engines) "ring-jdk"))))
  (is (= [:jdk-sleep :jdk-no-sleep :jdk-many]
         (part-names (ring-plan (set all-engines) "ring-jdk" "--full"))))
  (is (= [:jetty-many] (part-names (ring-plan (set all-engines) "--only" "jetty-many")))))

(deftest an-engine-that-is-not-there-is-skipped-with-the-reason
  (let [plan (ring-plan #{:jdk :jetty} "ring-http-kit")]
    (is (= [:http-kit-sleep] (part-names plan)))
    (is (re-find #"^http-kit is neither on the class path, .* add http-kit/http-kit"
                 (:skipped (part plan :http-kit-sleep))))))

(deftest http-kit-is-tried-in-a-checkout
  (let [{[plan] :experiments} (plan/plan (cli/parse ["ring-http-kit"])
                                         (assoc facts :engines #{:jdk} :checkout "thrum")
                                         [(ring/experiment :http-kit)])]
    (is (= [[:http-kit-sleep nil] [:http-kit-no-sleep nil]]
           (map (juxt :part :skipped) (:parts plan))))
    (is (= "the download of http-kit, the first time" (:not-counted plan)))))

(deftest helidon-has-no-pools
  (is (= [["Helidon, virtual threads" "thrum.server"]]
         (distinct (map #(mapv :name (:contenders (part (ring-plan (set all-engines) "--full") %)))
                        [:helidon-sleep :helidon-no-sleep :helidon-many])))))

(deftest a-rings-limit-line-is-connections-or-threads-over-sleep
  (let [plan (ring-plan (set all-engines) "--full")]
    (is (= [1000.0 2400.0 2400.0 2400.0]
           (map :limit-line-per-second (:contenders (part plan :jetty-sleep)))))
    (is (= [1000.0 80000.0 80000.0 80000.0]
           (map :limit-line-per-second (:contenders (part plan :jetty-many)))))
    (is (= [nil nil] (map :limit-line-per-second (:contenders (part plan :jetty-no-sleep)))))
    (is (= [843 nil nil 2218]
           (map (comp :per-second :published) (:contenders (part plan :jetty-sleep)))))
    (is (= [nil nil nil nil] (map :published (:contenders (part plan :jdk-sleep))))
        "none was published")))

(deftest the-judged-form-is-three-warmed-runs-in-turns-of-ten-seconds-where-published
  (let [plan (ring-plan (set all-engines) "--full")]
    (doseq [{:keys [warm-up-seconds in-turns? scaled contenders], :as part}
            (mapcat :parts (:experiments plan))]
      (is (= [true nil] [in-turns? scaled]))
      (is (<= 3 warm-up-seconds))
      (is (every? #{(if (= 4000 (:connections part)) 1 3)} (map :repeat contenders))))
    (is (= [10 10 5 5]
           (map #(:seconds (part plan %)) [:jetty-sleep :http-kit-sleep :jdk-sleep :jetty-many]))))
  (is (= ["Scaled: one run of 2 s instead of three of 5 s, and little time to warm up."
          "Scaled: one run of 2 s instead of three of 10 s, and little time to warm up."]
         (map #(:scaled (part (ring-plan #{:jdk :jetty}) %)) [:jdk-sleep :jetty-sleep])))
  (is (= "Scaled: one run of 4 s instead of one of 5 s, and little time to warm up."
         (:scaled (part (ring-plan #{:jdk} "--only" "jdk-many") :jdk-many)))))

(deftest the-users-handler-meets-pools-and-virtual-threads
  (let [plan (plan/plan (cli/parse ["handler" "my.app/handler" "--connections" "400" "--path" "/x"])
                        facts
                        [handler/experiment])]
    (is (= ["virtual threads" "platform pool of 50" "platform pool of 200" "platform pool of 400"]
           (map :name (:contenders (part plan :handler)))))
    (is (= [400 "/x"] ((juxt :connections :path) (part plan :handler))))
    (is (= {:engine :jdk, :way :thrum, :handler 'my.app/handler, :pool nil}
           (:job (row plan :handler :thrum)))))
  (is (= 2
         (count (:contenders (part (plan/plan (cli/parse ["handler" "a/b" "--connections" "50"])
                                              facts
                                              [handler/experiment])
                                   :handler))))))

(deftest a-plan-that-fails-is-told-in-every-form
  (let [broken {:name :broken, :plan (fn [_ _] (throw (StackOverflowError.)))}]
    (doseq [argv [[] ["--all"] ["--full"]]]
      (is (= [[:broken]]
             (map #(map :part (:parts %))
                  (:experiments (plan/plan (cli/parse argv) facts [broken]))))
          argv))))

(defn- bench-plan [& argv]
  (let [{:keys [options] :as parsed} (cli/parse (cons "bench" argv))]
    (plan/plan parsed facts (experiments/chosen options))))

(deftest a-benchmark-is-planned-as-jobs-in-several-jvms
  (let [{[{:keys [parts]} :as plans] :experiments, :as plan} (bench-plan "--only" "overhead,cancel")
        [{:keys [contenders jvm-opts in-turns?]}] parts]
    (is (= [:bench/overhead :bench/cancel] (map :experiment plans)))
    (is (= [2 #{5} true] [(count contenders) (set (map :repeat contenders)) in-turns?]))
    (is (not-any? #{"-XX:TieredStopAtLevel=1"} jvm-opts))
    (is (= plan (edn/read-string (pr-str plan))))))

(deftest the-quick-form-of-benchmarks-is-one-jvm-without-the-optimising-compiler
  (let [plans (:experiments (bench-plan "--quick"))]
    (is (= (remove #{:bench/overload :bench/context :bench/faults}
                   (map :name @experiments/benchmarks))
           (map :experiment plans))
        "these run only by their names")
    (doseq [{[{:keys [contenders jvm-opts]}] :parts} plans]
      (is (some #{"-XX:TieredStopAtLevel=1"} jvm-opts))
      (is (= #{1} (set (map :repeat contenders)))))))

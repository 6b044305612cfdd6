(ns thrum.dev.contract
  "Holds an engine against the contract of the servers, and writes how the engines fare.

  ./cljw -M:servers-doc writes the tables of doc/reference/contract.md, which show exceptions only,
  and target/contract.md, which shows every case. ./cljw -M:servers-doc ENGINE [CASE ...] runs these
  cases against the engine first, or all, and exits with 1 where an outcome is not as expected."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.dev.page :as page]
   [thrum.server :as server]
   [thrum.server.impl.engines :as engines]
   [thrum.server.tck :as tck]))

(set! *warn-on-reflection* true)

(def path
  "The page with the exceptions."
  "doc/reference/contract.md")

(def ^:private whole-path "target/contract.md")
(def ^:private held-path "doc/reference/contract.edn")

(defn held
  "Returns engine -> ids of the cases that passed on it, of engines that not every suite can start."
  []
  (update-vals (edn/read-string (slurp held-path)) set))

;; Outcomes

(defn expected
  "Returns the outcome that a case must have on an engine; nil where it was never run."
  [{:keys [name gaps capabilities]} held {:keys [id needs refuses]}]
  (cond
    (contains? gaps id) :gap
    (not-every? capabilities needs) (if refuses :refused :skipped)
    (contains? (get held name #{id}) id) :passed))

(defn outcomes
  "Returns the outcomes of all cases on an engine, as thrum.server.tck/run gives them."
  [engine held]
  (for [{:keys [id] :as case} (tck/cases)]
    {:id id, :outcome (expected engine held case)}))

;; Running

(defn- run-cases [engine ids]
  (tck/run server/run-server (cond-> {:options {:engine (:name engine)}
                                      :capabilities (:capabilities engine)
                                      :gaps (:gaps engine)
                                      :may-pass (:may-pass engine)
                                      :report #(println (:outcome %) (:id %) (or (:detail %) ""))}
                               (seq ids) (assoc :only ids))))

(defn- unexpected [engine found]
  (let [by-id (into {} (map (juxt :id identity)) (tck/cases))]
    (remove (fn [{:keys [id outcome]}]
              (or (= outcome (expected engine {} (by-id id)))
                  (and (= :passed outcome) (contains? (:may-pass engine) id))))
            found)))

(defn- ids-text [[engine ids]]
  (str engine "\n [" (str/replace (page/filled 96 (sort ids)) "\n" "\n  ") "]"))

(defn- keep! [held]
  (spit held-path (str "{" (str/join "\n " (map ids-text (sort held))) "}\n")))

(defn- hold!
  "Runs the cases of these ids, or all; returns the outcomes that were not expected."
  [engine ids]
  (let [found (run-cases engine ids)
        bad (unexpected engine found)
        as-expected (remove (set bad) found)]
    (when (contains? (held) (:name engine))
      (keep! (update (held) (:name engine) into (map :id) as-expected)))
    bad))

;; Tables

(def ^:private columns
  [["passed" :passed] ["refused" :refused] ["gaps" :gap] ["not run" nil]])

(defn- engines-table [engines held]
  (page/table (into ["engine"] (map first) columns)
              (for [engine engines
                    :let [counted (frequencies (map :outcome (outcomes engine held)))]]
                (into [(page/code (:name engine))] (map #(counted (second %) 0)) columns))))

(defn- capabilities-table [engines capabilities]
  (page/table (into ["capability"] (map (comp page/code :name)) engines)
              (for [capability (sort capabilities)]
                (into [(page/code capability)]
                      (map #(if (contains? (:capabilities %) capability) "yes" ""))
                      engines))))

(defn- gaps-table [engines]
  (page/table ["§" "engine" "what does not hold" "why"]
              (for [{:keys [name gaps]} engines
                    {:keys [id section sentence]} (tck/cases) :when (contains? gaps id)]
                [section (page/code name) sentence (gaps id)])))

(defn- all-engines []
  (mapv engines/named engines/names))

(defn written
  "Returns the text of the page with its tables as they are."
  [text held]
  (let [engines (all-engines)]
    (-> text
        (page/section "engines" (engines-table engines held))
        (page/section "capabilities"
                      (capabilities-table engines (into #{} (mapcat :capabilities) engines)))
        (page/section "gaps" (gaps-table engines)))))

(defn whole-table
  "Returns a table of every case and engine."
  [held]
  (tck/table engines/names (into {} (map (juxt :name #(outcomes % held))) (all-engines))))

(defn -main
  "Writes the tables; with arguments, after the engine was held against the contract."
  [& [engine & ids]]
  (let [bad (when engine (hold! (engines/named (keyword engine)) (map keyword ids)))]
    (spit path (written (slurp path) (held)))
    (io/make-parents whole-path)
    (spit whole-path (whole-table (held)))
    (println "Wrote" path "and" whole-path)
    (when (seq bad) (println "Not as expected:" (str/join " " (map :id bad))))
    (shutdown-agents)
    (when (seq bad) (System/exit 1))))

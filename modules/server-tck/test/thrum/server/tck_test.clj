(ns thrum.server.tck-test
  "How the suite chooses, judges and reports its cases."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.tck :as tck]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private quiet
  "Failures are what the suite asks for: their stack traces are not read."
  (java.util.logging.Logger/getLogger "thrum.server"))

(.setLevel ^java.util.logging.Logger quiet java.util.logging.Level/OFF)

(deftest cases-have-ids-sentences-and-sections
  (let [cases (tck/cases)]
    (is (< 100 (count cases)))
    (is (apply distinct? (map :id cases)))
    (is (apply distinct? (map :sentence cases)))
    (is (every? #(re-matches #"[^\n]+\." (:sentence %)) cases))
    (is (every? #(re-matches #"4\.(10|[1-9])" (:section %)) cases))))

(deftest every-promise-has-cases
  (is (= (set (map #(str "4." %) (range 1 11))) (set (map :section (tck/cases))))))

(deftest what-is-declared-absent-must-be-refused
  (let [[outcome] (tck/run server/run-server {:capabilities #{}, :only [:tls-serves]})]
    (is (= :refused (:outcome outcome))))
  (let [starts-anyway (fn [handler options] (server/run-server handler (dissoc options :ssl-port)))
        [outcome] (tck/run starts-anyway {:capabilities #{}, :only [:tls-serves]})]
    (is (= :failed (:outcome outcome)))))

(deftest a-known-gap-is-told-and-has-to-be-one
  (let [outcome (fn [handler-wrapper]
                  (:outcome (first (tck/run handler-wrapper
                                            {:only [:method-is-a-keyword]
                                             :gaps {:method-is-a-keyword "not yet"}}))))]
    (is (= :failed (outcome server/run-server)))
    (is (= :gap
           (outcome (fn [handler options]
                      (server/run-server #(handler (assoc % :request-method "GET")) options)))))))

(deftest a-gap-of-some-jdks-may-pass
  (let [outcome (fn [handler-wrapper]
                  (:outcome (first (tck/run handler-wrapper
                                            {:only [:method-is-a-keyword]
                                             :gaps {:method-is-a-keyword "on old ones"}
                                             :may-pass #{:method-is-a-keyword}}))))]
    (is (= :passed (outcome server/run-server)))
    (is (= :gap
           (outcome (fn [handler options]
                      (server/run-server #(handler (assoc % :request-method "GET")) options)))))))

(deftest a-case-without-its-tool-is-skipped
  (let [[outcome] (tck/run server/run-server
                           {:stop server/stop!, :port server/port, :only [:status-counts]})]
    (is (= [:skipped "no :status was given"] ((juxt :outcome :detail) outcome)))))

(deftest a-case-that-hangs-has-failed
  (let [[outcome] (tck/run (fn [_ _] (promise))
                           {:stop deref
                            :port (fn [_] (deref (promise)))
                            :limit-ms 50
                            :only [:method-is-a-keyword]})]
    (is (= :failed (:outcome outcome)))))

(deftest outcomes-are-reported-as-they-come
  (let [reported (atom [])
        outcomes (tck/run server/run-server
                          {:only [:status-is-sent :scheme-is-http]
                           :report #(swap! reported conj (:id %))})]
    (is (= #{:status-is-sent :scheme-is-http} (set @reported)))
    (is (= [:scheme-is-http :status-is-sent] (map :id outcomes)))))

(deftest a-table-has-a-row-a-case-and-a-column-an-engine
  (let [outcome (fn [id outcome] {:id id, :outcome outcome})
        lines (str/split-lines (tck/table [:jdk :other]
                                          {:jdk [(outcome :status-is-sent :passed)]
                                           :other [(outcome :status-is-sent :failed)]}))]
    (is (= ["| § | what holds | jdk | other |" "| --- | --- | --- | --- |"
            "| 4.2 | The status is the handler's, the unusual ones too. | yes | **no** |"]
           lines))))

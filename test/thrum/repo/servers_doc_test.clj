(ns thrum.repo.servers-doc-test
  "The tables of doc/servers.md say what the code does."
  (:require
   [clojure.set :as set]
   [clojure.test :refer [deftest is]]
   [thrum.dev.servers-doc :as servers-doc]
   [thrum.server.engine.http-kit.library :as http-kit]
   [thrum.server.spi :as engine]
   [thrum.server.tck :as tck]))

(set! *warn-on-reflection* true)

(deftest the-tables-are-as-generated
  (let [text (slurp "doc/servers.md")]
    (is (= (servers-doc/written text (servers-doc/contract)) text)
        "./cljw -M:servers-doc rewrites it")))

(deftest every-engine-was-held-against-every-case
  (let [cases (set (map :id (tck/cases)))]
    (doseq [[engine outcomes] (servers-doc/contract)]
      (is (= #{} (set/difference (set (keys outcomes)) cases)) (str engine))
      ;; Its jar is on Clojars: not everybody can hold it against a new case.
      (when (or (not= :http-kit engine) (http-kit/on-classpath?))
        (is (= #{} (set/difference cases (set (keys outcomes)))) (str engine))))))

(deftest no-engine-fails-but-where-its-gaps-are-named
  (doseq [[engine outcomes] (servers-doc/contract)]
    (is (= (set (keys (:gaps (engine/named engine))))
           (set (keep (fn [[id outcome]] (when (= :gap outcome) id)) outcomes)))
        (str engine))
    (is (not-any? #{:failed} (vals outcomes)) (str engine))))

(deftest a-table-that-is-out-of-date-is-seen
  (let
    [old
     "<!-- options:begin -->\nold\n<!-- options:end --><!-- contract:begin -->\nold\n<!-- contract:end -->"]
    (is (not= old (servers-doc/written old (servers-doc/contract))))))

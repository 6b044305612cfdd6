(ns thrum.server.engine.jdk-tck-test
  "The JDK's engine against the contract, each case an assertion of its own."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.impl.engines :as engines]
   [thrum.server.tck :as tck]
   [thrum.server.tck.assertions :refer [check]]
   [thrum.spi :as spi]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private quiet
  "Failures are what the suite asks for: their stack traces are not read."
  (java.util.logging.Logger/getLogger "thrum.server"))

(.setLevel ^java.util.logging.Logger quiet java.util.logging.Level/OFF)

(def ^:private once-a-jvm
  "The cases that set what the JDK's server has once for the whole JVM, in groups that agree."
  [[:idle-connections-are-closed :silent-connections-are-closed :silent-bodies-are-given-up
    :handlers-may-be-slower-than-idle :silent-takers-of-http-1-0-are-reset]
   [:connections-are-bounded :lost-connections-give-their-places-back]])

(def ^:private carrier-holders
  "The cases that hold more carriers than there may be. Where the JDK's server pins them it warns of
  that at its start."
  [:slow-headers-hold-nobody-up])

(defn- others []
  (remove (into (set (flatten once-a-jvm)) (when (spi/monitors-pin?) carrier-holders))
          (map :id (tck/cases))))

(def ^:private closed-by-one-update
  "The gaps that the JDK's updates of October 2026 closed, all at once."
  [:garbled-coding-is-refused :control-chars-around-a-value-are-refused
   :chunk-sizes-may-exceed-32-bits :bare-cr-in-a-value-is-refused])

(def ^:private opened-by-it :refused-requests-are-logged)

(deftest ^{:time-limit-ms 600000} the-jdk-engine-keeps-the-contract
  (let [found (tck/run server/run-server
                (merge {:only (others), :limit-ms 60000}
                       (select-keys (engines/named :jdk) [:gaps :may-pass])))
        outcome (into {} (map (juxt :id :outcome)) found)]
    (run! (partial check #{:passed :refused :skipped :gap}) found)
    (is (contains? #{[#{:gap} :passed] [#{:passed} :gap]}
                   [(set (map outcome closed-by-one-update)) (outcome opened-by-it)])
        (select-keys outcome (cons opened-by-it closed-by-one-update)))))

(defn -main
  "What a child JVM runs: prints the outcomes of the cases of these names; exits with how many did
  not pass."
  [& names]
  (let [outcomes (tck/run server/run-server
                   {:only (map keyword names), :limit-ms 60000})]
    (run! #(prn (select-keys % [:id :outcome :detail])) outcomes)
    (System/exit (count (remove #(= :passed (:outcome %)) outcomes)))))

(defn- in-a-jvm
  "Returns what a child JVM says of the cases of these ids: {:exit code, :lines strings}."
  [ids]
  (jvm/quietly (jvm/command (jvm/this-home) jvm/exports 'thrum.server.engine.jdk-tck-test
                            (map name ids))
               280000))

(deftest ^{:time-limit-ms 600000} the-jdk-engine-keeps-what-it-has-once-a-jvm
  (doseq [{:keys [exit lines]} (t/pmapv 2 in-a-jvm once-a-jvm)]
    (is (= 0 exit) (str/join "\n" lines))))

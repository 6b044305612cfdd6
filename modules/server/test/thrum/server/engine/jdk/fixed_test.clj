(ns thrum.server.engine.jdk.fixed-test
  "What the JDK's server reads once for the JVM: where two servers start at once, and where another
  has set it."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jdk.fixed :as fixed]
   [thrum.server.impl.options :as options]
   [thrum.server.spi :as engine]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(def ^:private ^String property "thrum.server.engine.jdk.fixed-test")

(defn- read-after-fix! []
  (fixed/fix! {:idle-timeout-ms 1000, :max-connections 3})
  (System/getProperty property))

(deftest no-server-starts-before-the-first-has-set-the-properties
  (let [setting (promise), go (promise)]
    (try
      (with-redefs [fixed/fixed (AtomicReference.)
                    fixed/properties (fn [_] (deliver setting true) @go {property "set"})]
        (let [[_ one] (gate/start "one" read-after-fix!)
              _ (is (true? (deref setting 10000 :late)))
              [^Thread thread another] (gate/start "another" read-after-fix!)]
          (is (gate/eventually 10000 #(or (realized? another)
                                          (= Thread$State/BLOCKED (.getState thread)))))
          (deliver go true)
          (is (= [{:value "set"} {:value "set"}]
                 [(deref one 10000 :late) (deref another 10000 :late)]))))
      (finally (System/clearProperty property)))))

(deftest what-another-has-set-is-not-asked-for-in-vain
  (let [ask! #(fixed/fix! (with-meta {:idle-timeout-ms 1000, :max-connections %2} {:given %1}))]
    (try
      (with-redefs [fixed/fixed (AtomicReference.)
                    fixed/by-option {:max-connections property}
                    fixed/properties (fn [{:keys [max-connections]}]
                                       {property (str max-connections)})]
        (System/setProperty property "7")
        (is (= {:type :thrum/invalid, :option :max-connections, :value 3, :fixed "7"}
               (try (ask! #{:max-connections} 3) (catch ExceptionInfo e (ex-data e)))))
        (is (nil? (ask! #{} 3)))
        (is (= "7" (System/getProperty property))))
      (finally (System/clearProperty property)))))

(deftest no-connection-is-closed-before-its-time
  (let [of (fn [idle-ms k]
             (get (fixed/properties {:idle-timeout-ms idle-ms, :max-connections 3})
                  (str "sun.net.httpserver." k)))]
    (is (= ["1" "1" "2"] (map #(of % "idleInterval") [1 1000 1001])))
    (is (= "3" (of 1000 "maxIdleConnections")))))

(deftest another-idle-timeout-is-refused-though-it-is-not-given
  (let [fix! #(fixed/fix! (with-meta % {:given #{}}))]
    (with-redefs [fixed/fixed (AtomicReference.), fixed/properties (constantly {})]
      (fix! {:idle-timeout-ms 1000, :max-connections 3})
      (is (nil? (fix! {:idle-timeout-ms 1000, :max-connections 4})))
      (is (= {:type :thrum/invalid, :option :idle-timeout-ms, :value 2000, :fixed 1000}
             (try
               (fix! {:idle-timeout-ms 2000, :max-connections 3})
               (catch ExceptionInfo e (ex-data e))))))))

(deftest an-engine-knows-what-was-given
  (is (= [:max-connections]
         (engine/given (options/checked {:name :test, :capabilities #{}} {:max-connections 3})
                       [:idle-timeout-ms :max-connections]))))

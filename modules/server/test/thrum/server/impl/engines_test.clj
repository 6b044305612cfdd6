(ns thrum.server.impl.engines-test
  "An engine that is not on the classpath is answered with what to add for it."
  (:require
   [clojure.main :as main]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.engines :as engines]))

(set! *warn-on-reflection* true)

(defn- thrown-for [home]
  (with-redefs [engines/homes {:mine [home "my/engine"]}]
    (try (engines/named :mine) nil (catch clojure.lang.ExceptionInfo e e))))

(deftest a-repl-shows-the-sentence-about-an-engine-that-is-missing
  (let [e (thrown-for 'my.engine.that-is-missing)]
    (is (= [:thrum/invalid :mine] ((juxt :type :value) (ex-data e))))
    (is (str/includes? (main/ex-str (main/ex-triage (Throwable->map e))) "add my/engine"))))

(deftest what-an-engine-lacks-is-the-cause
  (with-redefs [requiring-resolve (fn [_] (throw (java.io.FileNotFoundException. "other.clj")))]
    (is (= "other.clj" (ex-message (ex-cause (thrown-for 'my.engine)))))))

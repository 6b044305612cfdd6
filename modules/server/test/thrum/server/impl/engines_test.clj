(ns thrum.server.impl.engines-test
  "An engine that is not on the classpath is answered with what to add for it."
  (:require
   [clojure.main :as main]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.engines :as engines])
  (:import
   (clojure.lang Compiler$CompilerException)))

(set! *warn-on-reflection* true)

(defn- thrown-for [home]
  (with-redefs [engines/homes {:mine [home "my/engine"]}]
    (try (engines/named :mine) nil (catch clojure.lang.ExceptionInfo e e))))

(defn- shown [e]
  (main/ex-str (main/ex-triage (Throwable->map e))))

(deftest a-repl-shows-the-sentence-about-an-engine-that-is-missing
  (let [e (thrown-for 'my.engine.that-is-missing)]
    (is (= [:thrum/invalid :mine] ((juxt :type :value) (ex-data e))))
    (is (str/includes? (shown e) "add my/engine"))))

(deftest what-an-engine-lacks-is-the-cause
  (with-redefs [requiring-resolve (fn [_] (throw (java.io.FileNotFoundException. "other.clj")))]
    (is (= "other.clj" (ex-message (ex-cause (thrown-for 'my.engine)))))))

(defn- thrown-without [^Throwable t]
  (with-redefs [requiring-resolve (fn [_] (throw t))] (thrown-for 'my.engine)))

(deftest a-class-that-an-engine-lacks-is-named-with-what-to-add
  (let [own (ClassNotFoundException. "java.util.logging.Level")]
    (doseq [thrown [own (Compiler$CompilerException. "my/engine.clj" 1 1 own)]
            :let [e (thrown-without thrown)]]
      (is (= [:thrum/invalid :mine] ((juxt :type :value) (ex-data e))))
      (is (str/includes? (shown e)
                         (str "needs the class java.util.logging.Level, which is not there: add "
                              "the JDK's module that has it, by --add-modules")))))
  (is (str/includes? (shown (thrown-without (ClassNotFoundException. "org.example.Server")))
                     "needs the class org.example.Server, which is not there: add my/engine")))

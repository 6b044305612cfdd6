(ns thrum.scoped-values-test
  "Scoped values in tasks, on JDK 25; before, they are refused in words."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.impl.context :as context]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.options :as options]
   [thrum.impl.task :as task]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.lang ScopedValue ScopedValue$Carrier)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^ScopedValue user (ScopedValue/newInstance))
(def ^ScopedValue tenant (ScopedValue/newInstance))

(defn- run-with
  "Returns the value of f, called with the scoped value bound to v."
  [k v f]
  (let [value (promise)]
    (.run ^ScopedValue$Carrier (ScopedValue/where k v) #(deliver value (f)))
    (deref value 0 nil)))

(defn- seen
  "Returns what the calling thread has of a scoped value."
  [^ScopedValue k]
  (if (.isBound k) (.get k) :unbound))

(defn- in-task [wrap f]
  (deref (task/future! (context/capture wrap nil) (task/unique-name "future") nil f) 5000 :late))

(defmacro ^:private on-25
  "Runs the body on JDK 25 and newer; before, it throws what says so."
  [& body]
  `(if (<= 25 (.feature (Runtime/version)))
     (do ~@body)
     (let [e# (thrown (jdk/with-scoped nil [user]))]
       (is (= [:thrum/invalid :scoped-values] ((juxt :type :option) (ex-data e#))))
       (is (str/includes? (ex-message e#) "needs JDK 25")))))

(deftest a-task-has-what-its-caller-had
  (on-25
    (let [wrap (run-with user :ada (fn [] (run-with tenant nil #(jdk/rebinding [user tenant]))))]
      (is (= [:ada nil] (in-task wrap #(mapv seen [user tenant]))))
      (is (= [:ada nil] (in-task wrap #(mapv seen [user tenant]))) "more than once")
      (is (= [:unbound :unbound] (in-task nil #(mapv seen [user tenant])))))))

(deftest what-is-not-bound-is-left-out
  (on-25 (is (= [:ada :unbound]
                (in-task (run-with user :ada #(jdk/rebinding [tenant user]))
                         #(mapv seen [user tenant]))))
         (is (= 1 (in-task (jdk/rebinding [user tenant]) (fn [] 1))))
         (is (= :unbound (in-task (jdk/rebinding [user]) #(seen user))))))

(deftest what-is-bound-at-the-call-counts
  (on-25
    (let [wrap (run-with user :ada #(jdk/rebinding [user]))]
      (is (= :ada (run-with user :grace (fn [] (in-task wrap #(seen user)))))))))

(deftest values-and-failures-come-out-as-they-are
  (on-25 (let [wrap (run-with user :ada #(jdk/rebinding [user]))]
           (is (nil? ((wrap (fn [])))))
           (is (false? ((wrap (fn [] false)))))
           (doseq [failure [(Exception.) (ex-info "no" {}) (AssertionError. "no")
                            (StackOverflowError.) (InterruptedException.)]]
             (is (identical? failure (thrown ((wrap (fn [] (throw failure)))))))
             (is (empty? (.getSuppressed ^Throwable failure)))))))

(deftest the-users-wrap-runs-inside-and-may-bind-again
  (on-25
    (let [trail (atom [])
          trace (fn [thunk]
                  (swap! trail conj [:starting (seen user)])
                  #(do (swap! trail conj [:before (seen user)])
                       (run-with tenant :acme thunk)))
          wrap (run-with user :ada #(jdk/with-scoped trace [user tenant]))]
      (is (= [:ada :acme] (in-task wrap #(mapv seen [user tenant]))))
      (is (= [[:starting :unbound] [:before :ada]] @trail)))))

(deftest a-wrap-without-a-thunk-is-still-told
  (on-25 (doseq [no-thunk [nil false 42 "thunk"]]
           (let [wrap (run-with user :ada #(jdk/with-scoped (constantly no-thunk) [user]))]
             (is (= [:thrum/invalid :wrap]
                    ((juxt :type :option) (ex-data (thrown (in-task wrap (fn []))))))
                 (pr-str no-thunk))))))

(deftest a-wrap-that-is-no-function-is-still-refused
  (on-25
    (let [wrap (run-with user :ada #(jdk/with-scoped 42 [user]))]
      (is (= [:thrum/invalid :wrap 42]
             ((juxt :type :option :value) (ex-data (thrown (in-task wrap (fn []))))))))))

(deftest without-scoped-values-the-wrap-stays-as-it-is
  (let [wrap identity]
    (is (identical? wrap (jdk/with-scoped wrap nil)))
    (is (identical? wrap (jdk/with-scoped wrap [])))
    (is (nil? (jdk/with-scoped nil nil)))))

(deftest the-option-takes-scoped-values
  (testing "accepted"
    (is (= {:scoped-values [user]} (options/check {:scoped-values [user]} [:scoped-values])))
    (is (= {:scoped-values []} (options/check {:scoped-values []} [:scoped-values]))))
  (testing "refused"
    (doseq [wrong [nil user [:user] #{user} [user nil]]]
      (is (= [:thrum/invalid :scoped-values]
             ((juxt :type :option)
              (ex-data (thrown (options/check {:scoped-values wrong} [:scoped-values])))))))))

(ns thrum.scope-test
  "The mechanism that owns tasks: its ring of slots, its end, its parent."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.impl.context :as context]
   [thrum.impl.group :as scope]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CountDownLatch)
   (thrum.impl.group Scope)
   (thrum.impl.task Owner)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- owner [scope]
  (reify Owner
    (failed [_ _ _])
    (ended [_ task] (scope/leave! scope task))))

(defn- fork! [scope f]
  (doto (task/task (context/capture nil scope) (owner scope) 0 f)
    (->> (scope/start! scope))))

(deftest children-are-held-until-they-end
  (let [^Scope scope (scope/scope "s" nil), gate (promise)
        tasks (doall (repeatedly 5 #(fork! scope (fn [] @gate))))]
    (is (= (set tasks) (set (.children scope))))
    (deliver gate true)
    (scope/join! scope)
    (is (scope/empty-scope? scope))
    (is (empty? (.children scope)))))

(deftest those-who-end-are-let-go
  (let [^Scope scope (scope/scope "s" nil), gate (promise)]
    (dotimes [_ 20] (fork! scope (fn [] @gate)))
    (dotimes [_ 500] @(fork! scope (fn [] 1)))
    (is (gate/eventually 1000 #(= 20 (count (.children scope)))))
    (deliver gate true)
    (scope/join! scope)
    (is (empty? (.children scope)))))

(deftest a-closed-scope-takes-nobody-and-lets-its-children-run
  (let [scope (scope/scope "checkout" nil)
        gate (promise)
        task (fork! scope (fn [] @gate))]
    (scope/close! scope :done)
    (is (= {:type :thrum/closed, :scope "checkout", :reason :done}
           (ex-data (thrown (fork! scope (fn []))))))
    (deliver gate :value)
    (is (= :value @task))
    (scope/join! scope)))

(deftest a-start-that-fails-leaves-no-child
  (let [^Scope scope (scope/scope "s" nil), failure (ex-info "no thread" {})
        task (task/task (context/capture nil scope) (owner scope) 0 (fn []))]
    (is (identical? failure (thrown (with-redefs [jdk/virtual-thread (fn [_ _] (throw failure))]
                                      (scope/start! scope task)))))
    (is (scope/empty-scope? scope))
    (is (empty? (.children scope)))
    (scope/join! scope)))

(deftest the-end-of-a-parent-cancels-what-its-children-run
  (let [^Scope parent (scope/scope "parent" nil)
        ^Scope child (scope/scope "child" parent)
        running (promise)
        ended (promise)]
    (fork! child
           (fn []
             (deliver running true)
             (try
               (Thread/sleep 60000)
               (finally
                 (deliver ended true)))))
    @running
    (is (= [child] (.children parent)))
    (scope/cancel! parent :over)
    (scope/join! parent)
    (is (realized? ended))
    (is (= :over (scope/reason child)))
    (is (= :thrum/closed (:type (ex-data (thrown (fork! child (fn [])))))))))

(deftest a-child-without-work-is-forgotten-by-its-parent
  (let [^Scope parent (scope/scope "parent" nil), ^Scope child (scope/scope "child" parent)]
    (dotimes [_ 50] @(fork! child (fn [] 1)))
    (scope/join! parent)
    (is (empty? (.children parent)))
    (testing "and still ends with it"
      (scope/close! parent :over)
      (is (= :thrum/closed (:type (ex-data (thrown (fork! child (fn []))))))))))

(deftest forks-and-ends-from-many-threads-lose-nobody
  (let [^Scope parent (scope/scope "parent" nil)
        ^Scope child (scope/scope "child" parent)
        done (CountDownLatch. 4)]
    (dotimes [_ 4]
      (.start (Thread. (fn [] (dotimes [_ 2000] (fork! child (fn []))) (.countDown done)))))
    (.await done)
    (scope/join! child)
    (scope/join! parent)
    (is (empty? (.children parent)))
    (is (empty? (.children child)))))

(deftest a-join-keeps-the-interrupt-for-later
  (let [scope (scope/scope "s" nil)
        gate (promise)
        running (promise)]
    (fork! scope (fn [] (deliver running true) @gate))
    (let [[^Thread joiner outcome] (gate/start "joiner"
                                               #(do
                                                  (scope/join! scope)
                                                  (Thread/interrupted)))]
      @running
      (.interrupt joiner)
      (is (= :joining (deref outcome 20 :joining)))
      (deliver gate true)
      (is (= {:value true} (deref outcome 1000 :stuck))))))

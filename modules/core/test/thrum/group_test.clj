(ns thrum.group-test
  "The mechanism that owns tasks: its slots, its end, its parent."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CountDownLatch)
   (thrum.impl.group Group Members)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- handler [group]
  (reify completion/CompletionHandler
    (failed [_ _ _])
    (ended [_ task] (group/child-left! (group/children-of group) task))))

(defn- fork! [group f]
  (doto (task/task (context/capture nil group) (handler group) 0 f)
    (->> (group/start! group))))

(deftest children-are-held-until-they-end
  (let [^Group group (group/group "s" nil), gate (promise)
        tasks (doall (repeatedly 5 #(fork! group (fn [] @gate))))]
    (is (= (set tasks) (set (.children group))))
    (deliver gate true)
    (group/join! group)
    (is (group/empty-group? group))
    (is (empty? (.children group)))))

(deftest those-who-end-are-let-go
  (let [^Group group (group/group "s" nil), gate (promise)]
    (dotimes [_ 20] (fork! group (fn [] @gate)))
    (dotimes [_ 500] @(fork! group (fn [] 1)))
    (is (gate/eventually 10000 #(= 20 (count (.children group)))))
    (deliver gate true)
    (group/join! group)
    (is (empty? (.children group)))))

(deftest a-child-is-held-until-its-handler-knows-of-its-end
  (let [group (group/group "s" nil), gate (promise)
        slow (reify completion/CompletionHandler
               (failed [_ _ _])
               (ended [_ task] @gate (group/child-left! (group/children-of group) task)))
        task (task/task (context/capture nil group) slow 0 (fn []))]
    (group/start! group task)
    @task
    (dotimes [_ 100] @(fork! group (fn [])))
    (is (group/holds? group task))
    (deliver gate true)
    (group/join! group)
    (is (not (group/holds? group task)))))

(deftest a-child-ends-without-the-groups-lock
  (let [^Group group (group/group "s" nil), gate (promise)]
    (dotimes [_ 3] (fork! group (fn [] @gate)))
    (locking group
      (deliver gate true)
      (is (gate/eventually 5000 #(zero? (group/running group))))
      (is (empty? (.children group))))))

(deftest an-opened-group-stays-its-parents-child-until-it-is-ended
  (let [^Group parent (group/group "parent" nil)
        opened (group/opened-group "opened" parent nil nil nil)]
    (is (empty? (.children parent)) "not before it has children")
    @(fork! opened (fn []))
    (is (gate/eventually 5000 #(zero? (group/running opened))))
    (is (= [opened] (.children parent)))
    (group/end! opened :ended)
    (is (empty? (.children parent)))
    (is (= 0 (group/running parent)))))

(deftest a-closed-group-takes-nobody-and-lets-its-children-run
  (let [group (group/group "checkout" nil)
        gate (promise)
        task (fork! group (fn [] @gate))]
    (group/close! group :done)
    (is (= {:type :thrum/closed, :scope "checkout", :reason :done}
           (ex-data (thrown (fork! group (fn []))))))
    (deliver gate :value)
    (is (= :value @task))
    (group/join! group)))

(deftest a-group-in-a-closed-one-takes-no-child-although-it-is-open
  (let [outer (group/group "checkout" nil)
        inner (group/group "inner" outer)
        gate (promise)]
    (fork! inner (fn [] @gate))
    (group/close! outer :done)
    (is (= {:type :thrum/closed, :scope "inner", :reason :done}
           (ex-data (thrown (fork! inner (fn []))))))
    (is (= 1 (group/running inner)))
    (deliver gate true)
    (group/join! inner)))

(deftest the-first-reason-of-an-end-and-of-a-cancel-stays
  (let [group (group/group "s" nil)
        running (promise)
        gate (promise)
        wait #(try (deliver running true) @gate (catch InterruptedException _ @gate))
        task (fork! group wait)]
    @running
    (group/close! group :closed)
    (is (true? (group/cancel! group :cancelled)))
    (is (false? (group/cancel! group :cancelled-again)))
    (group/close! group :closed-again)
    (deliver gate :go)
    (thrown @task)
    (group/end! group :ended)
    (is (= [:closed :cancelled] ((juxt group/end-reason group/cancel-reason) group))))
  (let [group (group/group "s" nil)]
    (group/close! group :closed)
    (group/end! group :ended)
    (is (= :closed (group/end-reason group)))))

(deftest a-start-that-fails-leaves-no-child
  (let [^Group group (group/group "s" nil), failure (ex-info "no thread" {})
        task (task/task (context/capture nil group) (handler group) 0 (fn []))]
    (is (identical? failure (thrown (with-redefs [jdk/virtual-thread (fn [_ _] (throw failure))]
                                      (group/start! group task)))))
    (is (group/empty-group? group))
    (is (empty? (.children group)))
    (group/join! group)))

(defn- members
  "Returns so many members that run."
  [n]
  (reify Members
    (added [_] n)
    (running [_] n)
    (tasks [_] [])
    (cancelAll [_ _])))

(deftest a-child-or-a-member-that-comes-too-late-leaves-no-group-in-its-parents
  (doseq [[kind come!] {:child #(fork! % (fn [])), :member group/admit-member!}]
    (let [outer (group/group "outer" nil)
          middle (group/group "middle" outer)
          ^Group inner (doto (group/group "inner" middle)
                         (.setMembers (when (= :member kind) (members 1))))
          append! @#'group/append!]
      ;; Closed once it is a child of its parent, and before the inner one is a child of it.
      (with-redefs [group/append! (fn [children child]
                                    (append! children child)
                                    (when (identical? middle child)
                                      (group/close! middle :late)))]
        (is (= :thrum/closed (:type (ex-data (thrown (come! inner))))) kind))
      (is (group/empty-group? outer) kind))))

(deftest a-group-that-has-left-its-parent-again-before-it-has-a-child-or-a-member-comes-back
  (doseq [[kind come!] {:child #(group/add-child! % (task/latch "child"))
                        :member group/admit-member!}]
    (let [parent (group/group "parent" nil)
          child (group/group "child" parent)
          enters (atom 0)
          enter! @#'group/enter-parents!]
      (with-redefs [group/enter-parents! (fn [group]
                                           (enter! group)
                                           (when (= 1 (swap! enters inc)) (group/leave! group)))]
        (come! child))
      (is (group/holds? parent child) kind)
      (is (= (if (= :child kind) 1 0) (group/running child)) kind))))

(deftest a-group-in-which-a-member-starts-as-it-leaves-its-parent-stays
  (let [parent (group/group "parent" nil)
        child (group/group "child" parent)
        looks (atom 0)
        starting (reify Members
                   (added [_] 1)
                   (running [_] (if (= 1 (swap! looks inc)) 0 1))
                   (tasks [_] [])
                   (cancelAll [_ _]))]
    (group/admit-member! child)
    (.setMembers child starting)
    (is (nil? (group/leave! child)))
    (is (group/holds? parent child))))

(deftest the-end-of-a-parent-cancels-what-its-children-run
  (let [^Group parent (group/group "parent" nil)
        ^Group child (group/group "child" parent)
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
    (group/cancel! parent :over)
    (group/join! parent)
    (is (realized? ended))
    (is (= :over (group/end-reason child)))
    (is (= :thrum/closed (:type (ex-data (thrown (fork! child (fn [])))))))))

(deftest a-cancel-misses-no-child-that-comes-meanwhile
  (let [parent (group/group "parent" nil)
        child (group/group "child" parent)
        gate (promise)
        check-open! group/check-open!]
    (fork! child (fn [] @gate))
    (with-redefs [group/check-open! (fn [group]
                                      (check-open! group)
                                      (group/cancel! parent :over))]
      (is (= {:type :thrum/closed, :scope "child", :reason :over}
             (ex-data (thrown (fork! child (fn [] @gate)))))))
    (deliver gate :go)
    (group/join! parent)))

(deftest a-child-without-work-is-forgotten-by-its-parent
  (let [^Group parent (group/group "parent" nil), ^Group child (group/group "child" parent)]
    (dotimes [_ 50] @(fork! child (fn [] 1)))
    (group/join! parent)
    (is (empty? (.children parent)))
    (testing "and still ends with it"
      (group/close! parent :over)
      (is (= :thrum/closed (:type (ex-data (thrown (fork! child (fn []))))))))))

(deftest forks-and-ends-from-many-threads-lose-nobody
  (let [^Group parent (group/group "parent" nil)
        ^Group child (group/group "child" parent)
        done (CountDownLatch. 4)]
    (dotimes [_ 4]
      (.start (Thread. (fn [] (dotimes [_ 2000] (fork! child (fn []))) (.countDown done)))))
    (.await done)
    (group/join! child)
    (group/join! parent)
    (is (empty? (.children parent)))
    (is (empty? (.children child)))))

(deftest a-child-that-ends-as-a-join-is-about-to-park-wakes-it
  (let [group (group/group "s" nil), looks (atom 0)]
    (with-redefs [group/empty-group? (fn [_] (< 2 (long (swap! looks inc))))]
      (is (= :joined (gate/in-time 10000 #(do (group/join! group) :joined)))))))

(deftest a-join-keeps-the-interrupt-for-later
  (let [group (group/group "s" nil)
        gate (promise)
        running (promise)]
    (fork! group (fn [] (deliver running true) @gate))
    (let [[^Thread joiner outcome] (gate/start "joiner"
                                               #(do
                                                  (group/join! group)
                                                  (Thread/interrupted)))
          parked? #(and (= Thread$State/WAITING (.getState joiner)) (not (.isInterrupted joiner)))]
      @running
      (is (gate/eventually 10000 parked?))
      (.interrupt joiner)
      (is (gate/eventually 10000 parked?) "it goes on waiting")
      (is (not (realized? outcome)))
      (deliver gate true)
      (is (= {:value true} (deref outcome 10000 :stuck))))))

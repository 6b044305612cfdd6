(ns thrum.watch.rules-test
  "Each rule over made snapshots: one that must raise it, and one that nearly does."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is testing]]
   [thrum.watch.impl.environment :as environment]
   [thrum.watch.impl.frames :as frames]
   [thrum.watch.impl.locks :as locks]
   [thrum.watch.impl.rules :as rules]))

(set! *warn-on-reflection* true)

(def ^:private now 1000000000000)

(defn- ago [ms] (- (long now) (* 1000000 (long ms))))

(def ^:private stack
  (mapv frames/of-text
        ["java.base/java.lang.VirtualThread.park(VirtualThread.java:742)"
         "java.base/java.io.FileInputStream.read(FileInputStream.java:287)"
         "my.shop$fetch$fn__12.invoke(shop.clj:31)"
         "java.base/java.lang.VirtualThread.run(VirtualThread.java:460)"]))

(defn- task [tid & {:keys [parent state] :as facts}]
  (-> {:id (str "#" tid), :kind :task, :name (str "task-" tid), :state (or state :running)
       :parent parent, :since (or (:since facts) (ago 100))
       :thread (merge {:tid tid, :state :parked, :carrier nil, :stack stack} (:thread facts))}))

(defn- scope [id & {:as facts}]
  (merge {:id id, :kind :scope, :name id, :state :open, :parent nil, :since (ago 5000), :running 1}
         facts))

(defn- snapshot [nodes & {:as more}]
  (merge {:at now, :nodes nodes, :late-ms 0, :scheduler {:parallelism 2}} more))

(defn- raised [snapshot]
  (map (juxt :rule :id) (rules/conditions snapshot)))

(deftest a-thread-on-its-carrier-holds-it-and-a-parked-one-is-pinned
  (are [thread expected] (= expected (raised (snapshot [(task 7 :thread thread)])))
    {:carrier "worker-1", :state :runnable} [[:carrier-held "7 worker-1"]]
    {:carrier "worker-1", :state :parked} [[:pinned "7 worker-1"]]
    {:carrier "worker-1", :state :timed-parked} [[:pinned "7 worker-1"]]
    {:carrier "worker-1", :state :blocked} [[:pinned "7 worker-1"]]
    {:carrier nil, :state :runnable} []
    {:carrier nil, :state :parked} [])
  (is (= "task-7 was on its carrier, worker-1, at every look, last at my.shop/fetch (shop.clj:31)"
         (:sentence (first (rules/conditions
                             (snapshot [(task 7 :thread {:carrier "worker-1"
                                                         :state :runnable})])))))))

(deftest tasks-that-are-blocked-at-a-line
  (let [blocked-task (fn [tid & {:as facts}]
                       (task tid :thread (merge {:state :blocked, :carrier nil} facts)))
        at-line [[:blocked "my.shop/fetch (shop.clj:31)"]]]
    (are [expected nodes] (= expected (raised (snapshot nodes)))
      at-line [(blocked-task 7)]
      at-line [(blocked-task 7) (blocked-task 8) (task 9)]
      [] [(task 7 :thread {:state :runnable, :carrier nil})]
      [] [(blocked-task 7 :stack nil)])
    (is (= [[:starved "scheduler"]] (raised (snapshot [(blocked-task 7)] :late-ms 301))))
    (is (= (str "2 tasks have been blocked at a monitor for a second, one of them task-7 at "
                "my.shop/fetch (shop.clj:31); {:monitors? true} or the doctor names its holder "
                "(JDK 25)")
           (:sentence (first (rules/conditions (snapshot [(blocked-task 7) (blocked-task 8)]))))))))

(deftest a-scheduler-that-starts-nothing-is-starved
  (let [held (task 7 :thread {:carrier "worker-1", :state :runnable})
        starved (fn [late-ms] (->> (rules/conditions (snapshot [held] :late-ms late-ms))
                                   (filter #(= :starved (:rule %)))
                                   first))]
    (is (str/includes? (:sentence (starved 301)) "task-7 at my.shop/fetch (shop.clj:31)"))
    (is (= "my.shop/fetch (shop.clj:31)" (:frame (starved 301))))
    (is (nil? (starved 300))))
  (is (= (str "Virtual threads do not start: 2 carriers are held, by threads that the watch does"
              " not know: the doctor names them")
         (:sentence (first (rules/conditions (snapshot [] :late-ms 301)))))))

(deftest a-scope-that-waits-for-a-cancelled-task-is-stuck
  (are [facts expected]
    (= expected (raised (snapshot [(apply scope "pay-1" facts) (task 7 :parent "pay-1")])))
    [:state :cancelled, :reason :sibling-failed] [[:stuck-scope "pay-1 7"]]
    [:state :ended, :reason :ended] [[:stuck-scope "pay-1 7"]]
    [:state :cancelled, :reason :thrum/timeout, :deadline (ago 50)] [[:deadline-passed "pay-1"]]
    [:state :open] []))

(deftest a-cancelled-scope-whose-body-goes-on-is-stuck
  (let [body {:tid 3, :state :timed-parked, :stack stack}
        cancelled {:state :cancelled, :reason :sibling-failed, :thread body}
        node (fn [id & facts] (apply scope id (mapcat identity (apply merge cancelled facts))))]
    (are [nodes expected] (= expected (raised (snapshot nodes)))
      [(node "pay-1")] [[:stuck-scope "pay-1 3"]]
      [(node "pay-1" {:state :open})] []
      [(node "pay-1") (node "close-1" {:state :open, :closing? true})] []
      [(node "pay-1" {:thread nil})] []
      [(node "pay-1" {:thread (assoc body :queued? true)})] []
      [(node "pay-1" {:thread (assoc body :waits-for {:kind :children, :name "all-1"})})] []
      [(node "pay-1" {:reason :thrum/timeout, :deadline (ago 50)})] [[:deadline-passed "pay-1"]]
      [(node "pay-2" {:since (ago 50)}) (node "pay-1")] [[:stuck-scope "pay-2 3"]]
      [(node "pay-1") (node "pay-2" {:parent "pay-1"})] [[:stuck-scope "pay-2 3"]]
      [(node "pay-2" {:parent "pay-1"}) (node "pay-1")] [[:stuck-scope "pay-2 3"]]
      [(node "pay-1" {:thread nil}) (task 3 :parent "pay-1") (node "pay-2")]
      [[:stuck-scope "pay-1 3"]])
    (is (= (str "pay-1 waits for its body, which has not ended since its cancel,"
                " at FileInputStream.read, my.shop/fetch (shop.clj:31)")
           (:sentence (first (rules/conditions (snapshot [(node "pay-1")]))))))))

(deftest a-thread-that-waits-for-a-carrier-ignores-nothing
  (let [queued {:tid 7, :state :runnable, :queued? true, :stack stack}]
    (are [nodes] (= [] (raised (snapshot nodes)))
      [(scope "pay-1" :state :cancelled, :reason :sibling-failed)
       (task 7 :parent "pay-1", :thread queued)]
      [(scope "t-1" :deadline (ago 50), :thread queued)]
      [(scope "t-1" :deadline (ago 50)) (task 7 :parent "t-1", :thread queued)])))

(deftest the-sentence-of-a-stuck-scope-names-the-call-and-the-line
  (let [[{:keys [sentence frame]}]
        (rules/conditions (snapshot [(scope "pay-1" :state :cancelled) (task 7 :parent "pay-1")]))]
    (is (= (str "pay-1 waits for task-7, which has not ended since its interrupt,"
                " at FileInputStream.read, my.shop/fetch (shop.clj:31)")
           sentence))
    (is (= "my.shop/fetch (shop.clj:31)" frame))))

(deftest a-deadline-that-has-passed-while-the-body-runs
  (let [body {:tid 3, :state :runnable, :stack stack}]
    (are [facts expected] (= expected (raised (snapshot [(apply scope "t-1" facts)])))
      [:deadline (ago 50), :thread body] [[:deadline-passed "t-1"]]
      [:deadline (ago -50), :thread body] []
      [:deadline (ago 50), :thread body, :shield? true] []
      [:deadline nil, :thread body] []
      [:deadline (ago 50), :thread nil] []))
  (is (= [[:deadline-passed 8]]
         (map (juxt :rule (comp :thread :data))
              (rules/conditions
                (snapshot [(scope "t-1" :deadline (ago 50))
                           (task 7 :parent "t-1" :thread {:state :runnable, :queued? true})
                           (task 8 :parent "t-1")]))))
    "the first task waits for a carrier, the second does not"))

(defn- limiter [& {:as facts}]
  (merge {:id "l", :kind :limiter, :name "db", :permits 2, :in-use 2, :waiting 3, :owners {7 2}
          :askers [8]}
         facts))

(deftest a-limiter-with-more-waiters-than-permits-is-crowded
  (are [facts expected] (= expected (raised (snapshot [(limiter facts) (task 7)])))
    {} [[:crowded "l"]]
    {:kind :pool, :owners nil, :askers nil} [[:crowded "l"]]
    {:waiting 2, :owners {}} []
    {:in-use 1} [])
  (is (= (str "The limiter db has 3 waiters for 2 permits, held by task-7 (2) at my.shop/fetch"
              " (shop.clj:31)")
         (:sentence (first (rules/conditions (snapshot [(limiter) (task 7)]))))))
  (are [held-by end]
    (= (str "The data-source db has 3 waiters for 2 permits" end)
       (:sentence (first (rules/conditions
                           (snapshot [(limiter :kind :data-source :owners nil :held-by held-by)
                                      (task 7)])))))
    [{:thread "report-2/0", :ms 900} {:thread "report-2/1", :ms 90}]
    ", held by report-2/0, report-2/1"
    [{:thread "http", :thread-id 7, :ms 900} {:thread "http", :thread-id 9, :ms 90, :ended? true}]
    ", held by task-7 at my.shop/fetch (shop.clj:31), http, which has ended"
    [{:thread "", :thread-id 9, :ms 900}] ", held by thread 9"
    [{:thread ""}] ", held by a thread without a name"
    [] ""
    "anything" ""
    [7 {}] ""))

(deftest a-pool-whose-connections-do-not-come-back-is-crowded-by-one-waiter
  (let [condition (fn [& {:as facts}]
                    (first (rules/conditions (snapshot [(limiter (merge {:waiting 1} facts))]))))
        at (juxt :rule :after-ms)
        source #(condition :kind :data-source :owners nil :held-by %)]
    (is (nil? (condition)) "for how long its permits have been held is not known")
    (is (nil? (condition :waiting 0 :owners nil :held-by [{:thread "a", :ms 9000}
                                                          {:thread "b", :ms 9000}])))
    (is (= [:crowded 500] (at (source [{:thread "a", :ms 9000} {:thread "b", :ms 5000}]))))
    (is (nil? (source [{:thread "a", :ms 9000} {:thread "b", :ms 4999}])))
    (is (nil? (source [{:thread "a", :ms 9000}])) "the other connection is not open yet")
    (is (nil? (source [{:thread "a", :ms 9000} {:thread "b"}])))))

(deftest a-limiter-that-grants-nothing-for-long-is-crowded-by-one-waiter
  (let [conditions (fn [& {:as facts}]
                     (rules/conditions (snapshot [(limiter (merge {:waiting 1} facts)) (task 7)])))
        [{:keys [id sentence] :as stands} & others] (conditions :granted 17)]
    (is (nil? others))
    (is (= [:crowded 30000] ((juxt :rule :after-ms) stands)))
    (is (= (str "The limiter db has 1 waiter for 2 permits, and has granted none for half a minute,"
                " held by task-7 (2) at my.shop/fetch (shop.clj:31)")
           sentence))
    (is (= [id] (map :id (conditions :granted 17, :owners {}, :waiting 2))))
    (is (not= [id] (map :id (conditions :granted 18))) "its time begins anew")
    (is (= [] (conditions :granted 17, :waiting 0)))
    (is (= [] (conditions :granted 17, :in-use 1)))
    (is (= ["l" id] (map :id (conditions :granted 17, :waiting 3))) "more waiters than permits")))

(deftest a-data-source-is-not-reported-once-more-for-its-limiter
  (let [source (limiter :id "d", :kind :data-source, :owners nil)]
    (is (= ["d"] (map :id (rules/conditions (snapshot [source (limiter :granted 3)])))))
    (is (= ["d" "l"]
           (map :id (rules/conditions (snapshot [source (limiter :name "other")])))))))

(deftest the-stacks-of-those-who-have-connections-are-taken
  (is (= [[7]] (map (comp :holders :data)
                    (rules/conditions
                      (snapshot [(limiter :owners nil
                                          :held-by [{:thread "http", :thread-id 7, :ms 900}])])))))
  (testing "of no more than a hundred holders, all of which run"
    (let [crowd (limiter :permits 10000, :in-use 10000, :waiting 10001
                         :owners (zipmap (range 10000) (repeat 1)))
          running (map task (range 1 9999 9))
          [{:keys [data]} & others] (rules/conditions (snapshot (cons crowd running)))]
      (is (nil? others))
      (is (= 100 (count (:holders data))))
      (is (every? #(= 1 (mod % 9)) (:holders data))))))

(defn- waits [tid on]
  (task tid :thread {:tid tid, :waits-for {:kind :task, :name (str "task-" on), :tid on}}))

(deftest a-cycle-of-derefs
  (are [edges expected]
    (= expected (raised (snapshot (map #(apply waits %) edges))))
    [[1 2] [2 1]] [[:cycle "1 2"]]
    [[1 2] [2 3] [3 1]] [[:cycle "1 2 3"]]
    [[1 2] [2 3] [3 4]] []
    [[4 1] [1 2] [2 1]] [[:cycle "1 2"]]
    [[1 1]] [[:cycle "1"]])
  (is (= [] (raised (snapshot [(waits 1 2) (assoc-in (waits 2 1) [:thread :state] :timed-parked)])))
    "one waits for a time"))

(deftest a-cycle-through-a-scope-that-waits-for-its-task
  (let [body {:tid 3, :state :parked, :stack stack, :waits-for {:kind :children, :name "s-1"}}
        fork #(assoc (waits 7 %) :parent "s-1")
        outer (task 3 :thread body)]
    (is (= [[:cycle "3 7"]] (raised (snapshot [outer (scope "s-1" :thread body) (fork 3)]))))
    (is (= [] (raised (snapshot [outer (scope "s-1" :thread body) (fork 4)]))))))

(deftest cycles-are-found-among-many
  (is (= [] (rules/cycles {1 [2 3], 3 [2]})) "two ways to one end")
  (is (= [] (rules/cycles (into {} (for [i (range 10000)] [i [(inc i)]])))))
  (is (= 1 (count (rules/cycles (into {} (for [i (range 100)] [i [(mod (inc i) 100)]])))))))

(defn- crowd [n age-ms]
  (for [i (range n)] (task (+ 100 (long i)) :since (ago age-ms))))

(deftest a-task-ten-times-older-than-the-others-at-its-stack
  (let [old (fn [n others-ms age-ms]
              (map :id (rules/old-tasks-in
                         (snapshot (conj (crowd n others-ms) (task 7 :since (ago age-ms))))
                         #(if (= 7 (:tid %)) age-ms others-ms))))]
    (is (= ["7"] (old 20 500 6000)))
    (is (= [] (old 20 300 4900)) "younger than five seconds")
    (is (= [] (old 20 700 6900)) "nine times")
    (is (= [] (old 18 500 6000)) "too few to compare with")))

(deftest a-task-that-was-collected-is-a-leak
  (is (= [[:leaked "future-1"]] (raised (snapshot [] :leaked [{:name "future-1"}]))))
  (is (= [] (raised (snapshot [] :leaked [])))))

;; Over time

(defn- after [ms-and-conditions]
  (reduce (fn [state [ms conditions]] (rules/advance state (ago (- 10000 (long ms))) conditions))
          {}
          ms-and-conditions))

(deftest a-condition-is-a-lint-when-it-has-held-for-long-enough
  (let [held {:rule :carrier-held, :id "7", :after-ms 1000, :sentence "x"}
        at #(ago (- 10000 (long %)))
        lints (fn [samples ms] (map :rule (rules/lints (after samples) (at ms))))]
    (is (= [:carrier-held] (lints [[0 [held]] [500 [held]] [1000 [held]]] 1000)))
    (is (= [] (lints [[0 [held]] [500 [held]] [999 [held]]] 999)))
    (is (= [] (lints [[0 [held]] [500 []] [1000 [held]] [1400 [held]]] 1400)))
    (is (= [] (lints [[0 [held]] [5000 [held]]] 5000)) "two samples prove little")))

(deftest a-lint-says-for-how-long-by-a-clock-of-its-own
  (let [held {:rule :carrier-held, :id "7", :after-ms 100, :sentence "x"}
        at #(* 1000000 (long %))
        advance (fn [state [ms now-ms]] (rules/advance state (at ms) (at now-ms) [held]))
        state (reduce advance {} [[0 0] [50 1000] [100 3000]])]
    (is (= [4000] (map :since-ms (rules/lints state (at 100) (at 4000)))))
    (is (= [] (rules/lints state (at 99) (at 4000))))))

;; Monitors, from the JDK's dump

(defn- holding [tid owned blocked-on & {:as facts}]
  (merge {:tid tid, :name (str "t" tid), :virtual? true, :state (if blocked-on :blocked :parked)
          :stack stack, :owned (set owned), :blocked-on blocked-on}
         facts))

(deftest monitors-held-in-a-circle-or-by-a-thread-that-does-not-run
  (are [threads expected] (= expected (map (juxt :rule :id) (locks/conditions threads)))
    [(holding 1 ["a"] "b") (holding 2 ["b"] "a")] [[:cycle "1 2"]]
    [(holding 1 ["a"] "b") (holding 2 ["b"] nil)] [[:lock-holder "b"]]
    [(holding 1 ["a"] "b") (holding 2 ["b"] nil :state :runnable)] []
    [(holding 1 ["a"] "b") (holding 2 ["b"] nil :carrier "worker-1")] []
    [(holding 1 ["a"] "b") (holding 2 ["b"] "c") (holding 3 ["c"] nil :state :runnable)]
    [[:lock-holder "b"]]
    [(holding 1 ["a"] nil) (holding 2 ["b"] nil)] []
    [(holding 1 ["a"] "a")] []))

(deftest a-thread-in-object-wait-has-left-a-monitor-that-another-holds
  (let [in-wait (frames/of-text "java.base/java.lang.Object.wait0(Native Method)")
        waits (holding 1 ["a"] nil :stack [in-wait])
        blocked (holding 3 [] "a")]
    (are [holder expected]
      (= expected
         (mapcat #(map :sentence (locks/conditions %))
                 [[waits holder blocked] [holder waits blocked]]))
      (holding 2 ["a"] nil :state :runnable) []
      (holding 2 ["a"] nil)
      (repeat 2 (str "A thread waits for a, held by t2, which does not run: parked at my.shop/fetch"
                     " (shop.clj:31)")))))

;; Versions

(deftest versions-that-are-known-for-something
  (are [facts expected]
    (= expected (map :id (environment/conditions (merge {:libraries {}} facts))))
    {:jdk [25]} ["JDK-8369227" "JDK-8373120"]
    {:jdk [25 0 2]} ["JDK-8369227" "JDK-8373120"]
    {:jdk [25 0 3]} ["JDK-8373120"]
    {:jdk [25 0 4]} []
    {:jdk [26]} ["JDK-8369227" "JDK-8373120"]
    {:jdk [26 0 1]} []
    {:jdk [21 0 8]} []
    {:jdk [24 0 2]} []
    {:jdk [21], :libraries {"pgjdbc" [42 7 7]}} ["pgjdbc"]
    {:jdk [21], :libraries {"pgjdbc" [42 7 8]}} []
    {:jdk [23 0 2], :libraries {"pgjdbc" [42 7]}} ["pgjdbc"]
    {:jdk [24], :libraries {"pgjdbc" [42 7 7]}} []
    {:jdk [21], :libraries {"jackson-core" [2 15 2]}} ["jackson-core"]
    {:jdk [21], :libraries {"jackson-core" [2 17 1]}} ["jackson-core"]
    {:jdk [21], :libraries {"jackson-core" [2 17]}} []
    {:jdk [21], :libraries {"jackson-core" [2 17 0]}} []
    {:jdk [21], :libraries {"jackson-core" [3 0 1]}} []))

(deftest libraries-are-found-on-a-class-path
  (are [class-path expected]
    (= expected (map :id (environment/conditions (environment/facts-of "21.0.8" class-path))))
    "/m2/postgresql-42.7.7.jar" ["pgjdbc"]
    "lib/a.jar:postgresql-42.2.29.jre7.jar" ["pgjdbc"]
    "C:\\lib\\a.jar;C:\\lib\\postgresql-42.7.7.jar" ["pgjdbc"]
    "postgresql-42.7.7.jar:jackson-core-2.15.2.jar" ["jackson-core" "pgjdbc"]
    "/m2/postgresql-42.7.8.jar" []
    "/m2/my-postgresql-42.7.7.jar:/m2/postgresql-embedded-2.1.jar" []
    "/m2/jackson-core-3.0.1.jar:/m2/jackson-core-asl-1.9.13.jar" []
    nil []))

(deftest a-version-is-read-from-its-text
  (are [text expected] (= expected (environment/version text))
    "25.0.3+9-LTS" [25 0 3]
    "26+36" [26]
    "42.7.8" [42 7 8]))

(ns thrum.watch.impl.rules
  "What is wrong in a snapshot, as conditions: {:rule, :id, :sentence, :frame, :data, :after-ms}. A
  condition becomes a lint when it has held in every snapshot for :after-ms. Some have :still?, a
  function that says between two snapshots whether it holds.

  Beside what thrum.watch.impl.snapshot/take! returns a snapshot has :late-ms - how long the
  scheduler has not started a thread that was given to it; :scheduler - {:parallelism, :mounted,
  :queued}, or nil."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.watch.impl.frames :as frames]
   [thrum.watch.impl.groups :as groups]
   [thrum.watch.impl.tree :as tree]))

(set! *warn-on-reflection* true)

(def all
  "The rules, also those of thrum.watch.impl.locks and environment, in the order of the guide."
  [:carrier-held :pinned :starved :blocked :lock-holder :cycle :stuck-scope :deadline-passed
   :crowded :old :leaked :jdk-hang :thread-local-pool :pgjdbc])

(defn- seconds [ms]
  (let [ms (long ms)]
    (if (< ms 10000)
      (str (/ (Math/round (/ ms 100.0)) 10.0) " s")
      (str (quot ms 1000) " s"))))

(defn- many [n thing]
  (str n " " thing (when (not= 1 n) "s")))

(defn condition
  "Returns a condition, whose line is that of the stack; sentence: its parts."
  [rule id after-ms stack data & sentence]
  {:rule rule, :id (str id), :after-ms after-ms, :frame (frames/line stack), :data data
   :sentence (apply str sentence)})

(defn- seen-at [stack]
  (if (seq stack) (str " at " (frames/line stack)) ""))

;; Carriers

(defn- mounted [threads]
  (filter :carrier threads))

(defn- pinned? [{:keys [state]}]
  (not= :runnable state))

(defn held-carriers
  "Returns the conditions of threads that stay on their carriers, as far as looks say; one that is
  parked there is pinned."
  [threads]
  (for [{:keys [tid name carrier state stack] :as thread} (mounted threads)
        :let [id (str tid " " carrier)]]
    (merge
      (meta thread)
      (if (pinned? thread)
        (condition :pinned id 500 stack {:thread tid, :carrier carrier, :state state}
          name " is pinned: it waits on its carrier, " carrier "," (seen-at stack))
        (condition :carrier-held id 1000 stack {:thread tid, :carrier carrier}
          name " was on its carrier, " carrier ", at every look"
          (when (seq stack) ", last") (seen-at stack))))))

(defn name-and-line
  "Returns the name of a thread, and the line where it is, if it has one."
  [{:keys [name stack]}]
  (str name (seen-at stack)))

(defn- late? [{:keys [late-ms]}]
  (and late-ms (< 300 (long late-ms))))

(defn- starved
  "All carriers are mounted, and nothing that is queued starts."
  [{:keys [late-ms scheduler] :as snapshot} threads]
  (when (late? snapshot)
    (let [held (mounted threads), {:keys [parallelism queued]} scheduler]
      [(condition :starved "scheduler" 500 (:stack (first held))
         {:late-ms late-ms, :queued queued, :carriers parallelism, :held (mapv :tid held)}
         "Virtual threads do not start: " (or parallelism "all") " carriers are held, by "
         (if (seq held)
           (str/join ", " (map name-and-line (take 4 held)))
           "threads that the watch does not know: the doctor names them")
         (when queued
           (str "; " (many queued "thread") (if (= 1 queued) " is" " are") " queued")))])))

;; Monitors

(defn- blocked? [{{:keys [state carrier stack]} :thread}]
  (and (= :blocked state) (nil? carrier) (seq stack)))

;; Looked at so often, a lock that goes from hand to hand is seen to do so.
(def ^:private ^:const most-looked-at 100)

(defn- still-blocked? [nodes]
  (let [still (keep (comp :still? meta :thread) (take most-looked-at nodes))]
    (fn [] (every? #(%) still))))

(defn- blocked-at [line [{:keys [name thread]} :as nodes]]
  (assoc (condition :blocked line 1000 (:stack thread)
           {:waiting (mapv (comp :tid :thread) (take most-looked-at nodes))
            :count (count nodes)}
           (many (count nodes) "task")
           (if (next nodes) " have" " has")
           " been blocked at a monitor for a second, "
           (when (next nodes) "one of them ")
           name (seen-at (:stack thread))
           "; {:monitors? true} or the doctor names its holder (JDK 25)")
         :still? (still-blocked? nodes)))

(defn- blocked
  "Tasks at the same line that wait for monitors, none of which has gone on. Where the scheduler is
  late, the holder may wait for a carrier."
  [{:keys [nodes] :as snapshot} _]
  (when-not (late? snapshot)
    (for [[line alike] (group-by (comp frames/line :stack :thread) (filter blocked? nodes))]
      (blocked-at line alike))))

;; Scopes

;; There may be a hundred thousand tasks: of most rules none is meant.
(defn- tasks-of
  "Returns the tasks among the nodes that belong to one of these ids, by id."
  [ids nodes]
  (when (seq ids)
    (group-by :parent (filter #(and (= :task (:kind %)) (contains? ids (:parent %))) nodes))))

(defn- with-tasks
  "Returns [node tasks] for each of the nodes that (wanted node) is true of."
  [wanted nodes]
  (let [wanted (filterv wanted nodes)
        tasks (tasks-of (into #{} (map :id) wanted) nodes)]
    (map (juxt identity (comp tasks :id)) wanted)))

;; A thread that waits for a carrier ignores nothing: that carriers are held is another rule.

(defn- cancelled? [{:keys [state reason deadline]}]
  (and (#{:cancelled :ended} state) (not (and deadline (= :thrum/timeout reason)))))

(defn- stuck [{:keys [id reason]} what {:keys [stack tid]} data]
  (condition :stuck-scope (str id " " tid) 500 stack
    (assoc data :scope id, :thread tid, :reason reason)
    id " waits for " what
    (when (seq stack) (str ", at " (frames/call (frames/leaf stack))))
    (when-some [line (frames/line stack)] (str ", " line))))

(defn- stuck-tasks [{:keys [nodes at]}]
  (for [[scope tasks] (with-tasks cancelled? nodes)
        {:keys [name thread since]} tasks
        :when (not (:queued? thread))]
    (stuck scope (str name ", which has not ended since its interrupt") thread
           {:task name, :age-ms (tree/age-ms since at)})))

(defn- stuck-bodies
  "Where a thread is in the bodies of several scopes, of the innermost. A thread that closes what a
  scope has used is in none. known?: a set of the threads that need no further sentence."
  [{:keys [nodes]} known?]
  (let [closes? (into #{} (comp (filter :closing?) (map (comp :tid :thread))) nodes)
        stuck? (fn [{{:keys [tid queued? waits-for]} :thread, :as node}]
                 (and tid
                      (= :scope (:kind node))
                      (cancelled? node)
                      (not queued?)
                      (not= :children (:kind waits-for))
                      (not (closes? tid))
                      (not (known? tid))))
        tid #(:tid (:thread %))
        scopes (filterv stuck? nodes)
        ;; Scopes that begin within a tick have one :since.
        around? (into #{} (map (juxt :parent tid)) scopes)
        innermost (remove #(around? [(:id %) (tid %)]) scopes)]
    (for [{:keys [thread] :as scope} (vals (into {} (map (juxt tid identity))
                                                 (sort-by :since innermost)))]
      (stuck scope "its body, which has not ended since its cancel" thread {}))))

(defn- stuck-scopes
  "A scope that was cancelled, or has ended, and waits for a task, or its body, that goes on."
  [snapshot _]
  (let [of-tasks (stuck-tasks snapshot)]
    (concat of-tasks
            (stuck-bodies snapshot (into #{} (map (comp :thread :data)) of-tasks)))))

(defn- deadlines-passed
  "A deadline that passed while its body, or a task, goes on."
  [{:keys [nodes at]} _]
  (let [passed? (fn [{:keys [deadline shield?]}]
                  (and deadline (not shield?) (neg? (long (tree/ms-between at deadline)))))]
    (for [[{:keys [id deadline thread]} tasks] (with-tasks passed? nodes)
          :let [threads (if thread [thread] (map :thread tasks))
                {:keys [stack tid]} (first (remove :queued? threads))]
          :when tid]
      (condition :deadline-passed id 500 stack
        {:scope id, :thread tid, :late-ms (tree/ms-between deadline at)}
        "The deadline of " id " has passed, and its "
        (if thread "body" "task") " still runs" (seen-at stack)))))

;; Limiters and pools

(defn- held-by-maps
  "Returns those of :held-by, a fact of thrum.jdbc's."
  [{:keys [held-by]}]
  (when (sequential? held-by)
    (filter #(and (map? %) (string? (:thread %))) held-by)))

;; The stack of each is taken at each look.
(def ^:private ^:const most-holders 100)

(defn- holder-ids [{:keys [owners] :as limiter} by-tid]
  (into []
        (comp cat (filter int?) (take most-holders))
        [(filter by-tid (keys owners)) (map :thread-id (held-by-maps limiter))]))

(defn- named-holder
  "Returns the name of a thread of :held-by as the watch knows it: that of a server's, or none, says
  little."
  [{:keys [thread thread-id ended?]} by-tid]
  (if-some [{:keys [name stack]} (by-tid thread-id)]
    (str name (seen-at stack))
    (str (cond
           (not (str/blank? thread)) thread
           thread-id (str "thread " thread-id)
           :else "a thread without a name")
         (when ended? ", which has ended"))))

(defn- holders [{:keys [owners] :as limiter} by-tid]
  (let [held (concat (keep (fn [[tid n]]
                             (when-some [{:keys [name stack]} (by-tid tid)]
                               (str name (when (< 1 (long n)) (str " (" n ")")) (seen-at stack))))
                           owners)
                     (map #(named-holder % by-tid) (held-by-maps limiter)))]
    (if (seq held)
      (str ", held by " (str/join ", " (take 3 (distinct held))))
      "")))

(defn- full? [{:keys [permits in-use waiting]}]
  (and permits in-use waiting (<= (long permits) (long in-use)) (pos? (long waiting))))

(defn- crowded? [{:keys [permits waiting]}]
  (< (long permits) (long waiting)))

(def ^:private ^:const long-held-ms 5000)

(defn- long-held?
  "True if :held-by has a thread for each permit, and each has had its one for long."
  [{:keys [in-use] :as limiter}]
  (let [held (held-by-maps limiter)]
    (and (= in-use (count held))
         (every? #(and (int? (:ms %)) (<= (long long-held-ms) (long (:ms %)))) held))))

(def ^:private ^:const no-grant-ms 30000)

(defn- ways
  "Returns the ways in which a limiter with waiters is crowded: the id of each, for how many ms it
  must hold, and what is said of it. How often a permit has been granted is in the id of the second:
  its time begins anew with each."
  [{:keys [id granted] :as limiter}]
  (cond-> []
    (or (crowded? limiter) (long-held? limiter)) (conj [id 500 ""])
    granted (conj [(str id " " granted) no-grant-ms ", and has granted none for half a minute"])))

(defn- without-own
  "Leaves out the limiters of data sources, which show the same."
  [nodes]
  (let [what (juxt :name :permits)
        sources (into #{} (comp (filter #(= :data-source (:kind %))) (map what)) nodes)]
    (remove #(and (= :limiter (:kind %)) (sources (what %))) nodes)))

(defn- by-tid [threads]
  (into {} (map (juxt :tid identity)) threads))

(defn- crowded
  "A limiter, or what registered itself with the same facts, with more waiters than permits; or with
  any, where none of its permits comes back for long."
  [{:keys [nodes] :as snapshot} _]
  (when-some [limiters (seq (without-own (filter full? nodes)))]
    (let [by-tid (by-tid (groups/threads snapshot))]
      (for [{:keys [id kind name permits in-use waiting askers] :as limiter} limiters
            [way after-ms also] (ways limiter)
            :let [holder-ids (holder-ids limiter by-tid)]]
        (condition :crowded way after-ms
          (some #(:stack (by-tid %)) (concat holder-ids askers))
          {:id id, :permits permits, :in-use in-use, :waiting waiting, :holders holder-ids
           :held-by (mapv :thread (held-by-maps limiter))}
          "The " (clojure.core/name kind) " " name " has " (many waiting "waiter") " for "
          (many permits "permit") also (holders limiter by-tid))))))

;; Cycles of derefs

(defn- waits-in-thrum? [{:keys [waits-for]}]
  (contains? #{:task :children} (:kind waits-for)))

(defn- waits-of
  "Returns what the thread waits for, as thread ids: a task, or the tasks of a scope."
  [{:keys [waits-for]} tasks]
  (if (= :task (:kind waits-for))
    (some-> (:tid waits-for) list)
    (keep (comp :tid :thread) (tasks (:name waits-for)))))

(defn- from-least [ids]
  (let [n (count (take-while #(not= % (apply min ids)) ids))]
    (into (subvec ids n) (subvec ids 0 n))))

;; Depth first, without recursion: path - the ids on the way here, at - their places in it; more -
;; for each, where it leads besides. An id is left for good when all that it leads to has been seen.
(defn- search [edges start seen]
  (loop [path [start], at {start 0}, more [(edges start)], seen (conj seen start), found []]
    (if (empty? path)
      [seen found]
      (let [[id & others] (peek more), rest-of-them (conj (pop more) others)]
        (cond
          (nil? id) (recur (pop path) (dissoc at (peek path)) (pop more) seen found)
          (at id) (recur path at rest-of-them seen (conj found (from-least (subvec path (at id)))))
          (seen id) (recur path at rest-of-them seen found)
          :else (recur (conj path id)
                       (assoc at id (count path))
                       (conj rest-of-them (edges id))
                       (conj seen id)
                       found))))))

(defn cycles
  "Returns the cycles among the edges, a map from id to ids, each once, as a vector that starts with
  its least id. Of cycles that share an id at least one."
  [edges]
  (loop [[start & starts] (keys edges), seen #{}, found []]
    (cond
      (nil? start) (vec (distinct found))
      (seen start) (recur starts seen found)
      :else (let [[seen more] (search edges start seen)] (recur starts seen (into found more))))))

(defn- deref-cycles
  "Threads that wait for anything else, or for a time, are in no cycle."
  [{:keys [nodes]} threads]
  (let [by-tid (by-tid (filter #(and (waits-in-thrum? %) (not= :timed-parked (:state %))) threads))
        waited-for (into #{} (keep (comp :name :waits-for)) (vals by-tid))
        tasks (tasks-of waited-for (filter #(waits-in-thrum? (:thread %)) nodes))
        edges (into {}
                    (keep (fn [[tid thread]]
                            (when-some [ids (seq (filter by-tid (waits-of thread tasks)))]
                              [tid ids])))
                    by-tid)]
    (for [ids (cycles edges) :let [members (map by-tid ids)]]
      (condition :cycle (str/join " " (sort ids)) 500 (:stack (first members)) {:threads (vec ids)}
        "A cycle: " (str/join ", " (map #(str (:name %) " waits" (seen-at (:stack %))) members))
        ", each for the next"))))

;; Old tasks

(defn- median [sorted]
  (nth sorted (quot (count sorted) 2)))

(def ^:private least-old-ms 5000)

(defn old-tasks-in
  "Returns the conditions of a snapshot with stacks: tasks that have been seen for ten times the
  median age of those at the same stack, of twenty at least. seen-ms: says of a thread for how many
  ms its task has been seen."
  [{:keys [at] :as snapshot} seen-ms]
  (for [[stack alike] (group-by :stack (filter #(and (:stack %) (:since %))
                                               (groups/threads snapshot)))
        :when (<= 20 (count alike))
        :let [age #(long (tree/ms-between (:since %) at)), usual (median (sort (map age alike)))
              least (max (long least-old-ms) (* 10 (max 100 (long usual))))]
        {:keys [tid name] :as thread} alike
        :when (< least (long (seen-ms thread)))]
    (condition :old tid 0 stack {:thread tid, :age-ms (age thread), :median-ms usual}
      name " is " (seconds (age thread)) " old, ten times the median (" (seconds usual) ") of "
      (count alike) " tasks" (seen-at stack))))

;; Leaks

(defn- leaked [{:keys [leaked]} _]
  (for [{:keys [name stack]} leaked]
    (condition :leaked name 0 stack {:task name}
      name " waited for something that nothing else refers to: it never ended"
      (seen-at stack))))

(def ^:private rules
  [#(held-carriers %2) starved blocked stuck-scopes deadlines-passed crowded deref-cycles leaked])

(defn- matters?
  "False for a thread that none of the rules looks at for its own sake."
  [{{:keys [carrier] :as thread} :thread}]
  (or carrier (waits-in-thrum? thread)))

(defn conditions
  "Returns the conditions of a snapshot."
  [snapshot]
  (let [threads (groups/threads (update snapshot :nodes (partial filter matters?)))]
    (into [] (mapcat #(% snapshot threads)) rules)))

;; From conditions to lints

(defn advance
  "Returns the state after one more snapshot's conditions, taken at this time: a map from rule and
  id to the condition with :since, from when on it has held in every snapshot, :seen, in how many,
  and :began, which is :since by the clock of now, where that is another."
  ([state at conditions] (advance state at at conditions))
  ([state at now conditions]
   (into {}
         (map (fn [{:keys [rule id] :as condition}]
                (let [{:keys [since began seen]} (state [rule id])]
                  [[rule id]
                   (assoc condition
                     :since (or since at)
                     :began (or began now)
                     :seen (inc (long (or seen 0))))])))
         conditions)))

(defn- held? [at {:keys [since seen after-ms]}]
  (and (<= (long after-ms) (long (tree/ms-between since at)))
       (or (zero? (long after-ms)) (< 2 (long seen)))))

(defn lints
  "Returns the lints of a state at this time, in the order of rule and id. now: as for advance."
  ([state at] (lints state at at))
  ([state at now]
   (->> (vals state)
        (filter #(held? at %))
        (map (fn [{:keys [began] :as condition}]
               (-> (select-keys condition [:rule :id :sentence :frame :data])
                   (assoc :since-ms (tree/ms-between began now)))))
        (sort-by (juxt :rule :id))
        vec)))

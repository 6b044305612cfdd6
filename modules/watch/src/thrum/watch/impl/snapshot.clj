(ns thrum.watch.impl.snapshot
  "Takes a picture of what runs: the only room that looks at live things. All others work on what it
  returns, which is plain data.

  A snapshot: :at - of System/nanoTime; :requests - ended, by status; :ended - as
  thrum.spi.watch/ended; :leaked - the last hundred, as leaked!;
  :nodes - a vector of maps:
    :id; :kind - :task, :scope, :fan-out, :joiner, :executor, :group, :limiter, or a registered one;
    :name; :state; :parent - an id, or nil; :since and :deadline - of System/nanoTime, or nil;
    :thread - of a task, or of the body of a scope: {:tid, :state, :carrier, :waits-for, :stack},
      and :queued?, true where it waits for a carrier;
    and other facts of thrum.spi.watch/facts."
  {:no-doc true}
  (:require
   [clojure.java.io :as io]
   [clojure.walk :as walk]
   [thrum.spi.watch :as watch]
   [thrum.watch.impl.frames :as frames])
  (:import
   (java.util LinkedHashMap)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; Threads

(def ^:private states
  {Thread$State/NEW :new, Thread$State/RUNNABLE :runnable, Thread$State/BLOCKED :blocked
   Thread$State/WAITING :parked, Thread$State/TIMED_WAITING :timed-parked
   Thread$State/TERMINATED :ended})

(defn- carrier-of
  "Returns the name of the carrier that a virtual thread is mounted on, or nil. Its toString is the
  one public place that has it: VirtualThread[#9,name]/runnable@ForkJoinPool-1-worker-1."
  [^Thread thread]
  (when (.isVirtual thread)
    (let [text (.toString thread)
          at (.indexOf text "@" (inc (.lastIndexOf text "]/")))]
      (when (pos? at) (subs text (inc at))))))

(defn- waits-for
  "Returns what the thread is parked for, as {:kind, :name, :tid}, or nil."
  [^Thread thread]
  (when-some [blocker (LockSupport/getBlocker thread)]
    (if-some [{:keys [thread] :as title} (watch/title blocker)]
      (cond-> (dissoc title :thread) thread (assoc :tid (.threadId ^Thread thread)))
      {:kind :lock, :name (.getName (class blocker))})))

(defn stack
  "Returns the frames of a thread, innermost first."
  [^Thread thread]
  (mapv frames/of-element (.getStackTrace thread)))

(defn thread-facts
  "Returns what a live thread is doing; stack?: a function of these facts, true where the stack is
  wanted. Of one that is on a carrier, or blocked, :still? in its metadata says whether it is."
  [^Thread thread stack?]
  (let [{:keys [state carrier] :as facts}
        {:tid (.threadId thread), :state (states (.getState thread))
         :carrier (carrier-of thread), :waits-for (waits-for thread)}]
    (cond-> facts
      (stack? facts) (assoc :stack (stack thread))
      (and (.isVirtual thread) (= :runnable state) (nil? carrier)) (assoc :queued? true)
      ;; In metadata: a snapshot itself holds no live thing.
      (= :blocked state) (with-meta {:still? #(= Thread$State/BLOCKED (.getState thread))})
      carrier (with-meta {:still? #(= carrier (carrier-of thread))}))))

;; Nodes

(defn- known-since [^long since]
  (when-not (zero? since) since))

(defn- task-id [^Thread thread]
  (str "#" (.threadId thread)))

(defn- task-node [{:keys [name state thread since index]} parent stack?]
  (when thread
    {:id (task-id thread)
     :kind :task
     :name name
     :state state
     :parent parent
     :since (known-since since)
     :index index
     :thread (thread-facts thread stack?)}))

(defn- over? [{:keys [running body-ended?]} kind]
  (and (zero? (long running)) (or body-ended? (not= :scope kind))))

(defn reason-shown
  "Returns a keyword or string: a reason may be any object, and values are not shown."
  [reason]
  (when (some? reason)
    (if (or (keyword? reason) (string? reason)) reason (.getName (class reason)))))

;; Among 50 000 things two are likely to have one hash.
(defn- id-of [{:keys [kind thing since]}]
  (str (name kind) "@" (System/identityHashCode thing) "/" since))

(defn- group-node
  "Returns the node of a group; within: the thing that it belongs to, or nil."
  [kind {:keys [parent opener] :as facts} since thread within]
  (-> (select-keys facts [:name :state :deadline :running :started :body-ended? :shield? :closing?])
      (assoc :id (:name facts)
             :reason (reason-shown (:reason facts))
             :kind kind
             ;; The facts of a parent take as long as it has children, which come here each.
             :parent (or (some-> parent watch/title :name)
                         (some-> opener watch/title :thread task-id)
                         (some-> within id-of))
             :since (known-since since)
             :thread thread)))

(defn- limiter-node [{:keys [since] :as entry} facts]
  (let [tid #(.threadId ^Thread %)]
    (-> (dissoc facts :limiter)
        (assoc :id (id-of entry)
               :kind :limiter
               :name (or (:limiter facts) "limiter")
               :state (if (pos? (long (:waiting facts))) :crowded :open)
               :since since
               :askers (mapv tid (:askers facts))
               :owners (update-keys (:owners facts) tid)))))

;; Foreign facts: rules count with these, and must go on where they are nothing to count with.
(def ^:private numbers [:permits :in-use :waiting :rejected :deadline])

(defn- finite [x]
  (if (and (float? x) (not (Double/isFinite (double x)))) (str x) x))

(defn- unknown [t]
  {:state :unknown, :error (str (class t))})

;; What is not realized yet may throw: here, and not where it is read.
(defn- described [describe thing]
  (try
    (let [facts (walk/postwalk finite
                  (dissoc (describe thing) :children :thread :askers :owners))]
      (reduce (fn [facts k] (if (int? (get facts k 0)) facts (dissoc facts k))) facts numbers))
    (catch Throwable t (unknown t))))

;; What a task makes belongs to that task: ids of threads that run none are no nodes.
(defn- other-node [{:keys [kind thing describe since thread] :as entry}]
  (let [facts (described describe thing)]
    (merge {:name (name kind), :state :open, :parent (some-> thread task-id)}
           facts
           {:id (id-of entry), :kind kind, :since since})))

(defn- children-nodes [{:keys [children name]} stack?]
  (keep (fn [child]
          (let [facts (watch/facts child)]
            (cond
              (contains? facts :thread) (task-node facts name stack?)
              (:group facts) (group-node :group facts 0 nil nil)
              :else nil)))
        children))

(defn- group-nodes [{:keys [kind since within ^Thread thread]} facts stack?]
  (when-not (over? facts kind)
    (cons (group-node kind facts since
            (when (and (= :scope kind) (not (:body-ended? facts)) (some-> thread .isAlive))
              (thread-facts thread stack?))
            within)
          (children-nodes facts stack?))))

(defn- nodes-of [{:keys [kind thing] :as entry} stack?]
  (let [facts (watch/facts thing)]
    (cond
      (nil? facts) [(other-node entry)]
      (:group facts) (doall (group-nodes entry facts stack?))
      (= :task kind) (some-> (task-node facts nil stack?) list)
      (= :limiter kind) [(limiter-node entry facts)]
      :else [(other-node entry)])))

;; One thing that cannot be looked at does not end the look.
(defn- thing-nodes [{:keys [kind since] :as entry} stack?]
  (try
    (nodes-of entry stack?)
    (catch Throwable t
      [(assoc (unknown t) :id (id-of entry) :kind kind :name (name kind) :since since)])))

(defn- better
  "Of two nodes with one id the registered one: a group that was met as a child knows less."
  [a b]
  (if (= :group (:kind a)) b a))

(defn- unique [nodes]
  (let [seen (LinkedHashMap.)]
    (doseq [{:keys [id] :as node} nodes]
      (.put seen id (if-some [other (.get seen id)] (better other node) node)))
    (vec (.values seen))))

;; Loaded only where thrum.server is on the class path: watching does not need it.
(defn of-exchanges
  "Returns the var of that name, of a namespace about requests; nil where there is no thrum.server."
  [symbol]
  (when (io/resource "thrum/server/spi/exchanges.clj") (requiring-resolve symbol)))

(def ^:private requests
  (delay
    (when-some [observe! (of-exchanges 'thrum.watch.impl.exchanges/observe!)] (observe!))
    {:running (or (of-exchanges 'thrum.watch.impl.exchanges/registered) (constantly nil))
     :ended (or (of-exchanges 'thrum.watch.impl.exchanges/ended) (constantly nil))}))

(defn watch-requests!
  "Counts the requests of thrum.server from now on, where it is on the class path."
  []
  @requests
  nil)

(defn on-request-end!
  "Calls f with the facts of each request of thrum.server that ends; see thrum.server.spi.exchanges.
  Returns a function that ends this."
  [f]
  (if-some [on-end! (of-exchanges 'thrum.watch.impl.exchanges/on-end!)]
    (on-end! f)
    (fn [])))

;; Core says each but once, and there may be several readers.
(def ^:private ^:const most-leaked 100)
(def ^:private leaked-tasks (atom []))

(defn- leaked []
  (let [more (watch/leaked!)]
    (swap! leaked-tasks #(into [] (take-last most-leaked (into % more))))))

(defn take!
  "Returns a snapshot. stack?: a function of a thread's facts, true where its stack is wanted."
  [stack?]
  (watch/tick!)
  {:at (System/nanoTime)
   :requests ((:ended @requests))
   :ended (watch/ended)
   :leaked (leaked)
   :nodes (unique (mapcat #(thing-nodes % stack?)
                          (concat (watch/registered) ((:running @requests)))))})

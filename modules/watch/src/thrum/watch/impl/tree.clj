(ns thrum.watch.impl.tree
  "A snapshot as a tree: what belongs to what."
  {:no-doc true}
  (:require
   [thrum.watch.impl.frames :as frames]))

(set! *warn-on-reflection* true)

(defn ms-between
  "Returns the ms from one time of System/nanoTime to another; nil where one is nil."
  [from to]
  (when (and from to)
    (quot (unchecked-subtract (long to) (long from)) 1000000)))

;; A thing may begin after its snapshot did.
(defn age-ms
  "Returns the ms from the begin of a thing to a time, 0 where it came later; nil where it is not
  known."
  [since at]
  (some-> (ms-between since at) (max 0)))

(def ^:private own-keys
  [:reason :running :started :body-ended? :shield? :closing? :index :permits :in-use :waiting :queue
   :rejected])

(def ^:private hidden
  (into #{:id :kind :name :state :parent :since :deadline :thread :askers :owners} own-keys))

(defn- with-thread [shown {:keys [state carrier waits-for tid stack]} stacks?]
  (cond-> (assoc shown :thread tid :thread-state state)
    carrier (assoc :carrier carrier)
    waits-for (assoc :waits-for (str (name (:kind waits-for)) " " (:name waits-for)))
    (and stacks? stack) (assoc :stack (mapv frames/text stack))))

(defn- with-facts [shown node]
  (-> shown
      (into (remove #(hidden (key %))) node)
      (into (filter #(some? (val %))) (select-keys node own-keys))))

;; There may be a hundred thousand tasks: their facts are few, and known.
(defn- shown [{:keys [id kind name state since deadline thread index] :as node} at stacks?]
  (let [shown {:id id, :kind kind, :name name, :state state, :age-ms (age-ms since at)}]
    (cond-> (if (and (= :task kind) thread) (assoc shown :index index) (with-facts shown node))
      deadline (assoc :deadline-ms (ms-between at deadline))
      thread (with-thread thread stacks?))))

;; Readers of a tree call themselves for each level: a recursion that has run away is met here too.
(def ^:private ^:const most-levels 200)

(defn tree
  "Returns the snapshot's nodes as a vector of trees. See thrum.watch/tree."
  [{:keys [at nodes]} {:keys [stacks?]}]
  (let [ids (into #{} (map :id) nodes)
        parent #(when (not= (:id %) (:parent %)) (ids (:parent %)))
        below (group-by parent nodes)
        grow (fn grow [level node]
               (let [children (below (:id node)), shown (shown node at stacks?)]
                 (cond
                   (nil? children) shown
                   (= level (long most-levels)) (assoc shown :left-out (count children))
                   :else (assoc shown :children (mapv #(grow (inc (long level)) %) children)))))]
    (mapv #(grow 1 %) (below nil))))

;; Of these each has a name with a number, or a path.
(def ^:private many-named #{:task :scope :fan-out :joiner :executor :group :request})

(defn- name-that-matters [{:keys [kind name]}]
  (when-not (many-named kind) name))

(defn- folded [children]
  (->> children
       (group-by (juxt :kind :state :thread-state :waits-for name-that-matters))
       (mapcat (fn [[_ alike]]
                 (if (< (count alike) 10)
                   alike
                   (let [oldest (apply max-key #(long (or (:age-ms %) 0)) alike)]
                     [(assoc oldest :count (count alike))]))))
       vec))

(defn fold
  "Returns the trees with ten or more alike siblings as one, the oldest, with its children and their
  :count."
  [trees]
  (let [below (fn [node]
                (cond-> node (:children node) (update :children fold)))]
    (mapv below (folded trees))))

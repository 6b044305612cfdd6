(ns thrum.watch.impl.groups
  "Threads by where they wait."
  {:no-doc true}
  (:require
   [thrum.watch.impl.frames :as frames]
   [thrum.watch.impl.tree :as tree])
  (:import
   (java.util HashSet)))

(set! *warn-on-reflection* true)

(defn- with-name [{:keys [thread name since]}]
  (assoc thread :name name :since since))

(defn threads
  "Returns the threads of a snapshot, each once, with the :name and :since of its task or scope."
  [{:keys [nodes]}]
  (let [seen (HashSet.)
        task? #(= :task (:kind %))
        first-seen? #(some->> % :thread :tid (.add seen))
        xf (comp (filter first-seen?) (map with-name))]
    ;; A task's thread may also be that of a scope's body.
    (into (into [] (comp (filter task?) xf) nodes)
          (comp (remove task?) xf)
          nodes)))

(defn- oldest-ms [at threads]
  (reduce max 0 (keep #(tree/ms-between (:since %) at) threads)))

(defn- group [at [[stack state] alike]]
  {:count (reduce + (map #(:weight % 1) alike))
   :waits-at (frames/waits-at stack)
   :frame (frames/line stack)
   :state state
   :oldest-ms (oldest-ms at alike)
   :stack (mapv frames/text stack)
   :sample (vec (take 5 (sort (map (comp str :name) alike))))})

(defn- weighted
  "Returns the threads that have a stack; each stands for those of its state that have none."
  [threads]
  (mapcat (fn [[_ alike]]
            (let [{with true, without false} (group-by #(some? (:stack %)) alike)
                  n (count with)]
              (if (and (seq with) (seq without))
                (map-indexed #(assoc %2 :weight (+ 1 (quot (count without) n)
                                                   (if (< %1 (rem (count without) n)) 1 0)))
                             with)
                (or with without))))
          (group-by (juxt :state #(:kind (:waits-for %))) threads)))

(defn- grouped [at threads]
  (->> threads
       (group-by (juxt :stack :state))
       (map #(group at %))
       (sort-by (juxt (comp - :count) :waits-at))
       vec))

(defn of-threads
  "Returns threads with stacks by stack and state, the largest group first."
  [threads]
  (grouped nil threads))

(defn groups
  "Returns the threads of a snapshot by stack and state, the largest group first."
  [{:keys [at] :as snapshot}]
  (grouped at (weighted (threads snapshot))))

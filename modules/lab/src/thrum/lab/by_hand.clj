(ns thrum.lab.by-hand
  "The same work without Thrum: loops as one writes them over the JDK's executors, and over chunks."
  (:import
   (clojure.lang Var)
   (java.util ArrayDeque)
   (java.util.concurrent ExecutorService Executors Future)))

(set! *warn-on-reflection* true)

(defn named-executor
  "Returns an executor with a virtual thread for each task, named by a counter."
  ^ExecutorService [prefix]
  (Executors/newThreadPerTaskExecutor (-> (Thread/ofVirtual) (.name ^String prefix 0) .factory)))

(defn conveying
  "Returns a function that submits f of an item, in the bindings of the thread that called
  conveying."
  [^ExecutorService executor f]
  (let [frame (Var/cloneThreadBindingFrame)]
    (fn [item]
      (.submit executor ^Callable (fn [] (Var/resetThreadBindingFrame frame) (f item))))))

(defn- take-oldest ^long [^ArrayDeque window]
  (long (.get ^Future (.poll window))))

(defn- slide
  "Keeps at most limit futures; waits for the oldest one to start another. Returns the sum of the
  results."
  [^long limit submit items]
  (let [window (ArrayDeque. (int limit))]
    (loop [sum 0, items (seq items)]
      (cond
        (= limit (.size window)) (recur (+ sum (take-oldest window)) items)
        items (do (.add window (submit (first items)))
                  (recur sum (next items)))
        (.isEmpty window) sum
        :else (recur (+ sum (take-oldest window)) nil)))))

(defn sliding
  "Returns the sum of f of the items: a sliding window of limit tasks on threads with names, in the
  caller's bindings."
  [limit f items]
  (with-open [executor (named-executor "hand-")]
    (slide limit (conveying executor f) items)))

(defn bare
  "As sliding, on threads without names or bindings."
  [limit f items]
  (with-open [executor (Executors/newVirtualThreadPerTaskExecutor)]
    (slide limit (fn [item] (.submit executor ^Callable (fn [] (f item)))) items)))

(defn in-chunks
  "Returns a lazy seq of f of the items, as Virtuoso's pmap does: each chunk of limit items has an
  executor of its own, without names, which is closed before the chunk's first result is handed
  out."
  [limit f items]
  (lazy-seq
    (when-let [chunk (seq (take limit items))]
      (concat (map Future/.get
                   (with-open [executor (Executors/newVirtualThreadPerTaskExecutor)]
                     (mapv (conveying executor f) chunk)))
              (in-chunks limit f (drop limit items))))))

(defn together
  "Returns a vector of the numbers below n, each computed by a task of its own; when one fails, the
  others are cancelled."
  [n]
  (with-open [executor (named-executor "together-")]
    (let [futures (mapv (conveying executor identity) (range n))]
      (try
        (mapv #(Future/.get %) futures)
        (catch Throwable t
          (run! #(Future/.cancel % true) futures)
          (throw t))))))

(ns thrum.cluster.work
  "Functions for the members of the tests, which leave a trail."
  (:require
   [thrum.core :as t]))

(set! *warn-on-reflection* true)

(def ^:dynamic *node* "The member that runs the call." nil)

(def ^:dynamic *bound* "What only a caller of the tests binds." :root)

(def trail "What happened: [event item node]." (atom []))

(def hook "Called with the item and the node in `hooked`." (atom (fn [_ _])))

(defn on-node
  "Returns the :wrap of a member that binds *node*."
  [name]
  (fn [thunk] (fn [] (binding [*node* name] (thunk)))))

(defn- note! [event item]
  (swap! trail conj [event item *node*]))

(defn times-ten [item] (* 10 item))

(defn brief [item]
  (note! :start item)
  (Thread/sleep (long (mod (hash item) 3)))
  (note! :end item)
  (* 10 item))

(defn hooked [item]
  (note! :start item)
  (try
    (@hook item *node*)
    (note! :end item)
    (* 10 item)
    (catch InterruptedException e
      (note! :interrupted item)
      (throw e))))

(defn endless [item]
  (note! :start item)
  (try
    (Thread/sleep 60000)
    (catch InterruptedException e (note! :interrupted item) (throw e))))

(defn failing-at-three [item]
  (note! :start item)
  (if (= 3 item) (throw (ex-info "three" {:type :work/three, :item item})) (* 10 item)))

(defn interrupting [item]
  (.interrupt (Thread/currentThread))
  [[item] (list item)])

(defn failing-with-interrupt [_]
  (throw (ex-info "boom" {:a (lazy-seq (throw (InterruptedException. "mine")))})))

(defn remaining [_] (t/remaining-ms))

(defn node [_] *node*)

(defn bound [_] *bound*)

(defn object [_] [1 {:a (Object.)}])

(defn two [a b] [a b])

(defn- hidden [_] :hidden)

(defn call-hidden "Uses it here, for the lint." [x] (hidden x))

(defn unreadable
  "Throws an exception whose message cannot be read."
  [_]
  (throw (proxy [RuntimeException] [] (getMessage [] (throw this)))))

(defn failing-with
  "Throws with the ex-data that the hook returns for the item."
  [item]
  (throw (ex-info "the message" (@hook item *node*))))

(defn lazy
  "Returns a lazy seq of what the hook returns for the item."
  [item]
  (lazy-seq
    (note! :start item)
    (try
      [(@hook item *node*)]
      (catch InterruptedException e (note! :interrupted item) (throw e)))))

(ns thrum.async.impl.settings
  "The arguments of thrum.async, checked, and the options that they stand for."
  {:no-doc true}
  (:require
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.impl.job :as job]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.spi.options :as options]))

(set! *warn-on-reflection* true)

(def ^:private words
  {:wrap {:default "thrum.core/*wrap*"}
   :window {:accepts "an integer, not below n", :default "8 x n"}})

(def ^:private thread-rows
  (merge-with merge
              (select-keys (options/rows-at :future) [:name :wrap])
              (select-keys words [:wrap])))

(def ^:private process-rows
  {:name (:name (options/rows-at :fork))
   :closes {:check #(and (sequential? %) (every? (partial satisfies? impl/Channel) %))
            :default "none"
            :accepts "a sequential collection of channels"
            :doc "the channels that are closed when the process has ended in any way"}})

(def ^:private pipeline-rows
  (merge (merge-with merge
                     (select-keys options/rows [:window :name :wrap :scoped-values])
                     words
                     {:wrap {:doc (str "called once, on the calling thread, with a thunk; what it "
                                       "returns is run by each task, with its body as the thunk")}})
         {:close? {:check boolean?
                   :accepts "true or false"
                   :default "true"
                   :doc "whether `to` is closed at the end"}
          :on-error {:check #(if (keyword? %) (#{:report :skip :close} %) (ifn? %))
                     :default ":report"
                     :accepts ":report, :skip, :close or a function of the throwable"
                     :doc (str "what becomes of an item whose function throws: :report drops it, "
                               "and its throwable goes to the uncaught exception handler, :skip "
                               "drops it, :close ends the pipeline with the throwable, after the "
                               "results of the items before it, and cancels the later ones; a "
                               "function's value goes on in its place, as an ex-handler's")}}))

(def ^:private alts-rows
  {:priority {:check #(or (nil? %) (boolean? %))
              :accepts "true, false or nil"
              :default "false"
              :doc "whether the operations are tried in their order, and not in any"}
   :default {:check any?
             :accepts "anything"
             :default "none"
             :doc "the v of [v :default], returned when no operation can be completed at once"}})

(defn alts
  "Returns the options of alts!!."
  [options]
  (options/check alts-rows (or options {})))

(defn process
  "Returns the options of a process."
  [options]
  (options/check process-rows options))

(defn thread
  "Returns the options of a thread."
  [options]
  (merge {:wrap t/*wrap*} (options/check thread-rows options)))

(defn port
  "Returns x if it is one that the protocol is for; throws :thrum/invalid otherwise."
  [protocol expected x]
  (when-not (satisfies? protocol x)
    (throw (spi/invalid (str "Expected " expected ", not " (spi/text x))
             {:value x, :accepts expected})))
  x)

(def ^:private kinds
  "By kind of pipeline: its job, the order of what leaves it, and the name of its threads; :drop-in?
  - with the arguments of core.async's its channel delivers what core.async's does, nothing."
  {:blocking {:job job/transducing, :order :ordered, :name "pipeline", :drop-in? true}
   :async {:job job/asynchronous, :order :ordered, :name "pipeline-async", :drop-in? true}
   :fn {:job job/calling, :order :ordered, :name "pipeline-fn"}
   :unordered {:job job/transducing, :order :as-completed, :name "upipeline"}})

(defn- no-flag [x]
  (spi/invalid (str "close? is " x "; it must be true or false, or a map of options stands there")
    {:option :close?, :value x, :accepts "true or false, or a map of options"}))

(defn- given
  "Returns the options that the arguments after `from` stand for."
  [[close?-or-options ex-handler :as arguments]]
  (cond (keyword? close?-or-options) (throw (no-flag close?-or-options))
        (not (map? close?-or-options)) {:close? (boolean close?-or-options)
                                        :on-error (options/function (or ex-handler :report))}
        (next arguments) (throw (spi/invalid
                                  "An ex-handler beside a map of options: there it is :on-error"
                                  {:value ex-handler}))
        :else (options/check pipeline-rows
                             close?-or-options
                             [:close? :on-error :window :name :wrap :scoped-values])))

(defn- check-n
  [n]
  (when-not (pos-int? n)
    (throw (spi/invalid (str "n is " (spi/text n) "; it must be a positive integer")
             {:option :n, :value n, :accepts "a positive integer"}))))

(defn- check-window
  [window n]
  (when (< window n)
    (throw (spi/invalid
             (str "The window is " window ", below n, " n)
             {:option :window, :value window, :limit n, :accepts "an integer, not below n"}))))

(defn- misplaced-call []
  (spi/invalid "A pipeline's :wrap must call its thunk once, on the thread that it is called on"
    {:option :wrap}))

(defn- captured
  "Returns a wrap for any number of tasks, made by one call of wrap (nil: none) here and now: tasks
  are started by threads on which there is nothing to capture."
  [wrap]
  (when wrap
    (let [body (ThreadLocal.)
          run (spi/wrapped wrap
                           #(let [thunk (.get body)]
                              (.remove body)
                              (when-not thunk (throw (misplaced-call)))
                              (thunk)))]
      (fn [thunk] (fn [] (.set body thunk) (run))))))

(defn pipeline
  "Returns the options of a pipeline of this kind. arguments: those after `from`."
  [kind n arguments]
  (check-n n)
  (let [{:keys [drop-in?], :as kind} (kinds kind)
        silent? (and drop-in? (not (map? (first arguments))))
        {:keys [window wrap scoped-values], :as options} (merge {:close? true
                                                                 :on-error :report
                                                                 :window (long (min Long/MAX_VALUE
                                                                                    (*' 8 n)))
                                                                 :wrap t/*wrap*
                                                                 :limit n}
                                                           kind
                                                           (given arguments))]
    (check-window window n)
    (assoc options :wrap (spi/with-scoped-values (captured wrap) scoped-values) :silent? silent?)))

(defn mapping
  "Returns the options of the pipeline of a pmap->chan with this first argument. Its :wrap is called
  for each item, as pmap's, where there is something to capture."
  [limit]
  (let [{:keys [wrap scoped-values], :as options} (merge {:wrap t/*wrap*} (options/fan-out limit))]
    (merge {:name "pmap->chan"}
           options
           {:wrap (spi/with-scoped-values wrap scoped-values)
            :job job/calling
            :order :ordered
            :on-error :close
            :close? false
            :silent? true
            :on-demand? true})))

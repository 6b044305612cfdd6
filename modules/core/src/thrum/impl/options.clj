(ns thrum.impl.options
  "An option is a row: its key, check, what it accepts, default and one sentence. The row that
  checks an option also documents it."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [clojure.string :as str]
   [thrum.impl.budget :as budget]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.show :as show]
   [thrum.impl.spelling :as spelling])
  (:import
   (clojure.lang IDeref IReduceInit)
   (java.util Collection HashSet Set)
   (java.util.concurrent Future)))

(set! *warn-on-reflection* true)

(defn- keyword-of
  "Returns a predicate of the set's keywords. It calls no code of another value, as hash does."
  [keywords]
  #(and (keyword? %) (contains? keywords %)))

(def rows
  "By key: an option's row."
  {:limit {:check pos-int?
           :accepts "a positive integer"
           :doc "how many tasks may run at once; required"}
   :window {:check pos-int?
            :accepts "an integer, not below limit x batch"
            :default "8 x limit x batch, at least 2048"
            :doc (str "how many items may have been started and not yet been consumed; "
                      "that many results are held in memory")}
   :batch {:check pos-int?
           :accepts "a positive integer"
           :default "1"
           :doc (str "how many items share a task, which calls f on one after the other; limit "
                     "and window still count calls and items")}
   :name {:check #(and (string? %) (not (str/blank? %)))
          :accepts "a string that is not blank"
          :doc "the name of the threads, followed by a number for the call and one for the task"}
   :wrap {:check #(or (nil? %) (ifn? %))
          :accepts "a function from thunk to thunk, or nil"
          :default "*wrap*"
          :doc (str "called on the starting thread with the body's thunk; "
                    "returns the thunk that the task runs")}
   :timeout-ms {:check nat-int?
                :accepts "an integer, not negative"
                :doc "how many ms the body and its forks may take, as with-timeout around them"}
   :item-timeout-ms {:check nat-int?
                     :accepts "an integer, not negative"
                     :default "no bound"
                     :doc (str "how many ms one call of f may take, as with-timeout around it; a "
                               "late one fails with :thrum/timeout")}
   :on-error {:check (keyword-of #{:cancel :collect :keep})
              :accepts ":cancel, :collect or :keep"
              :default ":cancel"
              :doc (str "what a failed fork does: it cancels the others, or they run on, and the "
                        "first failure is thrown in either case; :keep, they run on, and none of "
                        "their failures is thrown")}
   :daemon? {:check boolean?
             :accepts "true or false"
             :default "false"
             :doc (str "whether the scope does not wait for this task, "
                       "but cancels it when all else has ended")}
   :queue {:check nat-int?
           :accepts "an integer, not negative"
           :default "no bound"
           :doc "how many may wait for a permit"}
   :after-ms {:check nat-int?
              :accepts "an integer, not negative"
              :required true
              :doc "how many ms a form waits for the value of those before it; required"}
   :ms {:check pos-int?
        :accepts "a positive integer"
        :required true
        :doc "every how many ms f is called; required"}
   :fixed {:check (keyword-of #{:rate :delay})
           :accepts ":rate or :delay"
           :default ":rate"
           :doc (str "what the ms are counted from: the beginning of a call, or its end; with "
                     ":rate, times that a long call misses are left out")}
   :adaptive {:check ifn?
              :accepts "a function of a map to a positive integer"
              :default "none: the limit stays"
              :doc (str "what the limit is from now on, asked after each use with {:latency-ns n, "
                        ":in-flight n, :dropped? b}, by one thread at a time")}
   :wait-ms {:check nat-int?
             :accepts "an integer, not negative"
             :default "no bound"
             :doc "how many ms a permit is waited for"}
   :per-ms {:check pos-int?
            :accepts "a positive integer"
            :default "1000"
            :doc "in how many ms so many permits are handed out"}
   :burst {:check pos-int?
           :accepts "a positive integer"
           :default "1"
           :doc "how many permits may be had at once after a pause; no more than so many together"}
   :scoped-values {:check #(and (sequential? %) (every? jdk/scoped-value? %))
                   :accepts "a sequential collection of java.lang.ScopedValues, on JDK 25 or newer"
                   :default "none"
                   :doc "bound in each task to what they are bound to at the call"}
   :schedule {:check sequential?
              :accepts "a sequential collection of ms"
              :default "(jitter (exponential 100 10000))"
              :doc (str "the waits before each further attempt; "
                        "when it ends, there is no further attempt")}
   :attempts {:check pos-int?
              :accepts "a positive integer"
              :default "3"
              :doc "how often the body is run at most"}
   :retry? {:check ifn?
            :accepts "a predicate of the throwable"
            :default "every Exception"
            :doc "whether a failure is worth another attempt"}
   :on-retry {:check ifn?
              :accepts "a function of a map"
              :default "none"
              :doc (str "called before the wait for a further attempt with {:attempt 1, "
                        ":wait-ms 50, :throwable t}")}
   :wait-of {:check ifn?
             :accepts "a function of the throwable"
             :default "none"
             :doc (str "how many ms the throwable asks to wait, in place of the schedule's; nil: "
                       "as the schedule says")}
   :budget {:check budget/budget?
            :accepts "a budget, as retry-budget returns it"
            :default "no bound"
            :doc "how many retries all callers that share it may make"}
   :ratio {:check #(and (number? %) (<= 0 % 1))
           :accepts "a number from 0 to 1"
           :default "0.1"
           :doc "how many retries a call adds to the budget"}
   :on-exit {:check (keyword-of #{:join :cancel})
             :accepts ":join or :cancel"
             :default ":join"
             :doc (str "whether the tasks that still run when the body has ended are joined, "
                       "or cancelled and joined")}})

(def rows-at
  "By the :at of forms: the rows, with what those forms say in words of their own."
  (update-vals
    {:future {:name {:doc "the name of the task and of its thread, followed by a number"}}
     :with-scope {:scoped-values {:doc "bound in each task to what they are bound to at the fork"}}
     :fork {:name {:doc (str "the name of the task, behind its scope's and followed by a number, "
                             "as in checkout-7/poll-0")}}
     :all {:limit {:doc "how many of the tasks may run at once; the others start later"
                   :default "all of them"}
           :timeout-ms {:doc "how many ms all of it may take, as with-timeout around it"}}
     :every {:name {:doc "the name of the task, behind its scope's and followed by a number"}}
     :limiter {:name {:doc "the limiter's name in errors and in what shows it"}}
     :retry-budget {:burst {:default "10"
                            :doc "how many retries the budget begins with, and holds at most"}}}
    #(merge-with merge rows %)))

(def forms
  "The functions and macros that take options, in groups: how one is written; :as - the others that
  take the same in the same position; :options - the keys; :at - their key in rows-at, if any."
  (let [task [:name :wrap :scoped-values]]
    [{:form :future-call, :written "(future-call {..} f)", :options [:name :wrap], :at :future}
     {:form :with-executor, :written "(with-executor [exe {..}] body)", :options [:on-exit :name]}
     {:form :pmap
      :written "(pmap {..} f coll)"
      :as [:upmap :pfor]
      :options (into [:limit :window :batch :item-timeout-ms] task)}
     {:form :pmap-tasks
      :written "(pmap-tasks {..} f coll)"
      :as [:fmap]
      :options (into [:limit :window :item-timeout-ms] task)}
     {:form :pmapv
      :written "(pmapv {..} f coll)"
      :as [:prun!]
      :options (into [:limit :batch :item-timeout-ms] task)}
     {:form :with-scope
      :written "(with-scope [s {..}] body)"
      :options [:name :timeout-ms :on-error :wrap :scoped-values]
      :at :with-scope}
     {:form :fork
      :written "(fork s {..} body)"
      :as [:fork-call]
      :options [:name :daemon?]
      :at :fork}
     {:form :all
      :written "(all {..} a b)"
      :as [:race :any :settle :all-call :race-call :any-call :settle-call]
      :options (into [:limit :timeout-ms] task)
      :at :all}
     {:form :hedge
      :written "(hedge {..} a b)"
      :as [:hedge-call]
      :options (into [:after-ms :timeout-ms] task)
      :at :all}
     {:form :every!, :written "(every! s {..} f)", :options [:ms :fixed :name], :at :every}
     {:form :limiter
      :written "(limiter 20 {..})"
      :options [:queue :wait-ms :adaptive :name]
      :at :limiter}
     {:form :rate-limiter
      :written "(rate-limiter 100 {..})"
      :options [:per-ms :burst :queue :wait-ms :name]
      :at :limiter}
     {:form :retry-budget
      :written "(retry-budget {..})"
      :options [:ratio :burst]
      :at :retry-budget}
     {:form :retry
      :written "(retry {..} body)"
      :options [:schedule :attempts :retry? :on-retry :wait-of :budget]}]))

(def ^:private by-form
  (into {}
        (for [{:keys [form as options at]} forms
              :let [rows (rows-at at rows)
                    required (not-empty (filterv (comp :required val) (select-keys rows options)))]
              name (cons form as)]
          [name {:options options, :rows rows, :required required}])))

(defn keys-of
  "Returns the keys of a form's options."
  [form]
  (:options (by-form form)))

(defn documented
  "Returns the lines of a docstring for these options."
  [rows ks]
  (for [k ks, :let [{:keys [accepts default doc]} (rows k)]]
    (str k
         (when doc (str " - " doc))
         " ("
         accepts
         (when (some? default) (str "; default " default))
         ")")))

;; Checks

(def ^:private ^:const most-documented
  "More options than so many are named in a message, and not described."
  12)

(defn- known
  "Returns the lines of a message that say which options there are."
  [rows ks]
  (cond
    (empty? ks) ["None is known here."]
    (<= (count ks) (long most-documented)) (cons "Known here:" (documented rows ks))
    :else (cons "Known here, and described in doc/reference/options.md:"
                (map #(str/join " " %) (partition-all 4 ks)))))

(defn- unknown
  [k rows ks]
  (error/invalid (str "Unknown option " (show/text k) (or (spelling/hint k ks) ".") " "
                      (str/join "\n" (known rows ks)))
                 {:option k, :known (vec ks)}))

;; A secret's value is not shown.
(defn- wrong
  [k {:keys [accepts secret?]} v]
  (if secret?
    (error/invalid (str "The option " k " must be " accepts) {:option k, :accepts accepts})
    (error/invalid (str "The option " k " is " (show/text v) "; it must be " accepts)
                   {:option k, :value v, :accepts accepts})))

(defn- missing
  [k {:keys [accepts]}]
  (error/invalid (str "The option " k " is missing; it must be " accepts)
                 {:option k, :value nil, :accepts accepts}))

(defn- check-value [k row v]
  (when-not ((:check row) v)
    (throw (wrong k row v))))

(defn ms
  "Checks the ms of a form; throws :thrum/invalid unless they are an integer, not negative. where:
  what takes them where, for the message."
  [where x]
  (let [{:keys [check accepts]} (:timeout-ms rows)]
    (when-not (check x)
      (throw (error/invalid (str "The ms that " where " are " (show/text x)
                                 "; they must be " accepts)
                            {:option :timeout-ms, :value x, :accepts accepts})))))

(defn- no-map [what options]
  (let [hint (when (or (instance? IDeref options) (instance? Future options))
               ". For its value, write @ before it")]
    (error/invalid (str what " are a map, not " (show/text options) hint) {:value options})))

(defn check
  "Returns the options when each key is one of ks and each value is accepted; throws :thrum/invalid
  otherwise. rows: another table than this one's."
  ([options ks] (check rows options ks))
  ([rows options ks]
   (when-not (map? options) (throw (no-map "Options" options)))
   (doseq [[k v] options]
     (when-not (some #(identical? k %) ks) (throw (unknown k rows ks)))
     (check-value k (rows k) v))
   options))

(def ^:private ^Set without-required
  "The forms that may be called without options, as most calls are: looked up at each of them."
  (HashSet. ^Collection (keep (fn [[form {:keys [required]}]] (when-not required form)) by-form)))

(defn checked
  "Returns the options of a form when it accepts them, and none is missing that it requires; throws
  :thrum/invalid otherwise."
  [form options]
  (when-not (and (identical? {} options) (.contains without-required form))
    (when-not (map? options) (throw (no-map (str "The options of " (name form)) options)))
    (let [{:keys [required], :as accepted} (by-form form)]
      (check (:rows accepted) options (:options accepted))
      (doseq [[k row] required]
        (when-not (contains? options k) (throw (missing k row))))))
  options)

(defn with-defaults
  "Returns the checked options of a form, and the defaults of those that are missing. Where there
  are none, merge or conj would cost a sixth of an empty scope."
  [defaults form options]
  (let [options (checked form options)]
    (if (identical? {} options) defaults (conj defaults options))))

(defn function
  "Returns f if it can be called; throws :thrum/invalid otherwise. where: for the message, as in
  by future-call."
  ([f] (function "here" f))
  ([where f]
   (when-not (ifn? f)
     (throw (error/invalid (str "A function is expected " where ", not " (show/text f))
                           {:value f, :accepts "a function"})))
   f))

(defn mapped
  "Returns f, which follows a limit, if it can be called; throws :thrum/invalid otherwise."
  [f]
  (function "after the limit, as in (pmap 8 f coll)" f))

(defn unexpected
  "Returns the exception for an x that is not what was expected."
  [expected x]
  (error/invalid (str "Expected " expected ", not " (show/text x)) {:value x, :accepts expected}))

(defn instance
  "Returns x if it is of the class; throws :thrum/invalid otherwise."
  [^Class class expected x]
  (when-not (.isInstance class x) (throw (unexpected expected x)))
  x)

(defn collection
  "Returns x if it is a collection or nil; throws :thrum/invalid otherwise. elements: of what, for
  the message."
  [elements x]
  (when-not (seqable? x) (throw (unexpected (str "a collection of " elements) x)))
  x)

(defn collections
  "Returns what follows f if each is a collection or nil; throws :thrum/invalid otherwise."
  [colls]
  (doseq [coll colls]
    (when-not (seqable? coll) (throw (unexpected "a collection after the function" coll))))
  colls)

(defn- reducible? [x]
  (or (seqable? x)
      (instance? IReduceInit x)
      ;; The protocol has a function for every class, which calls seq.
      (not (identical? (find-protocol-impl protocols/CollReduce x)
                       (get-in protocols/CollReduce [:impls Object])))))

(defn reducibles
  "As collections; a single one may be anything that can be reduced."
  [[coll & more :as colls]]
  (if (and (nil? more) (reducible? coll)) colls (collections colls)))

(defn functions
  "Returns fs as a vector if it is one or more functions, or, :or-none, no function at all; throws
  :thrum/invalid otherwise."
  [caller fs & [or-none]]
  ;; Its entries are vectors, which can be called.
  (when (map? fs) (throw (unexpected "a collection of functions" fs)))
  (when-not (or (seq (collection "functions" fs)) or-none)
    (throw (error/invalid (str caller
                               " needs at least one form: without any there is nothing to return")
                          {:value (vec fs)})))
  (mapv #(if (ifn? %) % (function (str "by " caller) %)) fs))

(defn pairs
  "Returns the binding vector of a macro if it consists of pairs; throws :thrum/invalid otherwise."
  [macro v]
  (when-not (and (vector? v) (even? (count v)))
    (throw (error/invalid (str macro " takes a vector of names and values, not " (show/text v))
                          {:value v, :accepts "a vector of pairs"})))
  v)

(defn one-form
  "Returns the vector of a macro if it has one element; throws :thrum/invalid otherwise. written:
  how it is written."
  [macro written v]
  (when-not (and (vector? v) (= 1 (count v)))
    (throw (error/invalid (str macro " takes " written " first, not " (show/text v))
                          {:value v, :accepts written})))
  v)

(defn with-fallback
  "Returns the first argument of a macro with a deadline as [limit] or [limit fallback]; throws
  :thrum/invalid for another vector. written: how it is written."
  [macro written x]
  (cond
    (not (vector? x)) [x]
    (<= 1 (count x) 2) x
    :else (throw (error/invalid (str macro " takes " written " first, not " (show/text x))
                                {:value x, :accepts written}))))

(defn without-options
  "Returns the body of a macro that takes no options; throws :thrum/invalid where it begins with a
  literal map of the form's options, which would do nothing there."
  [macro form [options & more :as body]]
  (when (and more (map? options) (seq options) (every? (set (keys-of form)) (keys options)))
    (throw (error/invalid (str macro " takes no options; " (name form) " does, as in ("
                               (name form) " " (show/text options) " (fn [] ...))")
                          {:value options, :accepts "a body"})))
  body)

(defn body
  "Returns the body of a macro if it has forms; throws :thrum/invalid otherwise."
  [written forms]
  (when (empty? forms)
    (throw (error/invalid (str "A body is missing: it is written " written) {:value forms})))
  forms)

(defn binding-form
  "Returns the binding vector of a macro if it has one to n elements, the first of two a symbol;
  throws :thrum/invalid otherwise."
  [macro v n]
  (when-not (and (vector? v) (<= 1 (count v) n) (or (= 1 n) (simple-symbol? (first v))))
    (throw (error/invalid (str macro
                               " takes a vector first, "
                               (if (= 1 n) "[executor]" "[symbol] or [symbol options]")
                               ", not " (show/text v))
                          {:value v, :accepts "a vector"})))
  v)

(defn weighed
  "Returns [limiter n] of the first argument of with-permit: a limiter, or a vector of both. Throws
  :thrum/invalid for another vector."
  [limiter]
  (cond
    (not (vector? limiter)) [limiter 1]
    (= 2 (count limiter)) limiter
    :else (throw (error/invalid (str "with-permit takes a limiter or [limiter n] first, not "
                                     (show/text limiter))
                                {:value limiter, :accepts "a limiter, or [limiter n]"}))))

(defn leading
  "Returns the forms after a macro's first argument as [options body]. Options are a map or a symbol
  that stands before the body: a symbol there would do nothing as part of it. Nor would a keyword,
  which is no map: so options without braces are refused."
  [[options & body :as forms]]
  (if (and body (or (map? options) (symbol? options) (keyword? options)))
    [options body]
    [{} forms]))

;; The first argument of the map family

(def ^:private limit-first
  (str "the limit comes first, as in (pmap 8 f coll); it is a positive integer, or a map of "
       "options with a :limit"))

(defn- limit-error [given]
  (error/invalid (if (and (ifn? given) (not (coll? given)))
                   (str "A function stands where the limit is expected: " limit-first)
                   (str "The limit is " (show/text given) ": " limit-first))
                 {:option :limit, :value given, :accepts "a positive integer"}))

(defn no-limit
  "Returns the answer to (map f)."
  [f]
  (error/invalid
    "map without a collection would be a transducer without a limit: use (pmap limit f)"
    {:value f, :accepts "a function and one or more collections"}))

(defn- checked-window
  [{:keys [limit window batch], :as options}]
  (when (< window (*' limit (or batch 1)))
    (throw
      (error/invalid
        (str "The window is " window ", below the limit " limit (when batch (str " x batch " batch))
             "; it must be an integer, not below " (if batch "limit x batch" "the limit"))
        {:option :window
         :value window
         :limit limit
         :accepts (str "an integer, not below " (if batch "limit x batch" "the limit"))})))
  options)

(def ^:private ^:const least-window
  "With a small limit, 8 x limit is soon filled behind one slow item: at limit 64 and 1 in 100 items
  100 times as long 3 000 items took 3.3 x the best time, with this window 1.4 x."
  2048)

(defn- default-window ^long [limit batch]
  (long (min Long/MAX_VALUE (max (long least-window) (*' 8 limit (or batch 1))))))

(defn- limited [options ks]
  (let [{:keys [limit batch] :as options} (check options ks)]
    (when-not limit (throw (limit-error limit)))
    (if (:window options)
      (checked-window options)
      (assoc options :window (default-window limit batch)))))

(defn fan-out
  "Returns the options of a fan-out, all of ks present that have a default, from its first argument,
  a limit or a map."
  [limit-or-options ks]
  (cond
    (map? limit-or-options) (limited limit-or-options ks)
    (pos-int? limit-or-options) (limited {:limit limit-or-options} ks)
    :else (throw (limit-error limit-or-options))))

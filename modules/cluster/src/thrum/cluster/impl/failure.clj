(ns thrum.cluster.impl.failure
  "Throwables as data, and back: class, message, ex-data, causes and the top of the stack trace."
  {:no-doc true}
  (:import
   (clojure.lang ExceptionInfo)
   (java.lang ReflectiveOperationException)))

(set! *warn-on-reflection* true)

(def ^:private ^:const frames "How many lines of a stack trace travel." 24)

(def ^:private ^:const depth "How many causes travel." 8)

(defn- frame->data [^StackTraceElement frame]
  [(.getClassName frame) (.getMethodName frame) (.getFileName frame) (.getLineNumber frame)])

(defn- data->frame [[class method file line]]
  (StackTraceElement. class method file (int line)))

(defn bare
  "Returns the throwable as data without what its own code says of it: what can be said of any."
  [t]
  {:class (.getName (class t)), :message "The exception's message could not be read", :trace []})

;; Reading from a throwable may run user code, which may throw.
(defmacro ^:private read-or [default form]
  `(try ~form (catch Throwable _# ~default)))

(defn data
  "Returns the throwable as data. Its ex-data stays as it is. A part that cannot be read is absent,
  and a message is a sentence that says so."
  ([t] (data t depth))
  ([^Throwable t ^long depth]
   (let [{:keys [class message]} (bare t)]
     {:class class
      :message (read-or message (ex-message t))
      :data (read-or nil (ex-data t))
      :trace (read-or [] (mapv frame->data (take frames (.getStackTrace t))))
      :cause (when (pos? depth) (some-> (read-or nil (ex-cause t)) (data (dec depth))))})))

;; The printing stops at an endless seq, and its text is no longer than a message.

(def ^:private ^:const longest-text 1000)

(defn- text [x]
  (try
    (let [s (binding [*print-length* 20, *print-level* 5] (pr-str x))]
      (if (< (long longest-text) (count s)) (str (subs s 0 longest-text) "...") s))
    (catch Throwable _ (str "#<" (.getName (class x)) ">"))))

(defn- plain-data [data carried?]
  (let [part #(if (carried? %) % (text %))
        metadata (meta data)]
    (with-meta (into {} (map (fn [[k v]] [(part k) (part v)])) data)
               (when (carried? metadata) metadata))))

(defn plain
  "Returns the data of a throwable. Where carried? is false for its ex-data, each key and value for
  which it is false is given as text, and such metadata is left out."
  [failure carried?]
  (-> failure
      (update :data #(if (carried? %) % (plain-data % carried?)))
      (update :cause #(some-> % (plain carried?)))))

;; Back

(defn- constructed
  "Returns what the public constructor of these parameters makes of the arguments; nil where there
  is none, or it throws."
  ^Throwable [^Class class parameters arguments]
  (try (.newInstance (.getConstructor class (into-array Class parameters)) (object-array arguments))
       (catch ReflectiveOperationException _ nil)))

(defn- with-cause ^Throwable [^Throwable t cause]
  (try (cond-> t cause (.initCause cause))
       (catch IllegalStateException _ t)))

(defn- read-back
  "Returns the throwable, or nil where it says something else: a constructor may put its argument
  into a sentence, and may refuse a cause."
  [^Throwable t message cause]
  (when (read-or false (and (= message (ex-message t)) (identical? cause (ex-cause t))))
    t))

(defn- of-class
  "Returns a throwable of that class with the message and the cause, or nil where none can be made
  from a message, or a message and a cause."
  ^Throwable [{:keys [class message]} cause]
  (try
    (let [found (Class/forName class false (clojure.lang.RT/baseLoader))]
      (when (.isAssignableFrom Throwable found)
        (or (some-> (constructed found [String] [message])
                    (with-cause cause)
                    (read-back message cause))
            (some-> (constructed found [String Throwable] [message cause])
                    (read-back message cause)))))
    (catch ReflectiveOperationException _ nil)
    (catch LinkageError _ nil)))

(defn- stand-in
  "Returns what stands for a throwable whose class cannot be made here."
  [{:keys [class message]} cause]
  (ex-info (str class (some->> message (str ": ")))
           {:type :thrum/remote, :class (symbol class)}
           cause))

(defn throwable
  "Returns the throwable that the data is of: of the same class where that is here and can be made
  with this message and cause, else an ex-info of type :thrum/remote that names the class."
  ^Throwable [{:keys [message data trace cause] :as failure}]
  (let [cause (some-> cause throwable)
        t (cond
            data (ExceptionInfo. message data cause)
            :else (or (of-class failure cause) (stand-in failure cause)))]
    (doto ^Throwable t
      (.setStackTrace (into-array StackTraceElement (map data->frame trace))))))

(ns thrum.cluster.impl.codec
  "Values as bytes, by Fressian. What comes back equals what was sent and has its kind: a vector is
  a vector, a set a set, a record that record; metadata, dates and exceptions are kept. The guide of
  clusters has the exceptions. What cannot be carried is refused, with the path to it."
  {:no-doc true}
  (:require
   [clojure.data.fressian :as fressian]
   [clojure.string :as str]
   [thrum.cluster.impl.failure :as failure]
   [thrum.spi :as spi])
  (:import
   (clojure.lang ExceptionInfo IObj IRecord LazilyPersistentVector PersistentArrayMap PersistentHashMap RT Sorted)
   (java.io ByteArrayInputStream ByteArrayOutputStream InputStream OutputStream)
   (java.math BigDecimal BigInteger)
   (java.net URI)
   (java.time Duration Instant LocalDate LocalDateTime LocalTime OffsetDateTime Period)
   (java.util Date UUID)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.regex Pattern)
   (org.fressian FressianReader FressianWriter StreamingWriter Writer)
   (org.fressian.handlers ReadHandler)))

(set! *warn-on-reflection* true)

;; What is carried

(def ^:private native
  "The classes that Fressian carries by itself."
  #{String Boolean Long Integer Short Double Float BigInteger BigDecimal Date UUID URI Pattern
    (class (byte-array 0)) (class (int-array 0)) (class (long-array 0)) (class (float-array 0))
    (class (double-array 0)) (class (boolean-array 0))})

(def ^:private times
  "By class: the name under which a time travels, and how it is read."
  {Instant ["instant" #(Instant/parse %)]
   Duration ["duration" #(Duration/parse %)]
   Period ["period" #(Period/parse %)]
   LocalDate ["date" #(LocalDate/parse %)]
   LocalTime ["time" #(LocalTime/parse %)]
   LocalDateTime ["date-time" #(LocalDateTime/parse %)]
   OffsetDateTime ["offset" #(OffsetDateTime/parse %)]
   java.time.ZonedDateTime ["zoned" #(java.time.ZonedDateTime/parse %)]})

(def ^:private readers-of-times (into {} (vals times)))

(def ^:private ^:const longest
  "How many elements a sequence may have: an endless one ends the attempt, not the memory."
  1000000)

(def ^:private ^:const most
  "How many elements the sequences of a message may have in all."
  10000000)

(def ^:private ^:dynamic *left*
  "How many elements the sequences may still have: an array of one long."
  nil)

(defn- check-length!
  "Called before the nth element of a sequence. Throws where it is one too many, or the thread is
  interrupted: its elements may be the work of the caller's own code."
  [^longs left ^long n]
  (when (Thread/interrupted) (throw (InterruptedException.)))
  (when (or (< longest n) (neg? (aset left 0 (dec (aget left 0)))))
    (throw (ex-info "too many elements" {::too-long true}))))

;; Writing

(declare put!)

(defn- write-items! [^StreamingWriter w items]
  (.beginClosedList w)
  (reduce (fn [_ x] (put! w x)) nil items)
  (.endList w))

(defn- write-sequence! [^StreamingWriter w items]
  (let [^longs left *left*]
    (.beginClosedList w)
    (reduce (fn [^long n x] (check-length! left n) (put! w x) (inc n)) 1 items)
    (.endList w)))

(defn- write-entries! [^StreamingWriter w m]
  (.beginClosedList w)
  (reduce-kv (fn [_ k v] (put! w k) (put! w v)) nil m)
  (.endList w))

(defn- tagged [tag write-body!]
  (fn [^Writer w x] (.writeTag w tag 1) (write-body! w x)))

(defn- natural-order? [^Sorted x]
  (identical? (.comparator ^Sorted (sorted-set)) (.comparator x)))

(defn- refuse! [_ x]
  (throw (ex-info "cannot be carried" {::refused x})))

(defn- unless-sorted
  "Returns a writer that keeps the natural order under another tag, and refuses any other order."
  [tag sorted-tag write-body!]
  (fn [^Writer w x]
    (if (and (instance? Sorted x) (not (natural-order? x)))
      (refuse! w x)
      (do (.writeTag w (if (instance? Sorted x) sorted-tag tag) 1)
          (write-body! w x)))))

(defn- with-metadata
  "Returns a writer that puts the metadata before what the writer writes."
  [write!]
  (fn [^Writer w x]
    (if-some [metadata (not-empty (meta x))]
      (do (.writeTag w "meta" 2)
          (put! w metadata)
          (put! w (with-meta x nil)))
      (write! w x))))

(defn- write-named [tag]
  (fn [^Writer w x]
    (.writeTag w tag 2)
    (.writeObject w (namespace x) true)
    (.writeObject w (name x) true)))

(defn- write-record! [^Writer w x]
  (.writeTag w "record" 2)
  (.writeObject w (.getName (class x)) true)
  (put! w (into {} x)))

(defn- write-time! [^Writer w x]
  (.writeTag w "time" 2)
  (.writeObject w (first (times (class x))) true)
  (.writeString w (str x)))

(defn- write-ratio! [^Writer w x]
  (.writeTag w "ratio" 2)
  (put! w (numerator x))
  (put! w (denominator x)))

(defn- write-byte! [^Writer w b]
  (.writeInt w (long b)))

(defn- write-char! [^Writer w c]
  (.writeInt w (int c)))

(defn- write-bigint! [^Writer w x]
  (.writeBytes w (.toByteArray (biginteger x))))

(defn- write-throwable! [w t]
  (put! w (failure/data t)))

(def ^:private kinds
  "Rows of a class and what writes its instances; the first that fits is taken."
  [[clojure.lang.Keyword (write-named "key")]
   [clojure.lang.Symbol (with-metadata (write-named "sym"))]
   [IRecord (with-metadata write-record!)]
   [clojure.lang.IPersistentVector (with-metadata (tagged "vector" write-items!))]
   [clojure.lang.IPersistentMap (with-metadata (unless-sorted "map" "sorted-map" write-entries!))]
   [clojure.lang.IPersistentSet (with-metadata (unless-sorted "set" "sorted-set" write-items!))]
   [clojure.lang.PersistentQueue (with-metadata (tagged "queue" write-items!))]
   [clojure.lang.ISeq (with-metadata (tagged "seq" write-sequence!))]
   [(class (object-array 0)) (tagged "array" write-items!)]
   [Byte write-byte!]
   [Character (tagged "char" write-char!)]
   [clojure.lang.Ratio write-ratio!]
   [clojure.lang.BigInt (tagged "bigint" write-bigint!)]
   [Throwable (tagged "throwable" write-throwable!)]])

(defn- write-native! [^Writer w x]
  (.writeObject w x))

(defn- writer-for [class]
  (cond
    (native class) write-native!
    (times class) write-time!
    :else (or (some (fn [[kind write!]] (when (isa? class kind) write!)) kinds)
              refuse!)))

(def ^:private ^ConcurrentHashMap writers (ConcurrentHashMap.))

(defn- known-writer [class]
  (or (.get writers class)
      (let [writer (writer-for class)]
        (.put writers class writer)
        writer)))

;; Fressian by itself would write some objects that it does not know as nil.
(defn- put!
  "Writes one value."
  [^Writer w x]
  (if (nil? x)
    (.writeNull w)
    ((known-writer (class x)) w x)))

;; The path to what is refused

(declare path-to-refused)

(defn- among [steps]
  (some (fn [[step x]] (when-some [path (path-to-refused x)] (cons step path))) steps))

(defn- refused? [x]
  (or (identical? refuse! (known-writer (class x)))
      (and (instance? Sorted x) (not (natural-order? x)))))

;; Metadata first, as it is written: the path leads to the part that was met.
(defn- path-in-metadata [x]
  (when (instance? IObj x)
    (some->> (path-to-refused (meta x)) (cons :metadata))))

(defn- path-among-parts [x]
  (cond
    (map? x) (among (mapcat (fn [[k v]] [[k k] [k v]]) x))
    (set? x) (among (map (juxt identity identity) x))
    (instance? Throwable x) (path-to-refused (failure/data x))
    (seq? x) (among (let [^longs left *left*]
                      (map-indexed (fn [i y] (check-length! left (inc (long i))) [i y]) x)))
    (or (sequential? x) (instance? (class (object-array 0)) x)) (among (map-indexed vector x))))

(defn- path-to-refused
  "Returns the path to the first part that cannot be carried, or nil."
  [x]
  (cond
    (nil? x) nil
    (refused? x) ()
    :else (or (path-in-metadata x) (path-among-parts x))))

(defn- found-path
  "Returns the path to the first part that cannot be carried, as far as it was looked for."
  [x]
  (try
    (binding [*left* (long-array [most])] (vec (path-to-refused x)))
    (catch ExceptionInfo e (if (::too-long (ex-data e)) [] (throw e)))))

(defn refusal
  "Returns the answer to a value that cannot be carried. what: a name for it, as in \"the
  argument\". Throws InterruptedException where the thread is interrupted meanwhile."
  [what x ^Throwable cause]
  (let [part (::refused (ex-data cause))
        path (if (some? part) (found-path x) [])]
    (spi/invalid
      (str "A part of "
           what
           " cannot be carried to another JVM: "
           (if (some? part)
             (str (.getName (class part)) " at the path " (spi/text path))
             (str "a sequence of more than " longest " elements, or sequences of more than "
                  most " in all"))
           ". Data can be: numbers, strings, keywords, collections, records, dates, byte arrays")
      {:path path, :class (some-> part class .getName symbol)})))

;; Reading

(defn- reader-of [f]
  (reify ReadHandler
    (read [_ r _tag _n] (f r))))

(defn- ->map [^objects entries]
  (if (<= (alength entries) 16)
    (PersistentArrayMap. entries)
    (PersistentHashMap/create entries)))

;; The class's package has an underscore for each dash of the namespace, and for each underscore.
(defn- namespaces
  "Returns the namespaces whose classes are in the package, as a lazy seq."
  [package]
  (lazy-cat (keep find-ns [(symbol (str/replace package "_" "-")) (symbol package)])
            (filter #(= package (namespace-munge (ns-name %))) (all-ns))))

(defn- record-of
  "Returns the record, or what (absent class-name fields) returns where its class is not loaded."
  [class-name fields absent]
  (let [[_ package simple] (re-matches #"(.+)\.([^.]+)" class-name)
        constructor (when package
                      (some #(ns-resolve % (symbol (str "map->" simple))) (namespaces package)))]
    (if (and constructor (.isAssignableFrom IRecord (RT/classForNameNonLoading class-name)))
      (constructor fields)
      (absent class-name fields))))

(defn- not-loaded! [class-name _]
  (throw (spi/invalid (str "The record " class-name " is not loaded here")
           {:class (symbol class-name)})))

(defn- readers
  "absent: what stands for a record whose class is not loaded, of its name and its fields."
  [absent]
  (let [next! #(.readObject ^FressianReader %)
        items! (fn ^objects [r] (.toArray ^java.util.List (next! r)))
        by-tag {"key" (reader-of #(keyword (next! %) (next! %)))
                "sym" (reader-of #(symbol (next! %) (next! %)))
                "record" (reader-of #(record-of (next! %) (next! %) absent))
                "meta" (reader-of #(let [metadata (next! %)] (with-meta (next! %) metadata)))
                "map" (reader-of #(->map (items! %)))
                "sorted-map" (reader-of #(apply sorted-map (next! %)))
                "vector" (reader-of #(LazilyPersistentVector/createOwning (items! %)))
                "array" (reader-of items!)
                "set" (reader-of #(set (next! %)))
                "sorted-set" (reader-of #(apply sorted-set (next! %)))
                "queue" (reader-of #(into clojure.lang.PersistentQueue/EMPTY (next! %)))
                "seq" (reader-of #(apply list (next! %)))
                "time" (reader-of #((readers-of-times (next! %)) (next! %)))
                "char" (reader-of #(char (next! %)))
                "ratio" (reader-of #(/ (bigint (next! %)) (bigint (next! %))))
                "bigint" (reader-of #(bigint (BigInteger. ^bytes (next! %))))
                "throwable" (reader-of #(failure/throwable (next! %)))}]
    (fressian/associative-lookup by-tag)))

(def ^:private strict (readers not-loaded!))

(def ^:private lenient (readers (fn [_ fields] fields)))

;; The two ways

(defn- ours? [e]
  (some #(contains? (ex-data e) %) [::refused ::too-long]))

(defn write!
  "Writes the value to the stream. Throws :thrum/invalid, with the :path, where it cannot be
  carried, InterruptedException where the thread is interrupted during a sequence, and what the
  realisation of a lazy part throws."
  [^OutputStream out what x]
  (try
    (binding [*left* (long-array [most])] (put! (FressianWriter. out) x))
    (catch ExceptionInfo e (throw (if (ours? e) (refusal what x e) e)))
    (catch StackOverflowError e
      (throw (spi/invalid (str "A part of " what " is nested too deeply to be carried")
               {:cause (ex-message e)})))))

(defn- read-with! [readers ^InputStream in]
  (try
    (.readObject (FressianReader. in readers false))
    ;; Reading takes more of the stack than writing.
    (catch StackOverflowError e
      (throw (spi/invalid "A value that has arrived is nested too deeply to be read"
               {:cause (ex-message e)})))))

(defn read!
  "Returns the next value of the stream. Throws :thrum/invalid where it is nested too deeply, or has
  a record that is not loaded here."
  [^InputStream in]
  (read-with! strict in))

(defn read-leniently!
  "As read!; a record that is not loaded here is given as a map of its fields."
  [^InputStream in]
  (read-with! lenient in))

(defn ->bytes
  "Returns the value as bytes."
  ^bytes [what x]
  (let [out (ByteArrayOutputStream.)]
    (write! out what x)
    (.toByteArray out)))

(defn <-bytes
  "Returns the value that the bytes are."
  [^bytes bs]
  (read! (ByteArrayInputStream. bs)))

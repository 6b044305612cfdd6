(ns thrum.impl.show
  "Prints a user's value for a message and for ex-data: bounded, and without calling the user's
  code. A seq is named by its class and not walked, since it may be lazy or endless; so is an
  object that only its own toString could print."
  {:no-doc true}
  (:require
   [clojure.string :as str])
  (:import
   (clojure.lang APersistentMap APersistentSet APersistentVector BigInt IRecord Keyword MultiFn PersistentList PersistentList$EmptyList Ratio Symbol Var)
   (java.time Duration Instant)
   (java.util Date UUID)))

(set! *warn-on-reflection* true)

(def ^:private ^:const most-chars 200)
(def ^:private ^:const most-items 8)
(def ^:private ^:const deepest 4)
(def ^:private ^:const most-bits 512)

;; To show a value is to return [text whole?]. whole?: true if the text leaves nothing out, and
;; printing the value itself is cheap.

(defn- cut [^String s]
  (if (< (long most-chars) (.length s))
    [(str (subs s 0 most-chars) "...") false]
    [s true]))

(defn- opaque [x whole?]
  [(str "#<" (.getName (class x)) ">") whole?])

(defn- bits ^long [n]
  (condp instance? n
    BigInt (.bitLength ^BigInt n)
    BigInteger (.bitLength ^BigInteger n)
    BigDecimal (.bitLength (.unscaledValue ^BigDecimal n))
    Ratio (+ (.bitLength (.numerator ^Ratio n)) (.bitLength (.denominator ^Ratio n)))))

(defn- big-number [n]
  (if (<= (bits n) (long most-bits)) (cut (pr-str n)) (opaque n false)))

(def ^:private atoms
  "By exact class: a function that shows an object without parts."
  (merge {nil (constantly ["nil" true])
          String #(update (cut %) 0 pr-str)
          Character (comp cut pr-str)
          Class #(cut (.getName ^Class %))}
         (zipmap [Boolean Byte Short Integer Long Float Double Keyword Symbol Var UUID Instant
                  Duration Date]
                 (repeat (comp cut str)))
         (zipmap [BigInt BigInteger BigDecimal Ratio] (repeat big-number))))

(declare show)

(defn- several [open show-one xs between close]
  (let [shown (mapv show-one (take most-items xs)), more? (< (long most-items) (count xs))]
    [(str open (str/join between (map first shown)) (when more? " ...") close)
     (and (not more?) (every? second shown))]))

(defn- entries [open m depth]
  (several open (fn [[k v]] (several "" #(show % depth) [k v] " " "")) m ", " "}"))

(defn- with-parts
  "Shows one of Clojure's collections, or a record; returns nil for anything else."
  [x depth]
  (condp instance? x
    IRecord (entries (str "#" (.getName (class x)) "{") x depth)
    APersistentMap (entries "{" x depth)
    APersistentVector (several "[" #(show % depth) x " " "]")
    APersistentSet (several "#{" #(show % depth) x " " "}")
    PersistentList (several "(" #(show % depth) x " " ")")
    PersistentList$EmptyList ["()" true]
    nil))

(defn- show [x ^long depth]
  (if-some [atomic (atoms (class x))]
    (atomic x)
    (or (when (< depth (long deepest)) (with-parts x (inc depth)))
        (opaque x (or (fn? x) (instance? Throwable x))))))

(defn text
  "Returns the value as text, a few hundred characters at most."
  ^String [x]
  (first (cut (first (show x 0)))))

(defn datum
  "Returns what stands for the value in ex-data: the value itself if it is small, a number,
  keyword, string, class, function, throwable, or a small collection of these; else its text."
  [x]
  (let [[text whole?] (show x 0)
        [text short?] (cut text)]
    (if (and whole? short?) x text)))

;; Pretty printing

(defn pretty-as-printed!
  "Has clojure.pprint, where it is loaded, as at a REPL, print what is of the class as pr does: its
  own way derefs a future that is done, and throws what that throws."
  [class]
  (when-some [pprint (find-ns 'clojure.pprint)]
    (doseq [dispatch '[simple-dispatch code-dispatch]]
      (.addMethod ^MultiFn @(ns-resolve pprint dispatch) class pr))))

(ns thrum.lab.trouble
  "A throwable as data that a row of a result can keep."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(def ^:private longest "How many characters of a message are kept." 500)

(defn- attempt
  "Returns what thunk returns, or `instead` where it throws: an exception's own methods are code of
  others, and may do so too."
  [thunk instead]
  (try
    (thunk)
    (catch Throwable _ instead)))

(defn- short-text [text]
  (subs text 0 (min longest (count text))))

(defn- message [t]
  (short-text (str/trim (str (ex-message t)))))

(defn- kind [t]
  (if-let [type (:type (ex-data t))]
    (name type)
    (.getName (class t))))

(defn error
  "Returns {:class :message} of a throwable: of the lab's own, its :type, without the namespace."
  [t]
  {:class (attempt #(kind t) (.getName (class t)))
   :message (attempt #(message t) "its message cannot be read")})

(defn usage?
  "True of an exception that says what is wrong with the user's arguments or files."
  [t]
  (attempt #(= :thrum/lab-usage (:type (ex-data t))) false))

(defn- messages
  [t]
  (short-text
    (str/join ": "
              (remove str/blank?
                      (map ex-message (take 8 (take-while some? (iterate ex-cause t))))))))

(defn sentence
  "Returns what went wrong in words: its message and those of its causes, its class if there is
  none."
  [t]
  (let [words (attempt #(messages t) "")]
    (if (str/blank? words) (.getName (class t)) words)))

(defn sample
  "Returns the sample of a throwable: {:interrupted? true} or {:error {:class :message}}."
  [t]
  (if (instance? InterruptedException t)
    {:interrupted? true}
    {:error (error t)}))

(ns thrum.repo.words-test
  "Docstrings, comments, messages and pages use plain words: none of a list of words that hide the
  subject of a sentence, or that make a metaphor of hearing and telling."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.repo.files :as files]))

(set! *warn-on-reflection* true)

;; Not behind = nor before a colon: nobody is a user of the operating system there.
(def ^:private avoided
  (re-pattern (str "(?i)(?<!=)\\b(?:nobody|somebody|anybody|everybody|whoever|whatever|"
                   "hears?|heard|tells?|telling|told)\\b(?!:)")))

(def ^:private prose
  "Strings and comments of Clojure, after characters, which may be quotes."
  #"(?s)\\.|(\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|;[^\n]*)")

(defn- words [text]
  (re-seq avoided text))

(defn in-source
  "Returns the avoided words in the strings and comments of Clojure source."
  [source]
  (mapcat words (keep second (re-seq prose source))))

(defn in-java
  "Returns the avoided words in the comments of Java source."
  [source]
  (mapcat words (re-seq #"(?s)/\*.*?\*/|//[^\n]*" source)))

(defn in-page
  "Returns the avoided words of a page, outside of its code."
  [markdown]
  (words (str/replace markdown #"(?s)```.*?```|`[^`]*`" "")))

;; Its own words are the list, and the control.
(def ^:private this-file "test/thrum/repo/words_test.clj")

(defn- findings []
  (for [path (remove #{this-file} (files/committed))
        :let [found (cond
                      (str/ends-with? path ".md") in-page
                      (re-find #"\.cljc?$" path) in-source
                      (str/ends-with? path ".java") in-java)]
        :when found
        word (found (slurp path))]
    [path word]))

(deftest prose-has-a-subject-and-no-ears
  (is (= [] (findings))))

(deftest an-avoided-word-is-found
  (is (= ["Whatever" "hears"]
         (in-source "(def told \"Whatever.\") \\\" \\a ; nobodys, it hears\n(tell! :nobody)")))
  (is (= ["Nobody" "whatever"] (in-java "/** Nobody */ told(1); // or whatever\n told();")))
  (is (= ["Tells" "somebody"] (in-page "Tells `nobody`\n```clojure\n(tell!)\n```\nsomebody"))))

(ns thrum.repo.docs-test
  "Every Clojure block of README.md and doc/ runs, and what it claims is so."
  (:require
   [clojure.java.io :as io]
   [clojure.set :as set]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.dev.doctest :as doctest]
   [thrum.repo.files :as files]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io IOException)
   (java.lang ProcessHandle)
   (java.net ServerSocket)))

(set! *warn-on-reflection* true)

(defn- pages
  []
  (filter #(re-matches #"README\.md|doc/.*\.md" %) (files/committed)))

(defn- print-skipped
  [path {:keys [forms claims skipped]}]
  (println (format "%s: %d forms, %d claims, %d blocks skipped%s" path forms claims (count skipped)
                   (if (seq skipped) (str " (" (str/join "; " (distinct skipped)) ")") ""))))

(defn- free? [port]
  (try
    (with-open [_ (ServerSocket. port)] true)
    (catch IOException _ false)))

(defn- own-port
  "Returns a free port, none of those that the system gives out to those that ask for any: until the
  page listens on it, another test might be given it."
  []
  (first (filter free? (repeatedly #(+ 20000 (long (rand-int 10000)))))))

(defn- with-own-port
  "Returns the page with another port in place of the guides': two runs may be side by side."
  [text]
  (str/replace text "7871" (str (own-port))))

(defn- processes
  "Returns the processes that this JVM has started, as a set."
  []
  (set (.toList (.children (ProcessHandle/current)))))

(defn- check-page
  [path]
  (let [before (processes)
        page (with-own-port (slurp path))
        result (gate/in-time 240000 #(doctest/run page '[(require '[thrum.core :as t])]))]
    (when (pos? (+ (:forms result) (count (:skipped result))))
      (print-skipped path result))
    (is (= [] (:complaints result)) path)
    (is (gate/eventually 10000 #(empty? (set/difference (processes) before)))
        (str path " leaves a process"))))

(deftest every-block-of-the-docs-runs
  (is (some? (io/resource "thrum/core.clj")))
  (run! check-page (pages)))

(defn- page
  [& lines]
  (str/join "\n" lines))

(defn- run-page
  [& lines]
  (doctest/run (apply page lines) []))

(deftest blocks-are-found
  (is (= [{:line 3, :text "(+ 1 2)", :reason nil} {:line 13, :text "x", :reason "needs a server"}]
         (doctest/blocks (page "# A" "```clojure"
                               "(+ 1 2)" "```"
                               "text" "```bash"
                               "(" "```"
                               "" "<!-- no-run: needs a server -->"
                               "" "```clojure"
                               "x" "```")))))

(deftest claims-are-read
  (testing "what follows a form -> claim"
    (doseq [[gap expected] {"\n;; => 3\n" {:value "3"}
                            " ;=> 3" {:value "3"}
                            "\n;; => {:a 1\n;;     :b 2}\n" {:value "{:a 1\n    :b 2}"}
                            "\n;; throws :thrum/closed" {:throws :thrum/closed}
                            "\n;; a remark" nil
                            "\n\n;; => 3" nil
                            "" nil}]
      (is (= expected (doctest/claim gap)) (pr-str gap)))))

(deftest what-is-so-passes
  (is (= {:forms 9, :claims 7, :skipped ["later"], :complaints []}
         (run-page "```clojure" "(def x 1)" "(inc x) ;; => 2" "(map inc [1 2])" ";; => (2 3)" "```"
                   "```clj" "(hash-map :a x)" ";=> {:a" ";    1}"
                   "(throw (ex-info \"no\" {:type :thrum/no}))" ";; throws :thrum/no"
                   "*ns* ;; a remark" "\"s\" ;; => \"s\"" "(symbol \"a b\")" ";; => a b" "```"
                   "<!-- no-run: later -->" "```clojure" "(nope" "```"
                   "```clojure" "x ;=> 1" "```"))))

(deftest what-is-not-so-is-told-with-its-line
  (is (= [[2 "should be 3, and is 2"] [3 "threw java.lang.ArithmeticException: Divide by zero"]
          [5 "should throw :thrum/no, and did not"] [7 "should be (2 3), and is (2)"]]
         (map (juxt :line :complaint)
              (:complaints (run-page "```clojure"
                                     "(+ 1 1) ;; => 3" "(/ 1 0)"
                                     "" "(+ 1 1)"
                                     ";; throws :thrum/no" "(map inc [1])"
                                     ";; => (2 3)" "```"))))))

(deftest a-block-that-cannot-be-read-is-told
  (is (= [[3 true]] (map (juxt :line #(str/starts-with? (:complaint %) "is not readable"))
                         (:complaints (run-page "x" "```clojure" "(+ 1" "```"))))))

(deftest a-lazy-failure-belongs-to-its-form
  (is
    (= []
       (:complaints (run-page "```clojure" "(map #(throw (ex-info (str %) {:type :thrum/no})) [1])"
                              ";; throws :thrum/no" "```")))))

(defn- types-without-a-word
  "Returns the types of exceptions that sources make and a page does not name."
  [sources page]
  (let [types-of #(map second (re-seq #":type (:thrum/[a-z-]+)" %))
        types (into (sorted-set) (mapcat types-of) sources)]
    (remove #(str/includes? page (str "`" % "`")) types)))

(deftest every-type-of-an-exception-is-named
  (let [sources (map slurp
                     (filter #(re-matches #"modules/(?!lab/|test-kit/)[^/]+/src/.*\.clj" %)
                             (files/committed)))
        page (slurp "doc/guides/errors.md")]
    (is (= [] (types-without-a-word sources page)))
    (is (= [":thrum/no-such-type"]
           (types-without-a-word (cons "{:type :thrum/no-such-type}" sources) page)))))

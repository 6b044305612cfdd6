(ns thrum.dev.doctest
  "Evaluates the Clojure blocks of a Markdown file, and checks what they claim.

  A form may be followed by a claim: `;; => value`, that it returns a value that is equal to this
  one or prints so, or `;; throws :a/keyword`, that it throws ex-info with this :type. A form
  without a claim must not throw. A block that follows the comment `<!-- no-run: reason -->` is
  skipped."
  (:require
   [clojure.edn :as edn]
   [clojure.string :as str])
  (:import
   (clojure.lang LineNumberingPushbackReader)
   (java.io StringReader)))

(set! *warn-on-reflection* true)

;; Markdown

(def ^:private fence #"\s*```+\s*(\w*).*")

(defn- no-run-reason
  [line]
  (second (re-matches #"\s*<!--\s*no-run:\s*(.*?)\s*-->\s*" (str line))))

(defn- close-block
  [{:keys [open] :as state}]
  (-> state
      (dissoc :open :reason)
      (update :blocks conj (update open :text #(str/join "\n" %)))))

(defn- step
  [{:keys [open reason] :as state} [n line]]
  (let [[fenced language] (re-matches fence line)]
    (cond
      (and open fenced) (close-block state)
      open (update-in state [:open :text] conj line)
      fenced (assoc state :open {:language language, :line (inc n), :reason reason, :text []})
      (str/blank? line) state
      :else (assoc state :reason (no-run-reason line)))))

(defn blocks
  "Returns the Clojure blocks of markdown: maps of :line (of the first form), :text and, if it is
  not to be run, :reason."
  [markdown]
  (->> (map-indexed #(vector (inc %1) %2) (str/split-lines markdown))
       (reduce step {:blocks []})
       :blocks
       (filter #(#{"clojure" "clj"} (:language %)))
       (mapv #(dissoc % :language))))

;; Claims

(defn- comment-lines
  "Returns the texts of the comments at the start of gap, up to the first empty line."
  [gap]
  (->> (str/split gap #"\n" -1)
       (map str/trim)
       ((fn [[same-line & more]] (if (str/blank? same-line) more (cons same-line more))))
       (take-while #(str/starts-with? % ";"))
       (map #(str/replace % #"^;+\s?" ""))))

(defn claim
  "Returns what the text after a form claims: {:value text}, {:throws keyword}, or nil."
  [gap]
  (let [[line & more] (comment-lines gap)
        [_ value] (some->> line (re-matches #"\s*=>\s*(.*)"))
        [_ thrown] (some->> line (re-matches #"\s*throws\s+:(\S+).*"))]
    (cond
      value {:value (str/trim (str/join "\n" (cons value more)))}
      thrown {:throws (keyword thrown)})))

(defn- reads-as
  "Returns [value] if text is one EDN form, else nil."
  [text]
  (try (let [forms (edn/read-string (str "[" text "\n]"))]
         (when (= 1 (count forms)) forms))
       (catch Exception _ nil)))

(defn- equal?
  [value text]
  (or (= [value] (reads-as text))
      (= text (str/trim (pr-str value)))))

(defn- type-of
  "Returns the :type of t, or of the nearest cause that has one."
  [t]
  (some (comp :type ex-data) (take-while some? (iterate ex-cause t))))

(defn- complaint
  "Returns what is wrong with the outcome of a form, given its claim, or nil."
  [claim {:keys [value thrown]}]
  (cond (:throws claim) (when-not (= (:throws claim)
                                     (some-> thrown
                                             type-of))
                          (str "should throw " (:throws claim)
                               ", and " (if thrown (str "threw " thrown) "did not")))
        thrown (str "threw " thrown)
        (:value claim) (when-not (equal? value (:value claim))
                         (str "should be " (:value claim) ", and is " (pr-str value)))))

;; Evaluation

(def ^:private gap-text #"(?:[\s,]+|;[^\n]*(?:\n|$))*")

(defn- split-gap
  "Returns [blanks-and-comments rest] of text."
  [text]
  (let [gap (re-find gap-text text)]
    [gap (subs text (count gap))]))

(defn- read-form
  "Returns [form length] of the first form in text."
  [text]
  (let [reader (LineNumberingPushbackReader. (StringReader. text))]
    (.captureString reader)
    (let [form (read {:read-cond :allow} reader)]
      [form (count (.getString reader))])))

(defn- evaluate
  "Returns the outcome of form; what is lazy is realised here, where a failure belongs to its form."
  [form claim]
  (try
    (let [value (eval form)] {:value (cond-> value (and claim (seq? value)) doall)})
    (catch Throwable t
      {:thrown (if (instance? clojure.lang.Compiler$CompilerException t) (or (ex-cause t) t) t)})))

(defn- run-text
  "Evaluates the forms of text, which begins on a line; returns [{:line :claim :complaint}]."
  [text line]
  (loop [results []
         text text
         line line]
    (let [[gap text] (split-gap text)
          line (+ line (count (filter #{\newline} gap)))]
      (if (str/blank? text)
        results
        (let [[form length] (read-form text)
              text' (subs text length)
              claim (claim (first (split-gap text')))
              result {:line line, :claim claim, :complaint (complaint claim (evaluate form claim))}]
          (recur (conj results result)
                 text'
                 (+ line (count (filter #{\newline} (subs text 0 length))))))))))

(defn- run-block
  [{:keys [text line]}]
  (try (run-text text line)
       (catch Exception e
         [{:line line, :complaint (str "is not readable: " (ex-message e))}])))

(defn- in-fresh-namespace
  "Calls f in a namespace of its own, in which preload was evaluated."
  [preload f]
  (let [sym (gensym "doctest")]
    (try (binding [*ns* (create-ns sym), *warn-on-reflection* false]
           (clojure.core/refer-clojure)
           (run! eval preload)
           (f))
         (finally (remove-ns sym)))))

(defn run
  "Evaluates the Clojure blocks of markdown in order, after the forms of preload. Returns {:forms n,
  :claims n, :skipped [reason ...], :complaints [{:line n, :complaint text} ...]}; what the forms
  print is dropped."
  [markdown preload]
  (let [{skipped true, run false} (group-by (comp some? :reason) (blocks markdown))
        results (binding [*out* (java.io.StringWriter.)]
                  (in-fresh-namespace preload #(into [] (mapcat run-block) run)))]
    {:forms (count results)
     :claims (count (keep :claim results))
     :skipped (mapv :reason skipped)
     :complaints (filterv :complaint results)}))

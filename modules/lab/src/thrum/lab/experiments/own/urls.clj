(ns thrum.lab.experiments.own.urls
  "Downloads the user's own URLs. Each ends in an outcome, a failure too."
  (:require
   [clojure.string :as str]
   [thrum.lab.download :as download]
   [thrum.lab.experiments.own.per-host :as per-host]
   [thrum.lab.experiments.own.work :as work])
  (:import
   (java.net URI URISyntaxException)))

(set! *warn-on-reflection* true)

(defn- uri-of ^URI [line]
  (try
    (let [uri (URI. line)]
      (when (and (.getHost uri) (#{"http" "https"} (str/lower-case (str (.getScheme uri)))))
        uri))
    (catch URISyntaxException _)))

(defn shown
  "Returns a URL as reports may show it: without a password and without the values of its query,
  which may be secrets. In a line that is no URL a password may go on up to the last @."
  [line]
  (-> line
      (str/replace (if (uri-of line) #"//[^/?#\s]*@" #"//.*@") "//…@")
      (str/replace #"\?.*$" "?…")))

(defn- entry [index line]
  (let [uri (uri-of line)]
    (cond-> {:line (inc index), :url (shown line)}
      uri (assoc :uri uri :host (str/lower-case (.getHost uri)))
      (nil? uri) (assoc :kind :bad-url, :message "not an http or https URL"))))

(defn entries
  "Returns the URLs of a text, one in a line, as {:line :url :uri :host}, or with :kind :bad-url for
  a line that is none. Blank lines and lines that start with # are left out."
  [text]
  (->> (str/split-lines text)
       (map-indexed (fn [index line] [index (str/trim line)]))
       (remove (fn [[_ line]] (or (= "" line) (str/starts-with? line "#"))))
       (mapv (fn [[index line]] (entry index line)))))

(defn- download [client timeout-ms ended! {:keys [line url uri] :as item}]
  (try
    (merge {:line line, :url url} (download/fetch client uri timeout-ms))
    (finally (ended! item))))

(defn- with-bad-lines
  "Returns the sample with the lines that could not be tried among its outcomes, in the order of the
  file."
  [sample bad]
  (-> sample
      (update :outcomes #(vec (sort-by :line (concat % bad))))
      (update :failed (fnil + 0) (count bad))
      (cond-> (seq bad) (assoc-in [:kinds :bad-url] (count bad)))))

(defn- sample! [{:keys [items bad]} {:keys [per-host timeout-ms]} row on-end]
  (let [client (download/client)
        {:keys [ended!] :as source} (per-host/source items per-host)
        fetch (partial download client timeout-ms ended!)]
    (try
      (with-bad-lines (work/sample row fetch (:items source) (count items) on-end) bad)
      (finally (download/close! client)))))

(defn- plan [{file :urls, :keys [per-host timeout] :as options} facts]
  (let [about (str "The URLs of " file)]
    (work/plan {:experiment :urls, :title "Your URLs", :about (str about "."), :file file}
               {:part :urls
                :title "Your URLs"
                :per-host per-host
                :timeout-ms (* 1000 timeout)
                :about (str about ", at most " per-host " at once from one host.")}
               options
               facts)))

(defn- open! [{:keys [file]}]
  (let [entries (entries (work/read-text file))]
    (when (empty? entries)
      (throw (work/usage (str "The file " file " holds no URL."))))
    {:items (filterv :uri entries), :bad (filterv :kind entries)}))

(def ^:private options
  [[nil "--urls FILE" "download your own URLs, one in a line"]
   [nil "--per-host N" "how many at once from one host (with --urls)"
    :default 8, :parse-fn parse-long, :validate work/positive]
   [nil "--timeout SECONDS" "how long one may take (with --urls)"
    :default 60, :parse-fn parse-long, :validate work/positive]])

(def experiment
  {:name :urls
   :doc "your own URLs, downloaded"
   :belongs-to :fan-out
   :options options
   :plan plan
   :open! open!
   :sample! sample!
   :columns work/columns
   :meaning work/meaning})

(ns thrum.lab.report.html
  "A result as one self-contained page. Pure: it asks nothing of the network, and its
  Content-Security-Policy allows the scripts and the style that are in it, by their hashes, and
  nothing else."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.columns :as columns]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.json :as json]
   [thrum.lab.report.headlines :as headlines]
   [thrum.lab.report.markup :as markup]
   [thrum.lab.report.words :as words]
   [thrum.lab.result :as result]
   [thrum.lab.text :as text])
  (:import
   (java.security MessageDigest)
   (java.util Base64)))

(set! *warn-on-reflection* true)

(defn- asset [path]
  (str/replace (slurp (io/resource path)) "\r\n" "\n"))

(defn- sha256 [^String s]
  (let [digest (.digest (MessageDigest/getInstance "SHA-256") (.getBytes s "UTF-8"))]
    (str "'sha256-" (.encodeToString (Base64/getEncoder) digest) "'")))

(defn policy
  "Returns the Content-Security-Policy that allows these scripts and this style, and nothing else."
  [scripts style]
  (str/join "; " ["default-src 'none'"
                  (str "script-src " (str/join " " (map sha256 scripts)))
                  (str "style-src " (sha256 style))
                  "base-uri 'none'"
                  "form-action 'none'"]))

(defn- shown-sample
  "Returns the sample whose tasks in flight the page draws: the first that has a curve."
  [{:keys [samples]}]
  (first (filter (comp seq :curve) samples)))

(defn- usual-label [{:keys [median-ms median-per-second over-limit of-limit] :as row}]
  (str (columns/median-words row)
       (when (and (or median-ms median-per-second) (or over-limit of-limit))
         (str " · " (columns/times-limit-words row) " the limit"))))

(defn- label-of
  "Returns a function from a row of a part to the words at the end of its bar."
  [{{:keys [label]} :by}]
  (fn [row]
    (or (when label (words/ask nil label row)) (usual-label row))))

(defn- length
  "Returns the figure that a row's bar shows: its median, a time or requests per second; the first
  sample's time where there is none."
  [{:keys [median-ms median-per-second samples]}]
  (or median-ms median-per-second (:ms (first samples)) 0))

(defn- published-data [{:keys [ms limit-line-ms per-second limit-line-per-second]}]
  (cond
    ms {:value ms, :limit limit-line-ms, :label (str "published: " (text/ms ms))}
    per-second {:value per-second
                :limit limit-line-per-second
                :label (str "published: " (text/per-second per-second))}))

(defn- flight [{:keys [curve peak ms watched-ms]}]
  (let [end (or watched-ms ms)]
    {:curve curve, :peak peak, :ms end, :end (text/ms end), :answer (when watched-ms ms)}))

(defn- row-data
  [label {:keys [name about thrum? virtual? verdict limit-line-ms limit-line-per-second published
                 median-points limit-points] :as row}]
  (let [sample (shown-sample row)]
    (cond-> {:name name
             :about about
             :thrum thrum?
             :verdict verdict
             :value (length row)
             :label (label row)
             :limit (or limit-line-ms limit-line-per-second)
             :published (published-data published)}
      sample (assoc :flight (flight sample))
      virtual? (assoc :virtual true)
      median-points (assoc :points median-points :limits limit-points))))

(def ^:private own-figures
  (juxt :median-ms :limit-line-ms :median-per-second :limit-line-per-second))

(def ^:private published-figures
  (juxt :ms :limit-line-ms :per-second :limit-line-per-second))

(defn- figures
  "Returns every figure that the bars of a part show: durations, or requests per second."
  [rows]
  (filter some? (mapcat #(concat (own-figures %) (published-figures (:published %))) rows)))

(defn- logarithmic?
  "True if the figures of a part are so far apart that a linear axis would hide some."
  [rows]
  (let [figures (figures rows)]
    (and (seq figures) (< 8 (/ (apply max figures) (apply min figures))))))

(defn- drawn?
  "True of a part whose rows are bars or curves; others are tables alone."
  [{:keys [skipped by]}]
  (not (or skipped (:rows by))))

(defn- chart-data
  "Returns what the page's script draws, by part."
  [result]
  (into {}
        (for [{:keys [contenders connections] :as part} (words/parts result)
              :when (drawn? part)
              :let [rows (filter :samples contenders)]]
          [(name (:part part)) {:rows (mapv #(row-data (label-of part) %) rows)
                                :unit (if connections "/s" "ms")
                                :logarithmic (boolean (logarithmic? contenders))}])))

(defn- heading-of [{:keys [heading on-page]}] (or on-page heading))
(defn- class-of [{:keys [left?] :as column}] (if left? "words" (:class column)))

(defn- labelled
  "Returns a cell that names its column, which a narrow screen shows beside it; there a cell that
  says nothing is left out."
  [heading kind content]
  (let [classes (remove nil? [kind (when (#{"" "–"} content) "empty")])]
    [:td {:class (not-empty (str/join " " classes)), :data-label heading} content]))

(defn- cell [{:keys [show page-words] :as column} row]
  (labelled (heading-of column)
            (class-of column)
            (if page-words
              (or (some->> (page-words row) (map #(vector :span %)) (interpose " ")) "")
              (show row))))

(defn- table-row [[first-column & columns] {:keys [verdict thrum? virtual? about] :as row}]
  [:tr {:class (str (some-> verdict name) (when thrum? " thrum") (when virtual? " virtual"))}
   [:th {:scope "row"} ((:show first-column) row) (when about [:small about])]
   (map #(cell % row) columns)])

(defn- table [part]
  (let [columns (words/columns part)]
    [:div {:class "scroll"}
     [:table
      [:thead [:tr (for [column columns]
                     [:th {:scope "col", :class (class-of column)} (heading-of column)])]]
      [:tbody (map #(table-row columns %) (words/rows part))]]]))

(defn- figure [part kind caption]
  [:figure
   [:div {:class kind
          :data-part (name (:part part))
          :role "img"
          :aria-label (str (:title part) ". " caption)}]
   [:figcaption caption]])

(defn- bar-caption [{:keys [contenders limit-line-about connections]}]
  (str (if connections
         "Requests per second of each contender, the median: longer is better"
         "Median time of each contender")
       (when (logarithmic? contenders) ", on a logarithmic axis")
       ". "
       (when (some (some-fn :limit-line-ms :limit-line-per-second) contenders)
         (str "The upright rule is its limit line, the best that arithmetic allows: "
              (or limit-line-about "rounds × size ÷ rate") ". "))
       (when (some (comp (some-fn :ms :per-second) :published) contenders)
         (str "The thin grey line with a diamond is the published figure, at the published size "
              "and against its own limit line (the small tick)."))))

(defn- flight-caption [{:keys [watch-ms]}]
  (str "Tasks in flight over time, in the first sample of each. Height is the same scale for all; "
       "each has its own time axis."
       (when watch-ms
         (str " The dashed rule is the answer; what is in flight to its right runs on, " watch-ms
              " ms after it, without a use."))))

(defn- curve-caption [{:keys [limit-line-about]}]
  (str "Time until the last of so many requests at once has its answer, the median; both axes are "
       "logarithmic. The dashed line is the limit line: " limit-line-about "."))

(defn- charts [{:keys [crowds contenders] :as question}]
  (if crowds
    (figure question "crowds" (curve-caption question))
    (list (figure question "bars" (bar-caption question))
          (when (some :curve (mapcat :samples contenders))
            (figure question "flights" (flight-caption question))))))

(defn- word-cells [words]
  (map (fn [word] [:td {:class "words"} word]) words))

(defn- outcome-table [{:keys [contenders]}]
  (let [failures (for [row contenders, sample (:samples row), [kind n] (:kinds sample)]
                   [(:name row) (columns/verdict-words kind) (text/thousands n)
                    (get (:messages sample) kind)])]
    (when (seq failures)
      [:div {:class "scroll"}
       [:table {:class "failures"}
        [:thead [:tr (for [heading ["contender" "failed with" "how often" "for example"]]
                       [:th {:scope "col", :class "words"} heading])]]
        [:tbody (for [[contender & more] failures]
                  [:tr [:th {:scope "row"} contender] (word-cells more)])]]])))

(defn- figures-section [busy? {:keys [contenders] :as part}]
  (list (when (drawn? part) (charts part))
        (for [note (keep words/note contenders)] [:p {:class "note"} note])
        (for [fact (words/facts part busy?)] [:p {:class "fact"} fact])
        (when (seq (words/rows part)) (table part))
        (outcome-table part)))

(defn- section [busy? {:keys [part title skipped] :as question}]
  [:section {:id (name part)}
   [:h2 title]
   [:p {:class "about"} (words/conditions question)]
   (if skipped
     [:p {:class "note"} (str "Skipped: " skipped ".")]
     (figures-section busy? question))])

(defn- with-factor [before {:keys [words factor]}]
  (list words (when factor [:small before (text/ratio factor)])))

(defn- headline-cells [{:keys [part system published here limit grade verdict]}]
  [:tr {:class (name grade)}
   [:th {:scope "row"} [:a {:href (str "#" (name part))} system]]
   (labelled "published" nil (with-factor nil published))
   (labelled "here" nil (get here :words "–"))
   (labelled "limit line" nil (with-factor "at most " limit))
   (labelled "factor" "factor" (text/ratio (:factor here)))
   (labelled "verdict" "words" verdict)])

(defn- headlines-section [rows]
  [:section {:id "published"}
   [:h2 "Published, and here"]
   [:p {:class "about"} headlines/about]
   [:table {:class "headlines"}
    [:thead [:tr (for [heading ["system" "published" "here" "limit line" "factor" "verdict"]]
                   [:th {:scope "col", :class (when (= "verdict" heading) "words")} heading])]]
    [:tbody (map headline-cells rows)]]])

(defn- link [{:keys [part]} words]
  [:a {:href (str "#" (name part))} words])

(defn- contents-section
  "Returns the table of contents."
  [{:keys [experiments]}]
  [:nav {:aria-label "Contents"}
   [:h2 "Contents"]
   [:ol (map (fn [{:keys [title parts]}]
               (if (next parts)
                 [:li title [:ul (map (fn [part] [:li (link part (:title part))]) parts)]]
                 [:li (link (first parts) title)]))
             experiments)]])

(defn- headline
  "Returns the sentence that the page opens with: that of the first experiment that has one, from
  its figures; the titles, where none has."
  [{:keys [experiments]}]
  (or (some (fn [{:keys [experiment] :as plan}]
              (when-let [headline (:headline (experiments/by-name experiment))]
                (words/ask nil headline (result/by-part plan))))
            experiments)
      (str/join ", " (map :title experiments))))

(defn- sizes
  "Returns of which sizes the parts are; nil where nothing is scaled, or was asked for in full."
  [{:keys [form full]} scaled?]
  (cond
    full (str "the published sizes" (when scaled? ", where a part does not say otherwise"))
    scaled? (str (if (= :tour form) "the tour" "quick form")
                 ": scaled sizes, nothing extrapolated")))

(defn- header [{:keys [started options experiments machine] :as result}]
  [:header
   [:p {:class "brand"} "Thrum lab"]
   [:h1 (headline result)]
   [:p {:class "about"}
    (str/join " · " (remove nil? [started
                                  (sizes options (some :scaled (mapcat :parts experiments)))
                                  (str (:cpu machine) ", " (:cpus machine) " CPUs")
                                  (str "JDK " (get-in machine [:jdk :version]))]))]
   (for [sentence (keep #(% result) [words/interrupted words/busy])]
     [:p {:class "note"} sentence])])

(defn- machine-section [{:keys [machine]}]
  [:section {:id "machine"}
   [:h2 "Measured on"]
   [:dl (map (fn [[label value]] (list [:dt label] [:dd value])) (words/machine machine))]])

(defn- head [experiments style scripts]
  [:head
   [:meta {:charset "utf-8"}]
   [:meta {:http-equiv "Content-Security-Policy", :content (policy scripts style)}]
   [:meta {:name "viewport", :content "width=device-width, initial-scale=1"}]
   [:meta {:name "color-scheme", :content "light dark"}]
   [:title (str "Thrum lab: " (str/join ", " (map :title experiments)))]
   [:style (markup/raw style)]])

(defn- main [result]
  (let [parts (words/parts result)]
    [:main
     (header result)
     (some->> (seq (headlines/rows result)) headlines-section)
     (when (next parts) (contents-section result))
     (map #(section (some? (words/busy result)) %) parts)
     (machine-section result)]))

(defn page
  "Returns the result as an HTML page."
  [{:keys [experiments] :as result}]
  (let [scripts [(asset "META-INF/resources/webjars/d3/7.9.0/dist/d3.min.js")
                 (asset "thrum/lab/report.js")]
        style (asset "thrum/lab/report.css")
        data (json/write (chart-data result))]
    (str "<!doctype html>\n"
         (markup/html
           [:html {:lang "en"}
            (head experiments style scripts)
            [:body
             (main result)
             [:script {:type "application/json", :id "data"} (markup/raw data)]
             (for [script scripts] [:script (markup/raw script)])]]))))

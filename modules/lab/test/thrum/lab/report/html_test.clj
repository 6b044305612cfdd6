(ns thrum.lab.report.html-test
  "The page: its policy, and what comes from outside."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.json :as json]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.markup :as markup]
   [thrum.lab.report.samples :as samples])
  (:import
   (java.security MessageDigest)
   (java.util Base64)))

(def ^:private page (delay (report.html/page samples/result)))

(defn- hash-of
  [^String s]
  (.encodeToString (Base64/getEncoder)
                   (.digest (MessageDigest/getInstance "SHA-256") (.getBytes s "UTF-8"))))

(defn- contents
  "Returns what stands in the elements that open with exactly this tag."
  [page open close]
  (map (fn [after] (subs after 0 (str/index-of after close)))
       (rest (str/split page (re-pattern (java.util.regex.Pattern/quote open))))))

(defn- policy
  [page]
  (str/replace (second (re-find #"Content-Security-Policy\" content=\"([^\"]*)\"" page))
               "&#39;"
               "'"))

(deftest the-policy-allows-exactly-what-is-in-the-page
  (let [scripts (contents @page "<script>" "</script>")
        styles (contents @page "<style>" "</style>")]
    (is (= [2 1] (map count [scripts styles])))
    (is (= (str "default-src 'none'; script-src "
                (str/join " " (map #(str "'sha256-" (hash-of %) "'") scripts))
                "; style-src 'sha256-"
                (hash-of (first styles))
                "'; base-uri 'none'; form-action 'none'")
           (policy @page)))))

(deftest the-page-asks-nothing-of-the-network
  (is (not (re-find #"src=|href=\"[^#]" (str/replace @page #"(?s)<script>.*?</script>" ""))))
  (is (not (re-find #"@import|url\(" (first (contents @page "<style>" "</style>"))))))

(deftest the-page-holds-no-inline-handler-or-style
  (is (not (re-find #"<[^>]+ (style|on\w+)=" (str/replace @page #"(?s)<script.*?</script>" "")))))

(def ^:private nasty "</script><script>alert(1)</script><img src=x onerror='alert(2)'>&\"")

(deftest what-comes-from-outside-is-escaped
  (let [row {:contender :x
             :name nasty
             :about nasty
             :verdict :done
             :own? true
             :median-ms 1.0
             :samples [{:ms 1.0
                        :ok 1
                        :failed 1
                        :peak 1
                        :curve [[0 1]]
                        :kinds {(keyword nasty) 1}
                        :messages {(keyword nasty) nasty}}]}
        result (-> samples/result
                   (assoc-in [:machine :cpu] nasty)
                   (assoc :started nasty)
                   (update-in [:experiments 0] merge {:title nasty})
                   (assoc-in [:experiments 0 :parts]
                             [{:part (keyword nasty), :title nasty, :about nasty, :contenders [row]}
                              {:part :y, :title nasty, :about nasty, :skipped nasty}]))
        page (report.html/page result)]
    (is (not (str/includes? page "<script>alert")))
    (is (not (str/includes? page "<img")))
    (is
      (= 3
        (count (re-seq #"(?i)<script" (str/replace page #"(?s)<script>.*?</script>" "<script>"))))
      "two scripts of ours and the data")
    (is (= 1 (count (re-seq #"<script type=\"application/json\"" page))))))

(deftest markup-escapes-text-and-attributes
  (is (= "<p title=\"&lt;&quot;&#39;&gt;\">a &amp; b<br></p>"
         (markup/html [:p {:title "<\"'>", :class nil} "a & b" [:br]])))
  (is (= "<b>&lt;</b>" (markup/html (list (markup/raw "<b>") "<" (markup/raw "</b>"))))))

(deftest json-is-safe-in-a-script-element
  (are [text value] (= text (json/write value))
    "\"\\u003c/script\\u003e\\u003c!--\\u0026\"" "</script><!--&"
    "\"\\\"\\\\\\n\\u0000\\u2028\"" "\"\\\n\u0000\u2028"
    "{\"thrum.lab/version\":1,\"a\":[1,2.5,null,true,\"k\"]}" (array-map :thrum.lab/version 1
                                                                         "a" [1 5/2 nil true :k])
    "null" Double/NaN))

(deftest what-outlives-the-answer-is-drawn-and-told
  (let [page (report.html/page samples/answers)]
    (doseq
      [text
       ["<h1>One of four calls hangs: 1 still running behind futures, 0 behind a scope</h1>"
        "\"label\":\"201 ms · 1 still running\"" "\"ms\":251.0,\"end\":\"251 ms\",\"answer\":201.0"
        "allows: the deadline. "
        (str "The dashed rule is the answer; what is in flight to its right runs on, 50 ms after "
             "it, without a use.")]]
      (is (str/includes? page text) text))
    (is (not (str/includes? page "scaled sizes")))))

(deftest a-server-under-load-is-drawn-in-requests-per-second
  (let [page (str/replace (report.html/page samples/loaded) "\u00a0" " ")]
    (doseq [text ["\"unit\":\"/s\""
                  "\"value\":2213.0,\"label\":\"2 213/s · 0.92x the limit\""
                  "\"published\":{\"value\":843,\"limit\":1000.0,\"label\":\"published: 843/s\"}"
                  "longer is better, on a logarithmic axis"
                  "allows: connections ÷ sleep."
                  "The load came from wrk."
                  "<span>950/s</span> <span>951/s</span>"
                  "heap, sleeping connection"]]
      (is (str/includes? page text) text))
    (is (not (str/includes? page "class=\"flights\"")) "nothing is drawn that was not measured")))

(deftest requests-at-once-are-drawn-as-a-curve
  (let [page (str/replace (report.html/page samples/crowds) "\u00a0" " ")]
    (doseq
      [text
       ["<div class=\"crowds\" data-part=\"spring-curve\"" "\"points\":[[10,104.0],[400,2100.0]]"
        "\"limits\":[[10,100.0],[400,2000.0]]" "\"virtual\":true"
        (str "<p class=\"fact\">virtual: 4.77x as fast as 20 threads; arithmetic allows 5.00x, "
             "published 2.85x.</p>")
        "<td data-label=\"400 at once\">2.10 s (2.00 s)</td>" "<tr class=\"done virtual\">"]]
      (is (str/includes? page text) text))
    (is (= 1 (count (re-seq #"class=\"bars\"" page))) "a curve is no bar")
    (is (not (str/includes? page "class=\"flights\"")) "nothing is drawn that was not measured")))

(deftest threads-stand-at-the-bars-of-channels
  (let [page (str/replace (report.html/page samples/channels) "\u00a0" " ")]
    (doseq [text
            ["\"label\":\"1.06 s · 107–108 threads\""
             "\"published\":{\"value\":4712.4,\"limit\":1000.0,\"label\":\"published: 4.71 s\"}"
             "\"label\":\"1.83 s · 1 platform, 63 virtual left\"" "\"label\":\"1.19 s · 0 left\""
             "<p class=\"note\">go, alpha was skipped: no checkout.</p>" "<tr class=\"skipped\">"]]
      (is (str/includes? page text) text))
    (is (not (re-find #"\"name\":\"go, alpha\"" page)) "what did not run has no bar")))

(deftest the-page-opens-on-what-was-published-each-row-a-link-to-its-experiment
  (let [page (str/replace (report.html/page samples/published) "\u00a0" " ")]
    (doseq
      [text
       ["<tr class=\"less\"><th scope=\"row\"><a href=\"#downloads\">100 downloads</a></th>"
        "<td data-label=\"published\">1 103 s → 11.1 s<small>99.4x</small></td>"
        "<td data-label=\"here\">12.6 s → 200 ms</td>"
        "<td data-label=\"limit line\">12.0 s → 120 ms<small>at most 100x</small></td>"
        "<td class=\"factor\" data-label=\"factor\">63.0x</td>"
        (str "<tr class=\"missing\"><th scope=\"row\"><a href=\"#http-kit-sleep\">Ring on "
             "http-kit</a></th>")]]
      (is (str/includes? page text) text))
    (is (< (str/index-of page "id=\"published\"")
           (str/index-of page "<nav")
           (str/index-of page "id=\"downloads\"")))))

(deftest every-link-of-the-page-has-its-place
  (doseq [result [samples/published samples/channels], :let [page (report.html/page result)]
          [_ id] (re-seq #"href=\"#([^\"]+)\"" page)]
    (is (str/includes? page (str " id=\"" id "\"")) id)))

(deftest a-cell-that-says-nothing-is-left-out-on-a-narrow-screen
  (is (str/includes? (report.html/page samples/loaded)
                     "<td class=\"empty\" data-label=\"limit line\">–</td>")))

(deftest an-empty-result-is-a-page-too
  (is (str/includes? (report.html/page {:machine samples/machine, :experiments []}) "<h1>")))

(deftest the-sizes-of-a-run-are-told
  (are [text options] (str/includes? (report.html/page (assoc samples/result :options options))
                                     text)
    "the tour: scaled sizes" {:form :tour}
    "quick form: scaled sizes" {:form :quick}
    "the published sizes, where a part does not say otherwise" {:form :full, :full true}))

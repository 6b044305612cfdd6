(ns thrum.repo.options-doc-test
  "The lists of options in docstrings and on their page are as the rows that check them."
  (:require
   [clojure.core.async :as async]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.adaptive :as adaptive]
   [thrum.async :as a]
   [thrum.async.executor :as executor]
   [thrum.cluster :as cluster]
   [thrum.context.otel :as otel]
   [thrum.core :as t]
   [thrum.dev.options :as options]
   [thrum.jdbc :as jdbc]
   [thrum.server :as server]
   [thrum.spi.options :as spi-options])
  (:import
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(deftest what-is-written-is-as-generated
  (doseq [[path text] (options/sources)]
    (is (= text (slurp path)) (str path ": ./cljw -M:docs writes it")))
  (let [page (slurp options/page-path)]
    (is (= (options/page-text page) page) "./cljw -M:docs writes it")))

(def ^:private asked
  "By section of the page: a call with an option that there is not."
  {"future-call" #(t/future-call {:x 1} +)
   "with-executor" #(t/with-executor [_ {:x 1}])
   "pmap" #(t/pmap {:limit 1, :x 1} inc [])
   "with-scope" #(t/with-scope [_ {:x 1}])
   "fork" #(t/with-scope [s] (t/fork-call s {:x 1} +))
   "all" #(t/all {:x 1} 1 2)
   "hedge" #(t/hedge {:x 1} 1 2)
   "every!" #(t/with-scope [s] (t/every! s {:x 1} +))
   "limiter" #(t/limiter 1 {:x 1})
   "rate-limiter" #(t/rate-limiter 1 {:x 1})
   "retry" #(t/retry {:x 1} nil)
   "retry-budget" #(t/retry-budget {:x 1})
   "run-server" #(server/run-server identity {:x 1})
   "access-log" #(server/access-log *out* {:x 1})
   "pipeline-blocking"
   #(a/pipeline-blocking 1 (async/chan) (map inc) (async/chan) {:x 1})
   "thread-call" #(a/thread-call {:x 1} +)
   "process" #(t/with-scope [s] (a/process-call s {:x 1} +))
   "alts" #(a/alts!! [(async/chan)] :x 1)
   "data-source" #(jdbc/data-source (reify DataSource) {:x 1})
   "call-in-span" #(otel/call-in-span "a" {:x 1} identity)
   "otel/handler" #(otel/handler identity {:x 1})
   "gradient2" #(adaptive/gradient2 {:x 1})
   "vegas" #(adaptive/vegas {:x 1})
   "aimd" #(adaptive/aimd {:x 1})
   "join" #(cluster/join! {:x 1})
   "factory" #(executor/factory {:x 1})})

(defn- known [f]
  (try (f) (catch Exception e (set (:known (ex-data e))))))

(deftest every-option-that-is-accepted-is-listed
  (is (= (set (keys asked)) (set (map first options/places))))
  (doseq [[section file definition] options/places]
    (is (= (known (asked section)) (set (options/listed (slurp file) definition))) definition)))

(deftest an-error-lists-the-options-in-the-same-words
  (doseq [[section _ _ rows] options/places
          :let [e (try ((asked section)) (catch Exception e e)), known (:known (ex-data e))]
          k known :let [{:keys [doc accepts]} (rows k)]]
    (is (str/includes? (ex-message e) (if (<= (count known) 12)
                                        (str k " - " doc " (" accepts)
                                        (str k)))
        section)))

(def ^:private asked-of-forms
  "By form of thrum.core: a call with an option that there is not."
  {:future-call #(t/future-call {:x 1} +)
   :with-executor #(t/with-executor [_ {:x 1}])
   :pmap #(t/pmap {:limit 1, :x 1} inc [])
   :upmap #(t/upmap {:limit 1, :x 1} inc [])
   :pmap-tasks #(t/pmap-tasks {:limit 1, :x 1} inc [])
   :fmap #(t/fmap {:limit 1, :x 1} inc [])
   :pfor #(t/pfor {:limit 1, :x 1} [x [1]] x)
   :pmapv #(t/pmapv {:limit 1, :x 1} inc [])
   :prun! #(t/prun! {:limit 1, :x 1} inc [])
   :with-scope #(t/with-scope [_ {:x 1}])
   :fork #(t/with-scope [s] (t/fork s {:x 1} +))
   :fork-call #(t/with-scope [s] (t/fork-call s {:x 1} +))
   :all #(t/all {:x 1} 1 2)
   :race #(t/race {:x 1} 1 2)
   :any #(t/any {:x 1} 1 2)
   :settle #(t/settle {:x 1} 1 2)
   :all-call #(t/all-call {:x 1} [])
   :race-call #(t/race-call {:x 1} [+])
   :any-call #(t/any-call {:x 1} [+])
   :settle-call #(t/settle-call {:x 1} [])
   :hedge #(t/hedge {:x 1} 1)
   :hedge-call #(t/hedge-call {:x 1} [+])
   :every! #(t/with-scope [s] (t/every! s {:x 1} +))
   :limiter #(t/limiter 1 {:x 1})
   :rate-limiter #(t/rate-limiter 1 {:x 1})
   :retry-budget #(t/retry-budget {:x 1})
   :retry #(t/retry {:x 1} nil)})

(deftest every-form-takes-the-options-of-the-table
  (is (= (set (mapcat #(cons (:form %) (:as %)) spi-options/forms)) (set (keys asked-of-forms))))
  (doseq [{:keys [form as options]} spi-options/forms, f (cons form as)]
    (is (= (set options) (known (asked-of-forms f))) f)))

(deftest a-list-is-replaced-where-it-stands
  (let [source (str "(defn f\n  \"Takes \\\"x\\\".\n\n  Options:\n"
                    "    :a - old\n      and older\n    :b - old\n\n  More.\"\n  [x])\n"
                    "(defn g [])\n")
        rows {:a {:doc "new" :accepts "a \"z\"" :default "1"}, :b {:doc "b" :accepts "b"}}]
    (is (= [:a :b] (options/listed source "f")))
    (is (= (str "(defn f\n  \"Takes \\\"x\\\".\n\n  Options:\n"
                "    :a - new (a \\\"z\\\"; default 1)\n    :b - b (b)\n\n"
                "  More.\"\n  [x])\n(defn g [])\n")
           (options/with-list source "f" rows)))))

(ns thrum.lab.experiments.scope.experiment
  "Four calls at once under a deadline, and one of them goes wrong: when is there an answer, and
  what still runs after it?"
  (:require
   [thrum.core :as t]
   [thrum.lab.client :as client]
   [thrum.lab.columns :as columns]
   [thrum.lab.download :as download]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.measure :as measure]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text])
  (:import
   (clojure.lang ExceptionInfo)
   (java.net URI)
   (java.util.concurrent Callable CancellationException Executors Future TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private watch-ms "How long after the answer the lab counts what still runs." 50)
(def ^:private for-ever "What a call takes that hangs: longer than any caller waits." 1000000)
(def ^:private open-ms "How long the server and the warm-up usually take, for the estimate." 4000)
(def ^:private overhead-ms "What a sample costs beyond waiting, for the estimate." 20)

;; The ways of making four calls under one deadline. Each returns the values, or :late, or throws
;; the failure.

(defn- with-futures [deadline-ms f calls]
  (let [end (+ deadline-ms (measure/now-ms))
        futures (mapv #(future (f %)) calls)
        left-ms #(max 0 (long (Math/ceil (- end (measure/now-ms)))))
        values (mapv #(deref % (left-ms) :late) futures)]
    (if (some #{:late} values) :late values)))

(defn- with-executor [deadline-ms f calls]
  (with-open [exe (Executors/newVirtualThreadPerTaskExecutor)]
    (let [tasks (mapv (fn [call] ^Callable (fn [] (f call))) calls)
          futures (.invokeAll exe tasks deadline-ms TimeUnit/MILLISECONDS)]
      (try
        (mapv #(.get ^Future %) futures)
        (catch CancellationException _ :late)))))

(defn- with-scope [deadline-ms f calls]
  (try
    (t/with-scope [s {:timeout-ms deadline-ms}]
      (mapv deref (mapv #(t/fork s (f %)) calls)))
    (catch ExceptionInfo e
      (if (= :thrum/timeout (:type (ex-data e))) :late (throw e)))))

(defn- with-all [deadline-ms f calls]
  (t/with-timeout [deadline-ms :late]
    (t/all-call (mapv (fn [call] #(f call)) calls))))

(defn- with-abandoning [deadline-ms f calls]
  (with-all deadline-ms (fn [call] (t/abandon-on-interrupt (constantly nil) (f call))) calls))

(def ^:private ways
  {:futures {:name "clojure.core/future"
             :about "deref with what is left of the deadline"
             :run with-futures}
   :executor {:name "plain executor"
              :about "virtual threads, invokeAll with a timeout, with-open"
              :run with-executor}
   :thrum-scope
   {:name "t/with-scope", :about "a fork each, :timeout-ms", :thrum? true, :run with-scope}
   :thrum-all
   {:name "t/with-timeout, t/all", :about "the same in two words", :thrum? true, :run with-all}
   :thrum-abandon {:name "t/all, t/abandon-on-interrupt"
                   :about "each call on a platform thread, left behind when late"
                   :thrum? true
                   :run with-abandoning}})

(def ^:private questions
  "The parts of the experiment. A call says how long it takes, and what is particular to it. :answer
  is what the caller gets, :longest-ms when at the latest."
  [{:part :hangs
    :title "One of four calls hangs"
    :about "Three calls take 50 ms, one never ends; the caller waits no longer than 200 ms."
    :calls [{:ms 50} {:ms 50} {:ms 50} {:ms for-ever}]
    :deadline-ms 200
    :answer :late
    :limit-line-ms 200
    :limit-line-about "the deadline, before which no call is late"
    :longest-ms 200
    :repeat 3
    :contenders [:futures :executor :thrum-scope :thrum-all]}
   {:part :fails
    :title "One of four calls fails"
    :about (str "One call fails after 50 ms; the others take 150 ms, and their answers are of no "
                "use any more.")
    :calls [{:ms 50, :fails? true} {:ms 150} {:ms 150} {:ms 150}]
    :deadline-ms 2000
    :answer :failed
    :limit-line-ms 50
    :limit-line-about "the end of the call that fails"
    :longest-ms 150
    :repeat 3
    :contenders [:futures :executor :thrum-scope :thrum-all]}
   {:part :deaf
    :title "One of four calls ignores its interrupt"
    :about (str "Three calls take 50 ms, one 600 ms, and nothing can stop it; the caller waits "
                "no longer than 200 ms. A way that joins its calls is late; one that does not "
                "leaves a call running.")
    :calls [{:ms 50} {:ms 50} {:ms 50} {:ms 600, :deaf? true}]
    :deadline-ms 200
    :answer :late
    :limit-line-ms 200
    :limit-line-about "the deadline, before which no call is late"
    :longest-ms 600
    :repeat 1
    :contenders [:futures :executor :thrum-scope :thrum-all :thrum-abandon]}])

;; Plan

(defn- row [{:keys [limit-line-ms longest-ms repeat]} contender]
  (-> (ways contender)
      (dissoc :run)
      (assoc :contender contender
             :thrum? (boolean (:thrum? (ways contender)))
             :limit-line-ms (double limit-line-ms)
             :repeat repeat
             :estimate-ms (* repeat (+ longest-ms watch-ms overhead-ms)))))

(defn- part-plan [part]
  (-> (dissoc part :limit-line-ms :longest-ms :repeat)
      (assoc :n (count (:calls part))
             :watch-ms watch-ms
             :contenders (mapv #(row part %) (:contenders part)))))

;; Run

(defn- uri-of ^URI [url {:keys [ms]}]
  (URI. (str url (file-server/delayed ms))))

(defn- fetch [client uri deaf?]
  (if deaf?
    (download/fetch-deaf client uri)
    (download/fetch client uri for-ever)))

(defn- call
  "Makes one call and returns its outcome; throws where it is one that fails, and where the download
  itself failed."
  [client url {:keys [deaf? fails?], :as call}]
  (let [{:keys [kind message], :as outcome}
        (download/expect-bytes (fetch client (uri-of url call) deaf?) file-server/piece)]
    (cond kind (throw (ex-info (str "A download failed: " message) outcome))
          fails? (throw (ex-info "This call fails" {:type ::as-planned}))
          :else outcome)))

(defn- as-planned? [e]
  (some #(= ::as-planned (:type (ex-data %))) [e (ex-cause e)]))

(defn- answer
  "Returns what the caller gets: :values, :late or :failed, which is the failure that was planned.
  Throws any other."
  [thunk]
  (try
    (if (= :late (thunk)) :late :values)
    (catch Exception e
      (if (as-planned? e) :failed (throw e)))))

(defn- expecting
  "Returns the way of making the calls of a part, which throws when its answer is not the part's."
  [run {:keys [deadline-ms], expected :answer}]
  (fn [f calls]
    (let [answer (answer #(run deadline-ms f calls))]
      (when-not (= expected answer)
        (throw (ex-info (str "The answer should be " expected ", and was " answer)
                        {:answer answer}))))))

(defn- sample! [{:keys [url]} {:keys [calls] :as part} {:keys [contender]} on-end]
  (let [client (download/client)
        way (expecting (:run (ways contender)) part)
        call #(call client url %)]
    (try
      (-> (measure/sample-with-rest way call calls watch-ms #(on-end 1))
          (select-keys [:ms :peak :curve :left :watched-ms :interrupted? :error]))
      (finally (download/close! client)))))

;; Report

(def ^:private still-running
  {:heading "still running", :show (partial columns/each-sample :left)})

(defn- label [{:keys [median-ms] :as row}]
  (when median-ms
    (str (text/ms median-ms) " · " ((:show still-running) row) " still running")))

(defn- headline [{{:keys [futures thrum-scope]} :hangs}]
  (when (and (:median-ms futures) (:median-ms thrum-scope))
    (str "One of four calls hangs: " ((:show still-running) futures)
         " still running behind futures, " ((:show still-running) thrum-scope) " behind a scope")))

;; Sanity

(defn- left-running [rows expected? contenders]
  (sanity/every-sample rows :left expected? "left running" contenders))

(defn- complaints [{:keys [hangs fails deaf]} _]
  (let [owners [:executor :thrum-scope :thrum-all]]
    (concat
      (sanity/at-most hangs 3 (cons :futures owners))
      (sanity/at-most deaf 2.5 [:futures :thrum-abandon])
      (when fails (sanity/times-faster fails :executor 1.2 :thrum-scope))
      (mapcat #(left-running % zero? owners) (remove nil? [hangs fails deaf]))
      (when hangs (left-running hangs pos? [:futures]))
      (when deaf (left-running deaf pos? [:futures :thrum-abandon])))))

(def experiment
  "It has one size: nothing was published, and nothing is scaled."
  {:name :scope
   :doc "four calls under a deadline, one of which goes wrong"
   :parts (mapv (juxt :part :about) questions)
   :plan (fn [_ _]
           {:experiment :scope
            :title "Scope"
            :start-ms open-ms
            :about "Four calls at once under a deadline, and one of them goes wrong."
            :parts (mapv part-plan questions)})
   :open! (fn [_] (client/start-server!))
   :sample! sample!
   :columns [columns/median columns/samples columns/limit-line columns/times-limit
             columns/in-flight still-running]
   :label label
   :headline headline
   :complaints complaints})

(ns thrum.lab.experiments.spring-tomcat.experiment
  "A Spring Boot application on Tomcat's platform threads, and by a profile on virtual ones: many
  requests at once, each of which waits."
  (:require
   [thrum.lab.child :as child]
   [thrum.lab.columns :as columns]
   [thrum.lab.experiments.spring-tomcat.application :as application]
   [thrum.lab.limit-line :as limit-line]
   [thrum.lab.load :as load]
   [thrum.lab.machine :as machine]
   [thrum.lab.sanity :as sanity]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private timeout-ms "How long an answer may take." 120000)
(def ^:private open-ms
  "How long it usually takes to compile the application, for the estimate."
  4000)
(def ^:private start-ms "How long an application usually takes to start, for the estimate." 4000)
(def ^:private cold-ms "What a cold application takes beyond its limit line, for the estimate." 800)
(def ^:private warm-up-ms "How long it usually takes to warm one up, for the estimate." 1500)
(def ^:private burst-ms "What a burst takes beyond its limit line, for the estimate." 60)

(def quick
  "The sizes of the quick form: one cold start, few repeats, a curve of short requests."
  {:scaled "Scaled: one cold start of each, one or two warm bursts instead of three of either."
   :states {:spring-100 [:cold :warm], :spring-ab [:warm]}
   :repeats {:cold 1, :warm 2}
   :longest-repeated-ms 1000
   :curve {:repeat 1}})

(def tour
  "The sizes of the tour: warm bursts alone, three where one takes a second."
  (assoc quick
         :scaled "Scaled: one or three warm bursts of each instead of three, and no cold start."
         :states {:spring-100 [:warm]}
         :repeats {:warm 3}))

(def full
  "The sizes of the judged form."
  {:states {:spring-100 [:cold :warm], :spring-ab [:cold :warm], :spring-1000 [:cold :warm]}
   :repeats {:cold 3, :warm 3}
   :longest-repeated-ms Long/MAX_VALUE
   :curve {:repeat 3}})

(def ^:private applications
  "The application, configured. A profile leaves threads.max unused."
  {:platform-20 {:name "20 platform threads", :about "threads.max=20", :threads 20}
   :platform-200
   {:name "200 platform threads", :about "threads.max=200, Tomcat's default", :threads 200}
   :virtual {:name "virtual threads"
             :about "profile virtual-threads"
             :threads 20
             :profile "virtual-threads"
             :virtual? true}
   :property {:name "virtual, by property"
              :about "profile virtual-threads-property"
              :threads 20
              :profile "virtual-threads-property"
              :virtual? true}})

(def ^:private source
  "a demonstration of Spring Boot with Java 19, `ab` with 100 requests, 20 threads, elsewhere")

(defn- published-figure [ms rounds]
  {:ms ms, :limit-line-ms (limit-line/ms rounds 1000), :source source})

(def ^:private hundred
  {:platform-20 (published-figure 6161.0 (limit-line/ab 100 20))
   :virtual (published-figure 2163.0 (limit-line/ab 100 100))
   :platform-200 {:text "practically no difference; no figure given", :source source}})

(def published
  "Published times by part and application: 100 requests of a second, by ab. Whether the application
  was warm is not known."
  {:spring-100 hundred
   :spring-ab hundred
   :spring-1000 {:platform-200 {:text "connection resets at this size; no figure given"
                                :source source}}})

(def ^:private published-times
  "How many times as fast virtual threads were as 20 platform threads, as published."
  (/ 6161.0 2163.0))

(def ^:private limit-line-about
  (str "rounds × what a request waits; on platform threads a round for as many requests as there "
       "are threads, on virtual threads one for all"))

(def ^:private questions
  "The parts of bursts."
  [{:part :spring-100
    :title "Spring Boot on Tomcat: 100 requests at once, each waits a second"
    :about "A hundred people ask at the same time. When has the last one an answer?"
    :generator :built-in
    :n 100
    :sleep-ms 1000
    :limit-line-about limit-line-about
    :applications [:platform-20 :platform-200 :virtual :property]
    :headline {:system "Spring on Tomcat"
               :figure :ms
               :pairs [[:platform-20-warm :virtual-warm] [:platform-20-cold :virtual-cold]]
               :beside [:platform-200-warm "200 platform threads take %s"]
               :because "20 threads need five rounds for a hundred requests, virtual threads one"
               :tour [:platform-20-warm :platform-200-warm :virtual-warm]}
    :against [{:slow :platform-20-cold, :fast :virtual-cold, :published published-times}
              {:slow :platform-20-warm, :fast :virtual-warm}]}
   {:part :spring-ab
    :title "Spring Boot on Tomcat: the same by ab, as published"
    :about (str "ab -n 100 -c 100, as was meant by the published -n 100 -c 1000, which ab "
                "refuses. It sends the first request alone, and 99 at once when that is "
                "answered: so virtual threads can be no more than three times as fast here.")
    :generator :ab
    :n 100
    :sleep-ms 1000
    :limit-line-about (str limit-line-about "; and one round for the request that ab sends alone")
    :applications [:platform-20 :virtual]
    :against [{:slow :platform-20-cold, :fast :virtual-cold, :published published-times}
              {:slow :platform-20-warm, :fast :virtual-warm, :published published-times}]}
   {:part :spring-1000
    :title "Spring Boot on Tomcat: 1 000 requests at once, each waits a second"
    :about (str "The scale that the published experiment began with: ten times the requests, on "
                "200 threads.")
    :generator :built-in
    :n 1000
    :sleep-ms 1000
    :limit-line-about limit-line-about
    :applications [:platform-200 :virtual :property]
    :against [{:slow :platform-200-cold, :fast :virtual-cold}
              {:slow :platform-200-warm, :fast :virtual-warm}]}])

(def ^:private crowds "How many requests there are at once on the curve." [10 20 50 100 200 400])
(def ^:private crowd-ms "How long a request of the curve waits." 100)

;; Plan

(defn- limit-line-ms
  "Returns the limit line of n requests at once from a generator."
  [generator application n ms]
  (let [{:keys [threads virtual?]} (applications application)
        rounds (if (= :ab generator) limit-line/ab limit-line/bounded)]
    (limit-line/ms (rounds n (if virtual? n threads)) ms)))

(defn- described [application]
  (-> (select-keys (applications application) [:name :about])
      (assoc :thrum? false, :virtual? (boolean (:virtual? (applications application))))))

(defn- contender [application state]
  (keyword (str (name application) "-" (name state))))

(defn- each-ms
  "Returns how long a sample takes, for the estimate."
  [state limit-line-ms]
  (+ limit-line-ms (if (= :cold state) (+ start-ms cold-ms) burst-ms)))

(defn- before-ms
  "Returns how long it takes before a warm row's first burst: to warm its application up after each
  cold start, or to start and warm it up where the part has no cold rows; nothing where another part
  has done so."
  [{:keys [repeats states]} part state]
  (cond
    (or (= :cold state) (= :spring-ab part)) 0
    (= [:cold :warm] (states part)) (* warm-up-ms (:cold repeats))
    :else (+ start-ms warm-up-ms)))

(defn- row
  [{:keys [part generator n sleep-ms]} {:keys [repeats longest-repeated-ms], :as sizes} state
   application]
  (let [limit (limit-line-ms generator application n sleep-ms)
        figure (get-in published [part application])
        repeat (if (<= limit longest-repeated-ms) (repeats state) 1)]
    (cond-> (-> (described application)
                (update :name str ", " (name state))
                (assoc :contender (contender application state)
                       :job {:application application, :state state}
                       :limit-line-ms limit
                       :repeat repeat
                       :estimate-ms (+ (* repeat (each-ms state limit))
                                       (before-ms sizes part state))))
      figure (assoc :published figure))))

(defn- bursts-plan
  [{:keys [part applications generator], :as question} {:keys [states scaled], :as sizes}
   {:keys [ab?]}]
  (cond-> (-> (dissoc question :applications)
              (assoc :in-turns? true
                     :scaled scaled
                     :contenders (vec (for [state (states part)
                                            application applications]
                                        (row question sizes state application)))))
    (and (= :ab generator) (not ab?))
    (assoc :skipped "ab is not on PATH; it comes with the Apache HTTP server's utilities")))

(defn- curve-row [{:keys [repeat]} application]
  (let [points (mapv (fn [n] [n (limit-line-ms :built-in application n crowd-ms)]) crowds)]
    (assoc (described application)
           :contender application
           :job {:application application, :state :warm}
           :limit-points points
           :repeat repeat
           :estimate-ms (* repeat (reduce + (map (fn [[_ limit]] (+ limit burst-ms)) points))))))

(defn- curve-plan
  [{:keys [curve], :as sizes}]
  {:part :spring-curve
   :title "Spring Boot on Tomcat: more and more requests at once"
   :about (str "A pool answers as fast as a request takes until there are more requests than "
               "threads; then they queue.")
   :generator :built-in
   :n (count crowds)
   :sleep-ms crowd-ms
   :crowds crowds
   :limit-line-about limit-line-about
   :scaled (when (:scaled sizes) "Scaled: one run of each instead of three.")
   :contenders (mapv #(curve-row curve %) [:platform-20 :platform-200 :virtual])})

(defn- sizes-of
  "Returns the sizes that the options ask for: a part that the quick form leaves out runs in it
  where it is asked for by name."
  [{full? :full, :keys [only form]}]
  (cond
    (= :tour form) tour
    full? full
    (= :spring-1000 only) (assoc quick :states {:spring-1000 [:cold :warm]})
    :else quick))

(defn- parts [{:keys [states] :as sizes} facts]
  (conj (into [] (comp (filter (comp states :part)) (map #(bursts-plan % sizes facts))) questions)
        (curve-plan sizes)))

(defn- reason
  "Returns why the experiment cannot run; nil if it can."
  [{:keys [folder compiler?]}]
  (cond
    (nil? folder) "the application is examples/spring-boot of a checkout of Thrum, and this is none"
    (not compiler?) (str "this Java is a runtime without a compiler for examples/spring-boot: "
                         "name a JDK in CLJW_JAVA_HOME")))

(defn- skipped
  "Returns the one part of an experiment that cannot run."
  [part reason]
  (assoc part :title "Spring Boot on Tomcat", :skipped reason))

(defn- plan [options facts]
  (let [reason (reason (:spring-boot facts)), parts (parts (sizes-of options) facts)]
    {:experiment :spring-tomcat
     :title "Spring Boot on Tomcat"
     :about "A Spring Boot application, its requests on platform threads and on virtual ones."
     :start-ms open-ms
     :not-counted (when-not reason "the download of Spring Boot, the first time")
     :parts (if reason [(skipped (first parts) reason)] parts)}))

;; Run

(defn- stop! [{:keys [apps generators]}]
  (run! child/stop! (vals @apps))
  (run! #((:close! %)) (vals generators)))

(defn- fresh-app!
  "Starts an application anew and returns it."
  [{:keys [apps built]} application]
  (some-> (get @apps application) child/stop!)
  (swap! apps dissoc application)
  (let [app (application/start! built (applications application))]
    (swap! apps assoc application app)
    app))

(defn- burst!
  [{:keys [generators]} generator app n ms]
  (load/burst!
    (generators generator)
    {:url (application/hello app ms), :requests n, :connections n, :timeout-ms timeout-ms}))

(defn- warm-up!
  "Has an application compile its code: many short requests, and one burst as they will come."
  [{:keys [generators], :as env} app]
  (load/burst!
    (:built-in generators)
    {:url (application/hello app 0), :requests 3000, :connections 50, :timeout-ms timeout-ms})
  (burst! env :built-in app 100 50))

(defn- warm-app!
  "Returns an application that has been warmed up, started if need be."
  [{:keys [apps] :as env} application]
  (let [app (or (get @apps application) (fresh-app! env application))]
    (when-not (:warm? app)
      (warm-up! env app)
      (swap! apps assoc-in [application :warm?] true))
    app))

(defn- app! [env {:keys [application state]}]
  (case state
    :cold (fresh-app! env application)
    :warm (warm-app! env application)))

(defn- burst-sample [env {:keys [n sleep-ms generator]} {:keys [job]} on-end]
  (let [{:keys [seconds requests] :as figures} (burst! env generator (app! env job) n sleep-ms)]
    (on-end n)
    (-> (select-keys figures [:generator :p50-ms :p99-ms :max-ms])
        (assoc :ms (* 1000.0 seconds), :ok requests, :failed 0))))

(defn- curve-sample [env {:keys [crowds sleep-ms generator]} {:keys [job]} on-end]
  (let [app (app! env job)]
    {:generator generator
     :points (mapv (fn [n]
                     (let [{:keys [seconds]} (burst! env generator app n sleep-ms)]
                       (on-end 1)
                       [n (* 1000.0 seconds)]))
                   crowds)}))

(defn- open! [_]
  (let [{:keys [problem] :as built} (application/build! (:folder (application/facts)))]
    (if problem
      {:skipped problem}
      (let [generators (into {} (map (juxt identity load/open-bursts!)) [:built-in :ab])
            env {:built built, :apps (atom {}), :generators generators}]
        (assoc env :close! #(stop! env))))))

(defn- sample! [env {:keys [crowds] :as part} row on-end]
  ((if crowds curve-sample burst-sample) env part row on-end))

;; Report

(defn- conditions [{:keys [n sleep-ms crowds contenders]}]
  (when sleep-ms
    (str (if crowds (text/commas crowds) (text/thousands n)) " requests of " (text/ms sleep-ms)
         " at once, a connection for each; a JVM for each configuration."
         (when (some #(= :cold (:state (:job %))) contenders)
           " Cold: the first requests after the start of the application.")
         (when-not crowds " Warm: after 3 100 others, which do not count.")
         (load/came-from "The requests" contenders))))

(defn- point
  "Returns a row's median time with n requests at once, beside its limit line."
  [n {:keys [median-points limit-points]}]
  (if-let [ms (get (into {} median-points) n)]
    (str (text/ms ms) " (" (text/ms (get (into {} limit-points) n)) ")")
    "–"))

(defn- columns [{:keys [crowds]}]
  (if crowds
    (for [n crowds] {:heading (str n " at once"), :show (partial point n)})
    [columns/median columns/samples columns/limit-line columns/times-limit columns/ok columns/failed
     columns/p50 columns/p99 columns/published]))

;; Sanity

(defn- points-complaints
  "Complains of a point of a curve that is below its limit line."
  [{:keys [name limit-points median-points]}]
  (for [[[n limit] [_ ms]] (map vector limit-points median-points)
        :when (< ms (* sanity/slack limit))]
    (str name " is faster than its limit line with " n " requests at once: " ms)))

(defn- complaints [{:keys [spring-100 spring-curve]} _]
  (concat
    (when spring-100 (sanity/times-faster spring-100 :platform-20-warm 2.6 :virtual-warm))
    (sanity/at-most spring-100 1.9 [:platform-20-warm :virtual-warm :property-warm])
    (mapcat points-complaints (vals spring-curve))))

(def experiment
  {:name :spring-tomcat
   :doc "a Spring Boot application, many requests at once"
   :parts (conj (mapv (juxt :part :about) questions) ((juxt :part :about) (curve-plan quick)))
   :left-out [:spring-1000]
   :toured [:spring-100]
   :facts (fn [] {:spring-boot (application/facts), :ab? (machine/on-path? "ab")})
   :plan plan
   :open! open!
   :sample! sample!
   :conditions conditions
   :columns columns
   :complaints complaints})

(ns thrum.dev.check-lab
  "Asks of a lab run, the tour or the quick form, what must be so on any machine: nothing lost,
  nothing faster than arithmetic allows, the order of the contenders as published. A bound stands
  where a broken thing is told from a busy machine: below a second round of what takes one, say."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.report.headlines :as headlines]))

(set! *warn-on-reflection* true)

(def ^:private slack
  "How much a clock may flatter."
  0.98)

(defn- rows
  "Returns the rows of a part by contender; none where the part was skipped."
  [result part]
  (->> (mapcat :parts (:experiments result))
       (filter #(and (= part (:part %)) (not (:skipped %))))
       (mapcat (fn [{:keys [n bytes contenders]}] (map #(assoc % :n n :bytes bytes) contenders)))
       (into {} (map (juxt :contender identity)))))

(defn- all-rows
  [result]
  (mapcat #(vals (rows result %)) (distinct (map :part (mapcat :parts (:experiments result))))))

(defn- row-complaints
  [{:keys [name verdict over-limit expect]}]
  (cond-> []
    (not (#{:done :broke :skipped} verdict)) (conj (str name " ended as " verdict))
    (and over-limit (not expect) (< over-limit slack))
    (conj (str name " is faster than its limit line: " over-limit))))

(defn- download-complaints
  "Complains about what a row of downloads lost."
  [{:keys [name n bytes samples expect], :as row}]
  (let [whole (if (or (= :breaks expect) (nil? bytes)) [] samples)
        limit (get-in row [:params :limit])]
    (cond-> []
      (not-every? #(= n (:ok %)) whole) (conj
                                          (str name " lost downloads: " (mapv :ok whole) " of " n))
      (not-every? #(= (* n bytes) (:bytes %)) whole)
      (conj (str name " lost bytes: " (mapv :bytes whole)))
      (some #(< (max limit 512) (:peak %)) whole)
      (conj (str name " ran more at once than its limit: " (mapv :peak whole))))))

(defn- times-faster
  "Complains unless contender a takes at least factor times as long as b."
  [rows a factor b]
  (let [[slow fast] (map #(get-in rows [% :median-ms]) [a b])]
    (cond (not (and slow fast)) [(str "no medians of " a " and " b)]
          (< slow (* factor fast))
          [(str a " should take " factor " times as long as " b ": " slow " ms, " fast " ms")])))

(defn- at-most
  "Complains unless a contender stays within factor times its limit line."
  [rows contender factor]
  (let [over (get-in rows [contender :over-limit])]
    (when-not (and over (<= over factor))
      [(str contender " should stay within " factor " times its limit line, and was at " over)])))

(defn- leaves-running
  "Complains unless every contender leaves as many calls running as expected, a predicate by
  contender."
  [rows expected]
  (for [[contender left?] expected
        :let [left (mapv :left (get-in rows [contender :samples]))]
        :when (not (and (seq left) (every? some? left) (every? left? left)))]
    (str contender " left running: " left)))

(defn- scope-complaints
  [result]
  (let [[hangs fails deaf] (map #(rows result %) [:hangs :fails :deaf])
        none {:executor zero?, :thrum-scope zero?, :thrum-all zero?}]
    (concat
      (when-not (every? seq [hangs fails deaf]) ["the parts :hangs, :fails and :deaf are missing"])
      (mapcat #(at-most hangs % 3) [:futures :executor :thrum-scope :thrum-all])
      (leaves-running hangs (assoc none :futures pos?))
      (leaves-running fails none)
      (leaves-running deaf (assoc none :futures pos? :thrum-abandon pos?))
      (mapcat #(at-most deaf % 2.5) [:futures :thrum-abandon])
      (times-faster fails :executor 1.2 :thrum-scope))))

(defn- points-complaints
  "Complains about a point of a curve that is below its limit line."
  [{:keys [name limit-points median-points]}]
  (for [[[n limit] [_ ms]] (map vector limit-points median-points)
        :when (< ms (* slack limit))]
    (str name " is faster than its limit line with " n " requests at once: " ms)))

(defn- spring-complaints
  "Complains about the experiment spring-tomcat where it was not skipped."
  [result]
  (let [[hundred curve] (map #(rows result %) [:spring-100 :spring-curve])]
    (concat (when (seq hundred)
              (concat (times-faster hundred :platform-20-warm 2.6 :virtual-warm)
                      (mapcat #(at-most hundred % 1.9)
                        (filter hundred [:platform-20-warm :virtual-warm :property-warm]))))
            (mapcat points-complaints (vals curve)))))

(def ^:private spare-threads
  "How many platform threads a JVM may have beside the carriers of its virtual threads."
  28)

(defn- figures
  "Complains unless a figure of every sample of a contender is as expected."
  [rows contender figure expected? words]
  (let [values (mapv figure (get-in rows [contender :samples]))]
    (when-not (and (seq values) (every? some? values) (every? expected? values))
      [(str contender " " words ": " values)])))

(defn- go-blocks-complaints
  [{{:keys [cpus]} :machine, :as result}]
  (let [rows (rows result :go-blocks)
        ours [:go-factory :pipeline-blocking :pmap]]
    (concat (when-not (and (seq rows) cpus)
              ["the part :go-blocks is missing, or the number of processors"])
            (mapcat #(at-most rows % 2) (filter rows (conj ours :raw-jdk)))
            (mapcat #(figures rows
                              %
                              :threads
                              (fn [n] (<= n (+ (or cpus 0) spare-threads)))
                              "had too many platform threads")
              (filter rows ours))
            (mapcat #(figures rows
                              %
                              :threads
                              (fn [n] (<= 100 n))
                              "should have a platform thread for each request")
              (remove #(:skipped (rows %)) [:go-avoid :go])))))

(defn- pipelines-complaints
  [result]
  (let [rows (rows result :pipelines)
        ours [:thrum-pipeline-blocking :thrum-pipeline-fn :thrum-upipeline]
        none (juxt :platform :virtual)]
    (concat
      (when-not (seq rows) ["the part :pipelines is missing"])
      (mapcat #(at-most rows % 4) ours)
      (mapcat #(figures rows % :peak (fn [n] (<= 40 n 50)) "should have had 50 items at once")
        (conj ours :core-pipeline-blocking))
      (mapcat #(figures rows % (comp none :closed) #{[0 0]} "left threads, platform and virtual")
        ours)
      (mapcat #(figures rows % (comp :taken :closed) (fn [n] (<= n 50)) "took on from its source")
        ours))))

(def ^:private published
  "The parts whose figures were published: a row each at the head of the report."
  [:downloads :jetty-sleep :http-kit-sleep :spring-100 :go-blocks])

(def ^:private no-difference
  "The factor below which there is none. That it is smaller than published may be the machine's."
  1.2)

(defn- headline-complaints
  "Complains unless the report opens on a row for each published part, which was measured, with a
  factor above that of no difference, or was skipped with a reason."
  [{:keys [experiments], :as result}]
  (let [rows (headlines/rows result)
        skipped (into #{} (comp (mapcat :parts) (filter :skipped) (map :part)) experiments)]
    (concat (when-not (= published (map :part rows))
              [(str "the report opens on " (mapv :part rows) ", not on " published)])
            (for [{:keys [part here verdict]} rows
                  :when (if here (< (:factor here) no-difference) (not (skipped part)))]
              (str part ": " verdict)))))

(defn- downloads-complaints
  [downloads]
  (concat
    (when-not (seq downloads) ["the part :downloads is missing"])
    (times-faster downloads :core-map 10 :thrum-pmap)
    (times-faster downloads :core-pmap 1.2 :thrum-pmap)
    (mapcat #(at-most downloads % 6) [:thrum-map :thrum-pmap])))

(defn- many-complaints
  [result]
  (let [[downloads many files] (map #(rows result %) [:downloads :many :files])]
    (concat
      (when-not (seq many) ["the part :many is missing"])
      (at-most downloads :thrum-upmap 6)
      (mapcat #(at-most many % 3) [:thrum-pmap :thrum-upmap])
      (when (and (seq files) (not= :broke (get-in files [:thrum-map :verdict])))
        ["t/map should run out of files under a hard limit"]))))

(defn complaints
  "Returns sentences about what cannot be in result, or should not."
  [{{:keys [form]} :options, :as result}]
  (concat
    (when-not (= 1 (:thrum.lab/version result)) ["not a result of version 1"])
    (mapcat row-complaints (all-rows result))
    (mapcat download-complaints (all-rows result))
    (downloads-complaints (rows result :downloads))
    (spring-complaints result)
    (go-blocks-complaints result)
    (when-not (= :tour form)
      (mapcat #(% result) [many-complaints scope-complaints pipelines-complaints]))
    (headline-complaints result)))

(defn -main
  "Prints the complaints about the result in file; ends the JVM with 1 if there are any."
  [file]
  (let [found (complaints (edn/read-string (slurp file)))]
    (run! println found)
    (println (str file ": " (count found) " complaints"))
    (flush)
    (System/exit (if (seq found) 1 0))))

(ns orders.visit
  "Visits the service as its clients and its operator do, and prints what it has seen."
  (:require
   [orders.database :as database]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.watch :as watch])
  (:import
   (java.io IOException)
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpRequest$BodyPublishers HttpResponse HttpResponse$BodyHandlers)))

(set! *warn-on-reflection* true)

(def ^:private customers 16)
(def ^:private slack-ms "How late a busy machine may be." 2000)

;; A client

(defn- request ^HttpRequest [method url headers]
  (let [builder (HttpRequest/newBuilder (URI. url))]
    (run! (fn [[k v]] (.header builder k v)) headers)
    (.build (.method builder method (HttpRequest$BodyPublishers/noBody)))))

(defn- fetch
  "Returns {:status :body :ms}."
  [{:keys [^HttpClient client]} method url headers]
  (let [start (System/nanoTime)
        ^HttpResponse response (.send client (request method url headers)
                                      (HttpResponse$BodyHandlers/ofString))]
    {:status (.statusCode response)
     :body (.body response)
     :ms (quot (- (System/nanoTime) start) 1000000)}))

(defn- ask [{:keys [url] :as visitor} method path]
  (fetch visitor method (str url path) {}))

(defn- status [visitor method path]
  (:status (ask visitor method path)))

(defn- at-once [f]
  (t/pmapv customers (fn [_] (f)) (range customers)))

(defn- eventually
  "Returns (f), as soon as that is true; false after five seconds."
  [f]
  (t/with-timeout [5000 false]
    (loop []
      (or (f) (do (Thread/sleep 20) (recur))))))

;; What is looked at: each function returns [as it should be?, what was seen]

(defn- orders [visitor]
  (let [seen [(status visitor "POST" "/orders/teapot") (status visitor "GET" "/orders/1")
              (status visitor "GET" "/orders/999999")]]
    [(= [201 200 404] seen) seen]))

(defn- last-teapots [visitor]
  (let [seen (frequencies (at-once #(status visitor "POST" "/orders/teapot")))]
    [(= {201 2, 409 (- customers 2)} seen) seen]))

(defn- deadlines [{:keys [db deadline-ms] :as visitor}]
  (let [before (database/backends db)
        answers (at-once #(ask visitor "GET" "/report/20000"))
        longest (apply max (map :ms answers))
        quiet? (eventually #(zero? (long (database/running db))))
        lost (remove (database/backends db) before)]
    [(and (= #{503} (into #{} (map :status) answers))
          (<= longest (+ deadline-ms slack-ms))
          quiet?
          (empty? lost))
     {:statuses (frequencies (map :status answers))
      :longest-ms longest
      :queries-left (if quiet? 0 (database/running db))
      :connections-lost (count lost)}]))

(defn- watched
  "Returns what the watch's page is made of, while connections are waited for."
  [{:keys [watch] :as visitor}]
  (let [url (str "http://127.0.0.1:" (watch/port watch) "/tree")
        headers {"Authorization" (str "Bearer " (watch/token watch))}
        waited-for #(re-find #"\"waiting\":[1-9]\d*" (:body (fetch visitor "GET" url headers)))
        seen (t/plet [_ (at-once #(ask visitor "GET" "/report/20000"))
                      seen (eventually waited-for)]
               seen)]
    [(some? (re-find #"waiting" (str seen))) seen]))

(defn- gone? [visitor]
  (try
    (status visitor "GET" "/readyz")
    false
    (catch IOException _ true)))

(defn- drain [{:keys [db server] :as visitor}]
  (let [runs? #(pos? (long (database/running db)))]
    ;; Those that were cancelled before may still run.
    (eventually (complement runs?))
    (let [seen (t/plet [answer (status visitor "GET" "/report/500")
                        _ (when (eventually runs?) (server/stop! server))]
                 {:in-flight answer, :refused (gone? visitor)})]
      [(= {:in-flight 200, :refused true} seen) seen])))

(def ^:private sights
  [["an order is placed and found; another is not there" orders]
   ["two teapots are left, and sixteen customers come" last-teapots]
   ["sixteen ask for a report of 20 s, on eight connections" deadlines]
   ["the watch shows who waits for a connection" watched]
   ["the service is stopped, with a report under way" drain]])

(defn- look [visitor [sentence f]]
  (let [[good? seen] (f visitor)]
    (println (str (if good? "as it should be: " "NOT AS IT SHOULD BE: ")
               sentence ": " (pr-str seen)))
    (flush)
    good?))

(defn visit
  "Visits the service, see orders.main/run, which is new, and stops its server. Prints what it has
  seen. Returns true if all was as it should be."
  [{:keys [server] :as service}]
  (with-open [client (HttpClient/newHttpClient)]
    (let [visitor (assoc service
                         :client client
                         :url (str "http://127.0.0.1:" (server/port server)))]
      (every? true? (mapv #(look visitor %) sights)))))

(ns checkout.main
  "A shop's checkout: every order asks three flaky services at once, under one deadline."
  (:require
   [checkout.services :as services]
   [clojure.datafy :refer [datafy]]
   [clojure.edn :as edn]
   [thrum.core :as t])
  (:import
   (clojure.lang ExceptionInfo)
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpResponse HttpResponse$BodyHandlers)
   (java.util.concurrent Executors)))

(set! *warn-on-reflection* true)

(def deadline-ms "The longest that an order may take." 1000)
(def ^:private price-ms "How long an order waits for today's price." 200)
(def ^:private attempt-ms "How long one request may take." 250)
(def ^:private permit-ms "How long a request waits for a permit." 100)
(def ^:private list-price {:euros 21})

;; One request

(defn- fetch
  "Returns what the service answers; throws where it is not 200. An interrupt ends the request."
  [{:keys [^HttpClient client running], :as shop} service id]
  (swap! running inc)
  (try
    (let [request (.build (HttpRequest/newBuilder (URI. (str (get-in shop [:services service :url])
                                                             id))))
          ^HttpResponse response (.send client request (HttpResponse$BodyHandlers/ofString))]
      (when-not (= 200 (.statusCode response))
        (throw (ex-info (str "The service " (name service) " is busy")
                        {:type ::busy, :status (.statusCode response)})))
      (edn/read-string (.body response)))
    (finally
      (swap! running dec))))

;; One service: several attempts, and a note of how they went

(defn- passing?
  "True if a failure may be gone the next time: 503, a request that took too long, no permit
  in time."
  [e]
  (contains? #{::busy :thrum/timeout :thrum/rejected} (:type (ex-data e))))

(def ^:private patience
  {:schedule (t/jitter (t/exponential 20 200)), :attempts 4, :retry? passing?})

(defn- since [start]
  (quot (- (System/nanoTime) (long start)) 1000000))

(defn- ask
  "Returns the value of f, which makes one request, after as many attempts as patience allows; notes
  them."
  [notes service f]
  (let [start (System/nanoTime)
        note! #(swap! notes update service assoc :outcome % :ms (since start))]
    (try
      (let [answer (t/retry patience
                            (swap! notes update-in [service :attempts] (fnil inc 0))
                            (t/with-timeout attempt-ms (f)))]
        (note! :answered)
        answer)
      (catch Throwable e (note! (if (passing? e) :gave-up :cancelled)) (throw e)))))

(defn- user [shop notes id]
  (ask notes :user #(fetch shop :user id)))

;; The permit is held during a request and not between two.
(defn- stock [{:keys [stock-limit] :as shop} notes id]
  (ask notes :stock #(t/with-permit stock-limit (fetch shop :stock id))))

;; The fallback is a catch, because the price may also give up before its time is over. A cancelled
;; order is not caught.
(defn- price [shop notes id]
  (try
    (t/with-timeout price-ms (ask notes :price #(fetch shop :price id)))
    (catch ExceptionInfo e
      (when-not (passing? e) (throw e))
      (swap! notes assoc-in [:price :outcome] :fallback)
      list-price)))

;; One order

(defn- bill [shop notes id]
  (t/plet [user (user shop notes id)
           stock (stock shop notes id)
           price (price shop notes id)]
    {:to (:name user), :item (:item stock), :euros (:euros price)}))

(defn- check-out
  "Returns what became of an order: {:id :outcome :ms :bill :services {service {:attempts :outcome
  :ms}} :left}, where :left is how many of its requests still run."
  [shop id]
  (let [start (System/nanoTime)
        notes (atom {})
        shop (assoc shop :running (atom 0))
        [outcome bill] (try
                         (t/with-timeout [deadline-ms [:late nil]] [:accepted (bill shop notes id)])
                         (catch ExceptionInfo e (when-not (passing? e) (throw e)) [:failed nil]))]
    {:id id
     :outcome outcome
     :ms (since start)
     :bill bill
     :left @(:running shop)
     :services @notes}))

;; The shop

(defn- client [executor]
  (.build (.executor (HttpClient/newBuilder) executor)))

(defn- close-client! [^HttpClient client]
  (doto client (.shutdownNow) (.close)))

(defn- open-shop
  "Starts the services and what it takes to ask them; the scope closes all of it, the last first."
  [scope mood]
  (let [executor (t/use! scope (Executors/newVirtualThreadPerTaskExecutor))
        service #(t/use! scope (services/start! % mood) services/stop!)]
    {:services {:user (service :user), :stock (service :stock), :price (service :price)}
     :client (t/use! scope (client executor) close-client!)
     :stock-limit (t/limiter 2 {:name "stock", :queue 4, :wait-ms permit-ms})}))

(defn run
  "Checks out so many orders, four at a time, with services in these moods; returns {:orders [...]
  :limiter facts :urls [...]} when all that it started has been stopped."
  [mood orders]
  (t/with-scope [s {:name "shop"}]
    (let [shop (open-shop s mood)]
      {:orders (t/pmapv 4 #(check-out shop %) (range 1 (inc orders)))
       :limiter (datafy (:stock-limit shop))
       :urls (mapv :url (vals (:services shop)))})))

;; What is printed

(defn- print-service
  [[service {:keys [attempts outcome ms]}]]
  (println (format "  %-6s %-10s %d attempt%s %5d ms"
                   (name service)
                   (name outcome)
                   attempts
                   (if (= 1 attempts) " " "s")
                   ms)))

(defn- print-order
  [{:keys [id outcome ms bill left services]}]
  (println (format "order %d: %s after %d ms of %d, left running: %d%s"
                   id
                   (name outcome)
                   ms
                   deadline-ms
                   left
                   (if bill (str ", bill " bill) "")))
  (run! print-service (sort-by (comp {:user 0, :stock 1, :price 2} key) services)))

(defn -main
  "Checks out twelve orders and prints what happened. The orders before them only warm up: a JVM
  that still loads its HTTP client would be late for reasons of its own."
  [& [seed]]
  (run (constantly :quick) 20)
  (let [{:keys [orders limiter]} (run (services/moods (or (some-> seed parse-long) 171)) 12)]
    (run! print-order orders)
    (println)
    (println "orders:" (frequencies (map :outcome orders)))
    (println "the longest took" (apply max (map :ms orders)) "ms of" deadline-ms)
    (println "left running:" (reduce + (map :left orders)))
    (println "the limiter of stock:" limiter)))

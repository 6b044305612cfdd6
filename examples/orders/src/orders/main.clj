(ns orders.main
  "A small service over PostgreSQL: a deadline for each request, an orderly end, and a page that
  shows what runs."
  (:require
   [orders.database :as database]
   [orders.visit :as visit]
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.lab.postgres :as postgres]
   [thrum.server :as server]
   [thrum.watch :as watch])
  (:import
   (java.lang AutoCloseable)))

(set! *warn-on-reflection* true)

(def ^:private deadline-ms "How long a request may take." 1000)

;; Requests

(defn- answer [status body]
  {:status status, :headers {"Content-Type" "application/edn"}, :body (pr-str body)})

(defn- found [x]
  (if x (answer 200 x) (answer 404 {:problem "no such order"})))

(defn- placed [x]
  (if x (answer 201 x) (answer 409 {:problem "sold out"})))

(defn- handler
  "Returns the service's handler. It says nothing of deadlines: the request has one, and the
  database's calls end at it."
  [db]
  (fn [{:keys [request-method uri]}]
    (let [[_ kind argument] (re-matches #"/(orders|report)/([a-z]+|\d{1,9})" uri)]
      (case [request-method kind]
        [:get "orders"] (found (some->> (parse-long argument) (database/order db)))
        [:post "orders"] (placed (database/place! db argument))
        [:get "report"] (answer 200 (database/report db (or (parse-long argument) 0)))
        (answer 404 {:problem "no such page"})))))

;; The service

(defn- new-postgres []
  (or (postgres/start!)
      (throw (ex-info "There is no PostgreSQL here: name one in JDBC_URL" {}))))

(defn- url
  "Returns the database's URL: JDBC_URL, or that of a new PostgreSQL, which the scope closes."
  [scope]
  (or (System/getenv "JDBC_URL")
      (:url (t/use! scope (new-postgres) #((:close! %))))))

(defn- guarded [pool]
  (let [db {:datasource (jdbc/data-source pool {:name "orders"})}]
    (database/create! db)
    db))

(defn- serve [db port]
  (server/run-server (handler db)
                     {:port port
                      :request-timeout-ms deadline-ms
                      :max-concurrent 64
                      :max-queued 64
                      :health {:live "/livez", :ready "/readyz"}
                      :stop-on-shutdown? false
                      :shutdown-timeout-ms 5000}))

(defn run
  "Starts the service on the port, calls f with {:db :server :watch :deadline-ms}, and stops
  everything, the last first: the server drains before the pool is closed. Returns the value of f."
  [port f]
  (t/with-scope [s {:name "orders"}]
    (let [pool (t/use! s (database/pool (url s)))
          db (guarded pool)
          watch (t/use! s (watch/start! {:port 0}))
          server (t/use! s ^AutoCloseable (serve db port))]
      (f {:db db, :server server, :watch watch, :deadline-ms deadline-ms}))))

;; The program

(defn- print-urls [{:keys [server watch]}]
  (println (str "orders on http://127.0.0.1:" (server/port server)
                "/orders/1 and /report/20000; POST /orders/teapot"))
  (println (str "watch on http://127.0.0.1:" (watch/port watch) "/, token " (watch/token watch)))
  (flush))

(defn- serve-until-stopped [{:keys [server] :as service}]
  (print-urls service)
  (server/join server))

(defn- run-until-end-of-jvm
  "Calls f. Ctrl-C, or SIGTERM, interrupts it, and waits until it has closed what it had opened."
  [f]
  (let [caller (Thread/currentThread), ended (promise)]
    (.addShutdownHook (Runtime/getRuntime)
                      (Thread. #(do (.interrupt caller) (deref ended 20000 nil))))
    (try
      (f)
      (catch InterruptedException _)
      (finally (deliver ended true)))))

(defn -main
  "With visit: starts the service on a free port, sends it requests, prints what it has seen, and
  ends with 1 where that is not as it should be. Otherwise: serves on port 3000 until Ctrl-C."
  [& [what]]
  (if (= "visit" what)
    (System/exit (if (run 0 visit/visit) 0 1))
    (run-until-end-of-jvm #(run 3000 serve-until-stopped))))

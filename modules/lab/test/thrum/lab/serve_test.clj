(ns thrum.lab.serve-test
  "Servers in JVMs of their own, with and without Thrum."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.serve :as serve]
   [thrum.lab.serve.work :as work])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(defn- with-server [job f]
  (let [server (serve/start! job)]
    (try (f server) (finally (child/stop! server)))))

(deftest the-path-says-how-long-to-sleep
  (are [path ms] (= path (work/path ms))
    "/sleep/50" 50
    "/" nil))

(deftest ^{:time-limit-ms 60000} a-server-greets-and-tells-what-it-uses
  (with-server {:engine :jdk, :way :bare}
    (fn [server]
      (is (= work/greeting (slurp (serve/url server nil)) (slurp (serve/url server 1))))
      (let [{:keys [threads rss]} (serve/facts server)]
        (is (pos-int? threads))
        (is (or (nil? rss) (< 10000000 rss))))
      (is (< 500 (serve/heap-per-sleeper server 200) 200000) "a virtual thread's stack, buffers, an exchange")
      (child/tell! server :sleepers)
      (is (= 0 (:sleepers (child/ask server 10000))) "and all were woken"))))

(deftest ^{:time-limit-ms 60000} tomcat-alone-serves-from-a-pool-and-from-virtual-threads
  (with-server {:engine :tomcat, :way :bare}
    (fn [server]
      (is (= work/greeting (slurp (serve/url server nil)) (slurp (serve/url server 1))))
      (is (< 500 (serve/heap-per-sleeper server 300) 400000) "more connections than Tomcat's default has threads")))
  (with-server {:engine :tomcat, :way :bare, :pool 3}
    (fn [server]
      (is (= work/greeting (slurp (serve/url server nil)))))))

(deftest ^{:time-limit-ms 60000} helidon-alone-serves
  (with-server {:engine :helidon, :way :bare}
    (fn [server]
      (is (= work/greeting (slurp (serve/url server nil)) (slurp (serve/url server 1))))
      (is (< 500 (serve/heap-per-sleeper server 300) 400000)))))

(deftest ^{:time-limit-ms 60000} the-users-handler-runs-on-the-threads-that-are-asked-for
  (doseq [[pool virtual?] [[nil "true"] [2 "false"]]]
    (with-server {:engine :jdk, :way :thrum, :handler 'thrum.lab.users-handler/on-a-virtual-thread?, :pool pool}
      (fn [server]
        (is (= virtual? (slurp (:url server))))))))

(deftest ^{:time-limit-ms 60000} a-server-that-cannot-start-says-why
  (let [failure (try (serve/start! {:engine :jdk, :way :thrum, :handler 'nowhere/handler}) (catch ExceptionInfo e e))]
    (is (= :thrum/lab-child (:type (ex-data failure))))
    (is (re-find #"^The server did not start: .*nowhere" (ex-message failure)))))

(deftest engines-are-found-on-the-class-path
  (is (every? (serve/engines) [:jdk :jetty :tomcat :helidon])))

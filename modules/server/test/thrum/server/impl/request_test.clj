(ns thrum.server.impl.request-test
  "What is refused, also where an engine lets it through, and what comes of the rest."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.request :as request]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine])
  (:import
   (clojure.lang ExceptionInfo)
   (java.net InetAddress InetSocketAddress)
   (thrum.server.impl.traffic Traffic)))

(set! *warn-on-reflection* true)

(defn- wire [{:keys [method target protocol authority headers]
              :or {method "GET", target "/", protocol "HTTP/1.1", headers ["Host" "a.example"]}}]
  (reify engine/Wire
    (method [_] method)
    (target [_] target)
    (protocol [_] protocol)
    (scheme [_] "http")
    (authority [_] authority)
    (headers [_] (object-array headers))
    (remote [_] "127.0.0.1")
    (local [_] (InetSocketAddress. (InetAddress/getLoopbackAddress) 80))
    (certificate [_] nil)))

(defn- read-as
  "Returns the request, or the status that it is refused with."
  [facts & {:as options}]
  (let [^Traffic traffic (traffic/traffic (merge {:max-header-bytes 1000, :clean-values? true}
                                                 options))]
    (try
      (request/->request (wire facts) nil (.-settings traffic))
      (catch ExceptionInfo e (:status (ex-data e))))))

(defn- over-http-2 [& headers]
  {:protocol "HTTP/2.0", :authority "a.example", :headers headers})

(deftest what-two-servers-could-read-differently-is-refused
  (doseq [facts [{:headers ["Host" "a.example" "Content-Length" "9999999999999999999"]}
                 {:target "/\u007f"}
                 {:target "*"}
                 {:target "http://b.example/"}
                 (assoc (over-http-2) :target "http://a.example/")
                 (over-http-2 "te" "gzip")
                 (over-http-2 "upgrade" "h2c")
                 (over-http-2 "x" "\u0001")
                 (over-http-2 "host" "b.example")]]
    (is (= 400 (read-as facts)) (pr-str facts))))

(deftest an-authority-is-the-same-in-any-case
  (is (= ["/x" "y"]
         (map (read-as {:target "HTTP://A.example/x?y"}) [:uri :query-string])))
  (is (= "a.example" (get-in (read-as (over-http-2 "host" "A.example")) [:headers "host"]))))

(deftest without-a-host-the-server-has-the-name-of-its-address
  (is (= "127.0.0.1" (:server-name (read-as {:protocol "HTTP/1.0", :headers []})))))

(deftest the-bound-of-the-headers-is-for-all-that-is-sent
  (doseq [n [1 40]
          :let [headers (into ["Host" "a.example"] (mapcat #(vector (str "X-" %) "v")) (range n))
                lines (for [[k v] (partition 2 headers)] (str k ": " v "\r\n"))
                size (count (str "GET / HTTP/1.1\r\n" (str/join lines)))]]
    (is (map? (read-as {:headers headers} :max-header-bytes size)))
    (is (= 431 (read-as {:headers headers} :max-header-bytes (dec size))))))

(deftest what-is-refused-is-logged-without-query-and-only-with-a-method-that-is-one
  (is (= [nil "/a"]
         (map (request/unchecked (wire {:method "G(T", :target "/a?secret"}))
              [:request-method :uri]))))

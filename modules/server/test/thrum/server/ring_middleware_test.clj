(ns thrum.server.ring-middleware-test
  "Ring's own middleware on every engine there is; skipped where Ring is not on the classpath."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.server :as server]
   [thrum.server.impl.engines :as engines]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io File FileNotFoundException OutputStream)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

;; Ring, resolved when a test runs

(defn- ring
  "Returns the var of that name; skips the test where Ring is not there."
  [sym]
  (try
    (requiring-resolve sym)
    (catch FileNotFoundException _
      (runner/skip! (str "Ring is not on the classpath: " (namespace sym))))))

(defn- wrapped
  "Returns the handler inside these middlewares, the last one outermost."
  [handler & syms]
  (reduce (fn [handler sym] ((ring sym) handler)) handler syms))

;; Engines and clients

(defn- there? [name]
  (try (engines/named name) (catch clojure.lang.ExceptionInfo _ nil)))

(defn- on-each-engine
  "Calls f with the port of a server of each engine on the classpath."
  ([handler f] (on-each-engine handler {} f))
  ([handler options f]
   (doseq [engine (filter there? [:jdk :jetty])]
     (testing engine
       (with-open [^java.lang.AutoCloseable s
                   (server/run-server handler
                                      (merge {:engine engine, :port 0, :stop-on-shutdown? false}
                                             options))]
         (f (server/port s)))))))

(defn- ok [body]
  {:status 200, :headers {"Content-Type" "text/plain; charset=utf-8"}, :body body})

(defn- form [body]
  (wire/post "/?q=query" body "Content-Type: application/x-www-form-urlencoded"))

(deftest params-come-from-the-query-and-from-the-form
  (on-each-engine
    (wrapped (fn [{:keys [params]}] (ok (pr-str (into (sorted-map) params))))
             'ring.middleware.params/wrap-params)
    (fn [port]
      (is (= (pr-str {"a" "1", "b" ["x y" "2"]})
             (:body (wire/ask-once! port (wire/get "/?a=1&b=x+y&b=2")))))
      (is (= (pr-str {"a" "form", "c" "&", "q" "query"})
             (:body (wire/ask-once! port (form "a=form&c=%26"))))))))

(deftest asynchronous-handlers-get-params-too
  (on-each-engine
    (wrapped (fn [{:keys [params]} respond _] (respond (ok (pr-str (into (sorted-map) params)))))
             'ring.middleware.params/wrap-params)
    {:async? true}
    (fn [port]
      (is (= (pr-str {"a" "form", "q" "query"})
             (:body (wire/ask-once! port (form "a=form"))))))))

(deftest cookies-are-read-and-set
  (on-each-engine
    (wrapped (fn [{:keys [cookies]}]
               (assoc (ok (str/join "," (sort (map (comp :value val) cookies))))
                      :cookies {"a" {:value "x y", :http-only true}, "b" {:value "2", :path "/"}}))
             'ring.middleware.cookies/wrap-cookies)
    (fn [port]
      (let [answer (wire/ask-once! port (wire/get "/" "Cookie: one=1; two=2" "Cookie: three=3"))]
        (is (= "1,2,3" (:body answer)))
        (is (= ["a=x+y;HttpOnly" "b=2;Path=/"] (sort (get-in answer [:headers "set-cookie"]))))))))

(defn- count-visits [{:keys [session]}]
  (let [n (inc (long (:n session 0)))]
    (assoc (ok (str n)) :session {:n n})))

(deftest sessions-go-on-from-request-to-request
  (on-each-engine
    (wrapped count-visits 'ring.middleware.session/wrap-session)
    (fn [port]
      (let [answer (wire/ask-once! port (wire/get "/"))
            cookie (first (str/split (first (get-in answer [:headers "set-cookie"])) #";"))]
        (is (= ["1" "2" "3"]
               (into [(:body answer)]
                     (repeatedly
                       2
                       #(:body (wire/ask-once! port (wire/get "/" (str "Cookie: " cookie))))))))
        (is (= "1" (:body (wire/ask-once! port (wire/get "/")))))))))

(defn- part [header & body]
  (str "--limit\r\nContent-Disposition: form-data; " header "\r\n\r\n" (str/join body) "\r\n"))

(defn- upload [content]
  (let [body (str (part "name=\"title\"" "a title")
                  (part "name=\"file\"; filename=\"a.txt\"\r\nContent-Type: text/plain" content)
                  "--limit--\r\n")]
    (wire/post "/" body "Content-Type: multipart/form-data; boundary=limit")))

(defn- tell-upload
  [{{:strs [title file]} :multipart-params}]
  (ok (pr-str title
              (select-keys file [:filename :content-type :size])
              (hash (slurp (:tempfile file))))))

(deftest files-are-uploaded
  (let [content (str/join (map #(str % "\r\n") (range 20000)))]
    (on-each-engine
      (wrapped tell-upload 'ring.middleware.multipart-params/wrap-multipart-params)
      (fn [port]
        (is (= (pr-str "a title"
                       {:filename "a.txt", :content-type "text/plain", :size (count content)}
                       (hash content))
               (:body (wire/ask-once! port (upload content)))))))))

(defn- temporary-folder
  ^File []
  (doto (.toFile (Files/createTempDirectory "thrum-files" (into-array FileAttribute [])))
    (.deleteOnExit)))

(defn- file-server
  "Serves the folder as Ring users do: types by the file's name, 304, HEAD."
  [^File folder]
  (-> ((ring 'ring.middleware.file/wrap-file)
       (fn [_] {:status 404, :headers {}, :body "none"})
       (str folder))
      (wrapped 'ring.middleware.content-type/wrap-content-type
               'ring.middleware.not-modified/wrap-not-modified
               'ring.middleware.head/wrap-head)))

(deftest files-are-served-with-type-and-date
  (let [folder (temporary-folder)
        content (str/join (repeat 30000 "css"))]
    (doto (io/file folder "a.css") (spit content) (.deleteOnExit))
    (on-each-engine
      (file-server folder)
      (fn [port]
        (let [{:keys [status body headers]} (wire/ask-once! port (wire/get "/a.css"))
              since (str "If-Modified-Since: " (first (headers "last-modified")))]
          (is (= [200 true] [status (= content body)]))
          (is (= [["text/css"] ["90000"]] (map headers ["content-type" "content-length"])))
          (is (= [304 ""] ((juxt :status :body) (wire/ask-once! port (wire/get "/a.css" since)))))
          (is (= [200 ["90000"] ""]
                 ((juxt :status #(get-in % [:headers "content-length"]) :body)
                  (wire/ask-once! port (wire/head-of "HEAD" "/a.css")))))
          (is (= 404 (:status (wire/ask-once! port (wire/get "/b.css"))))))))))

(deftest resources-in-jars-are-served
  (let [path "clojure/core.clj"
        resource-response (ring 'ring.util.response/resource-response)]
    (on-each-engine (fn [_] (resource-response path))
                    (fn [port]
                      (let [answer (wire/ask-once! port (wire/get "/"))]
                        (is (= [200 :length] ((juxt :status :framing) answer)))
                        (is (= (hash (slurp (io/resource path)))
                               (hash (String. (wire/bytes-of (:body answer)) "utf-8")))))))))

(deftype ^:private Pieces [gate])

(defn- write-pieces! [^Pieces pieces _ ^OutputStream out]
  (with-open [out out]
    (.write out (.getBytes "first"))
    (.flush out)
    (.write out (.getBytes (str (deref (.-gate pieces) 5000 "late"))))))

(deftest streamable-bodies-are-sent-as-they-are-written
  (extend Pieces
    @(ring 'ring.core.protocols/StreamableResponseBody)
    {:write-body-to-stream write-pieces!})
  (let [gate (atom nil)]
    (on-each-engine (fn [_] (ok (->Pieces (reset! gate (promise)))))
                    (fn [port]
                      (let [c (wire/send! (wire/connect port) (wire/get "/"))]
                        (try
                          (is (= 200 (:status (wire/head c))))
                          (is (= "first" (wire/chunk c)))
                          (deliver @gate "second")
                          (is (= ["second" :last] [(wire/chunk c) (wire/chunk c)]))
                          (finally
                            (wire/close! c))))))))

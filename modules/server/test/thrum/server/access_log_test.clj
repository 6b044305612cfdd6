(ns thrum.server.access-log-test
  "One line a request, with nothing in it that a client could forge."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server.impl.access-log :as access-log]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.locale :as locale]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (clojure.lang IDeref)
   (java.io File IOException StringWriter Writer)
   (java.time ZonedDateTime)
   (java.util.concurrent ArrayBlockingQueue CountDownLatch TimeUnit)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private request
  {:remote-addr "10.0.0.7"
   :request-method :get
   :uri "/a"
   :query-string "token=secret"
   :protocol "HTTP/1.1"
   :headers {"cookie" "secret", "authorization" "secret"}})

(defn- line [format facts at]
  ((access-log/formats format) facts at))

(defn- observer [to queue]
  (access-log/observer to {:format :common, :queue queue}))

(def ^:private at (ZonedDateTime/parse "2026-11-21T08:22:06Z"))

(def ^:private from-a-page
  (-> request
      (assoc :scheme :https :thrum/request-id "r-7")
      (update :headers assoc
              "host" "shop.example"
              "referer" "https://shop.example/cart?token=secret#secret"
              "user-agent" "curl \"8\"\n")))

(deftest a-combined-line-ends-with-seconds-and-id
  (is
    (=
      (str
        "10.0.0.7 - - [21/Nov/2026:08:22:06 +0000] \"GET /a HTTP/1.1\" 200 12 "
        "\"https://shop.example/cart\" "
        "\"curl \\x228\\x22\\x0A\" 0.001234 r-7")
      (line :combined {:request from-a-page, :status 200, :bytes 12, :nanos 1234000} at)))
  (is (= "- - - [21/Nov/2026:08:22:06 +0000] \"-\" 400 - \"-\" \"-\" 0.000000 -"
         (line :combined {:status 400} at))))

;; The line comes when nothing was there to be written, and the server stops right behind it.
(deftest a-line-that-comes-just-before-the-end-is-written
  (let [out (StringWriter.), lines (ArrayBlockingQueue. 1), line (delay (.offer lines "last"))
        closed (reify IDeref (deref [_] @line))]
    (#'access-log/write-lines! out lines closed)
    (is (= "last\n" (str out)))))

(deftest a-referer-is-written-without-its-fragment
  (is (str/includes? (line :json {:request {:headers {"referer" "/cart#secret"}}} at)
                     "\"referer\":\"/cart\"")))

(deftest methods-are-written-alike-in-every-locale
  (let [facts {:request (assoc request :request-method :options)}]
    (is (= "10.0.0.7 - - [21/Nov/2026:08:22:06 +0000] \"OPTIONS /a HTTP/1.1\" - -"
           (locale/in-turkish #(line :common facts at))))))

(deftest a-json-line-is-an-object
  (is
    (=
      (str
        "{\"time\":\"2026-11-21T08:22:06Z\",\"remote_addr\":\"10.0.0.7\","
        "\"scheme\":\"https\",\"host\":\"shop.example\",\"method\":\"GET\","
        "\"uri\":\"/a\",\"protocol\":\"HTTP/1.1\",\"status\":200,\"bytes\":12,"
        "\"seconds\":0.001234,\"referer\":\"https://shop.example/cart\","
        "\"user_agent\":\"curl \\u00228\\u0022\\u000a\",\"request_id\":\"r-7\",\"error\":null}")
      (line :json {:request from-a-page, :status 200, :bytes 12, :nanos 1234000} at)))
  (is (str/includes? (line :json {:throwable (IOException. "secret")} at)
                     "\"error\":\"java.io.IOException\"")))

(deftest a-cancelled-request-has-the-jdks-class-in-its-line
  (is (str/includes? (line :json {:throwable (spi/cancelled "request-7" :thrum/timeout)} at)
                     "\"error\":\"java.util.concurrent.CancellationException\"")))

(deftest no-line-is-longer-than-its-fields-may-be
  (let [long-one (str/join (repeat 100000 \"))]
    (doseq [format (keys access-log/formats)
            :let [text (line format
                             {:request (assoc request
                                              :uri long-one
                                              :headers {"user-agent" long-one
                                                        "referer" long-one
                                                        "host" long-one})}
                             at)]]
      (is (< (count text) 30000) (str format)))))

(deftest a-line-is-in-the-common-format
  (is (= "10.0.0.7 - - [21/Nov/2026:08:22:06 +0000] \"GET /a HTTP/1.1\" 200 12"
         (line :common
               {:request request, :status 200, :bytes 12}
               (ZonedDateTime/parse "2026-11-21T08:22:06Z")))))

(deftest what-could-break-a-line-is-escaped
  (is (= "a\\x22b\\x5Cc\\x0Ad\\x7F\\xE2\\x82\\xAC" (access-log/escaped "a\"b\\c\nd\u007f€"))))

(deftest a-request-that-could-not-be-read-has-a-line-too
  (is (= "- - - [21/Nov/2026:08:22:06 +0000] \"-\" 400 -"
         (line :common {:status 400} (ZonedDateTime/parse "2026-11-21T08:22:06Z")))))

(deftest the-end-of-the-server-writes-what-is-queued
  (let [out (StringWriter.)
        {:keys [end stop dropped]} (observer out 100)]
    (dotimes [_ 100] (end {:request request, :status 200, :bytes 1}))
    (stop {})
    (is (= 100 (+ (count (str/split-lines (str out))) (long (dropped)))))
    (is (not (str/includes? (str out) "secret")))))

(deftest a-file-is-appended-to
  (let [file (File/createTempFile "access" ".log")]
    (try
      (spit file "before\n")
      (let [{:keys [end stop]} (observer file 10)]
        (end {:request request, :status 204, :bytes 0})
        (stop {}))
      (is (re-matches #"before\n10\.0\.0\.7 .* 204 -\n" (slurp file)))
      (finally (.delete file)))))

(defn- noting-writer
  "Returns a writer that adds what it is given, :flush and :close to trail."
  ^Writer [trail]
  (proxy [Writer] []
    (write [text] (swap! trail conj text))
    (flush [] (swap! trail conj :flush))
    (close [] (swap! trail conj :close))))

(deftest a-line-is-flushed-while-the-server-runs
  (let [trail (atom []), {:keys [end stop]} (observer (noting-writer trail) 10)]
    (end {:request request})
    (is (gate/eventually 5000 #(some #{:flush} @trail)))
    (stop {})))

(deftest a-file-is-closed-at-the-end-and-a-writer-stays-open
  (let [file (atom []), writer (atom [])]
    (with-redefs [io/writer (fn [& _] (noting-writer file))]
      (doseq [to ["access.log" (noting-writer writer)]]
        ((:stop (observer to 10)) {})))
    (is (= [:flush :close] @file))
    (is (= [:flush] @writer))))

(defn- stuck-writer
  "Returns a writer whose first line waits for the gate; lines: how many have been written."
  ^Writer [^CountDownLatch entered ^CountDownLatch gate & {:keys [lines], :or {lines (atom 0)}}]
  (proxy [Writer] []
    (write [text]
      (.countDown entered)
      (.await gate 5 TimeUnit/SECONDS)
      (when (= "\n" text) (swap! lines inc)))
    (flush [])
    (close [])))

(deftest what-waits-at-the-end-is-written
  (let [entered (CountDownLatch. 1), gate (CountDownLatch. 1), lines (atom 0)
        {:keys [end stop]} (observer (stuck-writer entered gate :lines lines) 10)]
    (dotimes [_ 3] (end {:request request}))
    (.await entered 5 TimeUnit/SECONDS)
    (let [[^Thread stopping _] (gate/start "stop" #(stop {}))]
      (is (gate/eventually 5000 #(= Thread$State/TIMED_WAITING (.getState stopping))))
      (.countDown gate)
      (.join stopping 10000))
    (is (= 3 @lines))))

(deftest a-slow-disk-delays-no-request
  (let [entered (CountDownLatch. 1), gate (CountDownLatch. 1)
        {:keys [end stop dropped]} (observer (stuck-writer entered gate) 2)]
    (end {:request request})
    (is (.await entered 5 TimeUnit/SECONDS))
    (dotimes [_ 5] (end {:request request}))
    (is (= 3 (dropped)))
    (.countDown gate)
    (stop {})))

(defn- reported
  "Returns what goes to the default uncaught exception handler first, while f is called."
  [f]
  (let [thrown (promise)]
    (uncaught/reporting (fn [_ t] (deliver thrown t))
                        #(do (f) (deref thrown 5000 nil)))))

(defn- full-disk ^Writer [no-space]
  (proxy [Writer] []
    (write [_] (throw no-space))
    (flush [])
    (close [])))

(deftest a-full-disk-ends-the-log-and-nothing-else-and-that-is-said
  (let [no-space (IOException. "No space left")
        {:keys [end stop dropped]} (observer (full-disk no-space) 10)]
    (is (= no-space (ex-cause (reported #(end {:request request})))))
    (is (gate/eventually 5000 #(= 1 (dropped))))
    (end {:request request})
    (is (= 2 (dropped)))
    (stop {})))

(deftest a-file-that-cannot-be-written-is-named
  (when (.exists (File. "/dev/full"))
    (let [{:keys [end stop]} (access-log/observer "/dev/full" {:format :common, :queue 10})]
      (is (= "The access log /dev/full has ended: it cannot be written"
             (ex-message (reported #(end {:request request})))))
      (stop {}))))

(deftest a-line-that-is-made-while-the-log-ends-is-counted
  (let [{:keys [end stop dropped]}
        (access-log/observer (full-disk (IOException. "No space left")) {:format :json, :queue 10})
        entered (promise), gate (promise)
        scheme (reify clojure.lang.Named
                 (getName [_] (deliver entered true) (deref gate 5000 nil) "http"))
        [_ late] (gate/start "late" #(end {:request {:scheme scheme}}))]
    (is (deref entered 5000 false))
    (is (some? (reported #(end {:request request}))))
    (is (gate/eventually 5000 #(= 1 (dropped))))
    (deliver gate :go)
    (deref late 5000 nil)
    (is (= 2 (dropped)))
    (stop {})))

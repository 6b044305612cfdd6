(ns thrum.lab.channels-test
  "Jobs with channels in JVMs of their own: what they measure, and what becomes of one that fails."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.channels :as channels]
   [thrum.lab.child :as child]
   [thrum.lab.experiments.go-blocks.requests :as requests]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.servers :as servers]
   [thrum.lab.temporary :as temporary]
   [thrum.lab.threads :as threads]
   [thrum.test-kit.ahead :as ahead])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn- pipeline [kind]
  (channels/sample {} {:call 'thrum.lab.channels.pipeline/sample
                       :kind kind
                       :n 4
                       :wait-ms 2
                       :items 200}))

(deftest a-pipeline-has-n-in-work-and-leaves-nothing
  (let [{:keys [ms peak threads closed unread error]} (pipeline :thrum-pipeline-blocking)]
    (is (nil? error))
    (is (= 4 peak))
    (is (< 100 ms) "200 items of 2 ms, 4 at once")
    (is (pos? threads))
    (is (= [0 0] ((juxt :platform :virtual) closed)))
    (is (every? nat-int? ((juxt :platform :virtual :taken) unread)))))

(deftest what-core-async-does-is-seen
  (is (= 6 (:peak (pipeline :core-pipeline-async))) "two more than it was asked for")
  (is (= 4 (:platform (:unread (pipeline :core-pipeline-blocking))))
      "a thread for each item that is not taken"))

(defn- asking [url]
  {:call 'thrum.lab.experiments.go-blocks.requests/sample
   :way :raw-jdk
   :n 40
   :bytes 1000
   :url url
   :short-url url})

(deftest requests-are-sent-at-once-and-threads-counted
  (servers/with-server [url (file-server/start!)]
                       (let [{:keys [ms cold-ms peak threads error]}
                             (channels/sample {} (asking (str url (file-server/path 1000 5000))))]
                         (is (nil? error))
                         (is (= 40 peak))
                         (is (< 195 ms) "an answer takes 200 ms")
                         (is (< 195 cold-ms))
                         (is (< 3 threads 40) "not a platform thread each"))))

(deftest a-request-that-fails-fails-the-sample
  (servers/with-server [url (servers/answering 500 {} 0)]
                       (is (thrown-with-msg? ExceptionInfo
                                             #"40 of 40 requests failed: .*500"
                                             (requests/sample (asking url)))))
  (servers/with-server [url (file-server/start!)]
                       (is (thrown-with-msg? ExceptionInfo
                                             #"expected 1000 bytes, received 999"
                                             (requests/sample
                                               (asking (str url
                                                         (file-server/path 999 :unlimited))))))))

(deftest a-job-that-fails-is-told
  (let [{:keys [class message]} (:error (channels/sample {} (asking "http://127.0.0.1:1/")))]
    (is (= "job" class))
    ;; 25.0.5, 27 and newer say more behind it.
    (is (str/starts-with? message "40 of 40 requests failed: Connection refused"))))

(deftest threads-of-both-kinds-are-counted
  (let [gate (CountDownLatch. 1)
        before (threads/busy)
        virtual (mapv (fn [n]
                        (.start (.name (Thread/ofVirtual)
                                       ^String (nth ["" "named" "a \"quoted\" one"] (rem n 3)))
                                #(.await gate)))
                      (range 60))
        platform (vec (repeatedly 30 (fn [] (.start (Thread/ofPlatform) #(.await gate)))))
        more (merge-with - (threads/busy) before)]
    (.countDown gate)
    (run! #(Thread/.join %) (into virtual platform))
    (is (<= 50 (:virtual more) 70) "60, and what the rest of this JVM does")
    (is (<= 20 (:platform more) 40) "30, and the same")))

(deftest what-is-compiled-ahead-is-what-the-jobs-load
  (let [sources (ahead/core-alone (child/class-path))
        folder (with-redefs [child/class-path (constantly sources)] (channels/compile-ahead!))]
    (try
      (is (.isFile (io/file folder "thrum" "lab" "channels" "pipeline__init.class")))
      (is (.isFile (io/file folder "clojure" "core" "async__init.class")))
      (finally (temporary/delete! folder)))
    (is (not (.exists (io/file folder))))))

(deftest what-cannot-be-run-is-a-sentence
  (is (re-find #"^core.async 1.9.829-alpha2 could not be had: ./cljw cannot be run"
               (:problem (channels/alpha-class-path! "/")))))

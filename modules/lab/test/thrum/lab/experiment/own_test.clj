(ns thrum.lab.experiment.own-test
  "The user's own URLs and calls."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.calls :as calls]
   [thrum.lab.experiment.urls :as urls]
   [thrum.lab.server :as server]
   [thrum.lab.servers :as servers])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io File)))

(defn- file-of [text]
  (doto (File/createTempFile "thrum-lab" ".txt")
    (.deleteOnExit)
    (spit text)))

(defn- run
  [experiment options]
  (let [plan (experiment/plan experiment options {:cpus 2})
        part (first (:parts plan))
        env (experiment/open! experiment)]
    (experiment/sample! experiment env part (first (:contenders part)) (constantly nil))))

(deftest every-url-ends-in-an-outcome
  (servers/with-server
    [url (server/start!)]
    (let [text (str "# mine\n\n"
                    url
                    (server/path 1000 :unlimited)
                    "\nno url\nhttp://a b/\nhttp://127.0.0.1:1/x\n")
          sample (run (urls/experiment (file-of text)) {:limit 4, :per-host 2, :timeout 5})]
      (is (= [[3 nil] [4 :bad-url] [5 :bad-url] [6 :connection-refused]]
             (map (juxt :line :kind) (:outcomes sample))))
      (is (= [1 3 1000 {200 1}] ((juxt :ok :failed :bytes :statuses) sample))))))

(deftest urls-are-shown-without-their-secrets
  (are [shown url] (= shown (urls/shown url))
    "http://…@h/p?…" "http://user:pass@h/p?token=secret"
    "https://h/p" "https://h/p"))

(defn reciprocal "The user's function of these tests." [x] (/ 1 x))

(deftest every-input-ends-in-an-outcome
  (let [sample (run (calls/experiment `reciprocal (file-of "[1 2 0 4]")) {:limit 2})]
    (is (= [[1 nil] [2 nil] [3 :ArithmeticException] [4 nil]]
           (map (juxt :input :kind) (:outcomes sample))))
    (is (= [3 1] ((juxt :ok :failed) sample)))))

(defn- refusal [experiment]
  (try
    (experiment/open! experiment)
    (catch ExceptionInfo e (when (= :thrum/lab-usage (:type (ex-data e))) (ex-message e)))))

(deftest what-cannot-be-run-is-refused-in-a-sentence
  (are [pattern experiment] (re-find pattern (refusal experiment))
    #"holds no URL"
    (urls/experiment (file-of "# nothing\n"))
    #"cannot be read"
    (urls/experiment "/nowhere/urls.txt")
    #"There is no function .*own-test/reciprocl; the nearest one is thrum.lab.experiment.own-test/reciprocal"
    (calls/experiment 'thrum.lab.experiment.own-test/reciprocl (file-of "[1]"))
    #"not on the class path"
    (calls/experiment 'no.such.ns/f (file-of "[1]"))
    #"must hold one vector"
    (calls/experiment `reciprocal (file-of "{:a 1}"))
    #"is no EDN"
    (calls/experiment `reciprocal (file-of "[1"))))

(ns thrum.lab.experiments.own-test
  "The user's own URLs and calls."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.experiments.own.calls :as calls]
   [thrum.lab.experiments.own.urls :as urls]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.servers :as servers])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io File)))

(defn- file-of [text]
  (doto (File/createTempFile "thrum-lab" ".txt")
    (.deleteOnExit)
    (spit text)))

(defn- run [{:keys [plan open! sample!]} options]
  (let [plan (plan options {:cpus 2}), [part] (:parts plan)]
    (sample! (open! plan) part (first (:contenders part)) (constantly nil))))

(def ^:private options {:limit 4, :per-host 2, :timeout 5})

(defn- run-urls [file]
  (run urls/experiment (assoc options :urls file)))

(defn- run-calls [function file]
  (run calls/experiment (assoc options :call function :inputs file)))

(deftest every-url-ends-in-an-outcome
  (servers/with-server
    [url (file-server/start!)]
    (let [text (str "# mine\n\n"
                    url
                    (file-server/path 1000 :unlimited)
                    "\nno url\nhttp://a b/\nhttp://127.0.0.1:1/x\n")
          sample (run-urls (file-of text))]
      (is (= [[3 nil] [4 :bad-url] [5 :bad-url] [6 :connection-refused]]
             (map (juxt :line :kind) (:outcomes sample))))
      (is (= [1 3 1000 {200 1}] ((juxt :ok :failed :bytes :statuses) sample))))))

(deftest urls-are-shown-without-their-secrets
  (are [shown url] (= shown (urls/shown url))
    "http://…@h/p?…" "http://user:pass@h/p?token=secret"
    "http://…@h/p" "http://user:p@ss@h/p"
    "http://h?…" "http://h?to=a@b"
    "http://…@h/p" "http://user:sec#ret@h/p"
    "http://…@h/p" "http://user:se?cret@h/p"
    "http://…@h/p?…" "http://user:se/cr et@h/p?q"
    "https://h/p" "https://h/p"))

(def not-a-function 3)
(defmacro a-macro [x] x)

(defn reciprocal "The user's function of these tests." [x] (/ 1 x))

(deftest every-input-ends-in-an-outcome
  (let [sample (run-calls `reciprocal (file-of "[1 2 0 4]"))]
    (is (= [[1 nil] [2 nil] [3 :ArithmeticException] [4 nil]]
           (map (juxt :input :kind) (:outcomes sample))))
    (is (= [3 1] ((juxt :ok :failed) sample)))))

(defn- refusal [run]
  (try
    (run)
    (catch ExceptionInfo e (when (= :thrum/lab-usage (:type (ex-data e))) (ex-message e)))))

(deftest what-cannot-be-run-is-refused-in-a-sentence
  (are [pattern form] (re-find pattern (refusal (fn [] form)))
    #"holds no URL" (run-urls (file-of "# nothing\n"))
    #"cannot be read" (run-urls "/nowhere/urls.txt")
    #"There is no function .*own-test/reciprocl; the nearest one is .*own-test/reciprocal"
    (run-calls 'thrum.lab.experiments.own-test/reciprocl (file-of "[1]"))
    #"not on the class path" (run-calls 'no.such.ns/f (file-of "[1]"))
    #"own-test/not-a-function is no function: it is a java.lang.Long\.$"
    (run-calls 'thrum.lab.experiments.own-test/not-a-function (file-of "[1]"))
    #"own-test/a-macro is no function: it is a macro\.$"
    (run-calls 'thrum.lab.experiments.own-test/a-macro (file-of "[1]"))
    #"must hold one vector" (run-calls `reciprocal (file-of "{:a 1}"))
    #"must hold one vector or list, and nothing behind it"
    (run-calls `reciprocal (file-of "[1] [2]"))
    #"is no EDN: EOF while reading" (run-calls `reciprocal (file-of "[1"))
    #"is no EDN: No reader function for tag foo" (run-calls `reciprocal (file-of "[#foo 1]"))))

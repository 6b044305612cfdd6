(ns thrum.server.http1.body-test
  "Where a request's body ends, and which bytes are none."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.http1.body :as body]
   [thrum.server.http1.input :as input]
   [thrum.server.http1.sockets :as sockets]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.util.concurrent CyclicBarrier)
   (thrum.server.http1.body Body)))

(set! *warn-on-reflection* true)

(defn- body-of ^Body [in length calls]
  (body/body in length {:ask #(swap! calls conj :ask)
                        :done #(swap! calls conj :done)
                        :most-trailers 100}))

(defn- in-a-minute []
  (spi/deadline-in 60000))

(defn- rest-of
  "Returns the bytes that are left, as text, up to the client's end."
  [in]
  (let [next-byte #(try (input/next-byte! in) (catch IOException _))]
    (apply str (map char (take-while some? (repeatedly next-byte))))))

(defn- read-body
  "Returns [body what-follows], or :broken."
  [text length]
  (sockets/with-client [c text]
    (let [in (input/input c)
          calls (atom [])
          body (body-of in length calls)]
      (try
        (let [read (slurp (body/stream body) :encoding "ISO-8859-1")]
          (is (= [[:ask :done] true true] [@calls (body/begun? body) (body/ended? body)]))
          [read (rest-of in)])
        (catch IOException _
          (is (= [[:ask] false] [@calls (body/skip-rest! body (in-a-minute))]))
          :broken)))))

(deftest a-body-ends-where-its-length-says
  (is (= ["body" "GET"] (read-body "bodyGET" 4))))

(defn- take-all
  "Takes bytes up to the end, or until a take throws; returns how many."
  [^Body body]
  (let [one (byte-array 1)]
    (loop [n 0]
      (if (pos? (long (try (.take body one 0 1) (catch IOException _ -1))))
        (recur (inc n))
        n))))

(deftest two-threads-that-take-at-once-take-no-byte-of-what-follows
  (dotimes [_ 20]
    (sockets/with-client [c (str (str/join (repeat 5000 "x")) "GET")]
      (let [in (input/input c)
            body (body-of in 5000 (atom []))
            barrier (CyclicBarrier. 2)
            taken (mapv deref (mapv (fn [_] (future (.await barrier) (take-all body))) (range 2)))]
        (is (= [5000 "GET"] [(reduce + taken) (rest-of in)]))))))

(deftest a-body-that-breaks-off-is-broken
  (is (= :broken (read-body "bod" 4)))
  (is (= :broken (read-body "4\r\nbod" :chunked))))

(deftest chunks-are-joined-and-trailers-are-dropped
  (is (= ["abcdefghijklmn" "GET"]
         (read-body
           "4\r\nabcd\r\nA;x=\"y\"\r\nefghijklmn\r\n0\r\nX-User: evil\r\nY: z\r\n\r\nGET"
           :chunked)))
  (is (= ["" ""] (read-body "000\r\n\r\n" :chunked))))

(deftest chunks-that-could-be-read-differently-are-broken
  (doseq [text ["+4\r\nabcd\r\n0\r\n\r\n" "-1\r\n" "\r\n" "0x4\r\nabcd\r\n0\r\n\r\n"
                " 4\r\nabcd\r\n0\r\n\r\n" "4 4\r\nabcd\r\n0\r\n\r\n" "4\nabcd\r\n0\r\n\r\n"
                "4\rabcd\r\n0\r\n\r\n" "4\rXabcd\r\n0\r\n\r\n" "4\r\nabcde\r\n0\r\n\r\n"
                "4\r\nabcd0\r\n\r\n" "4\r\nabcd\r\n0\r\n\n"
                "4;\u0000\r\nabcd\r\n0\r\n\r\n" "FFFFFFFFFFFFFFFFF\r\nabcd"
                "0\r\nno trailer\r\n\r\n" "0\r\n: x\r\n\r\n"]]
    (is (= :broken (read-body text :chunked)) (pr-str text))))

(deftest trailers-have-an-end
  (let [read-with #(read-body (str "0\r\n" (apply str (repeat % "X:\r\n")) "\r\nGET") :chunked)]
    (is (= ["" "GET"] (read-with 24)))
    (is (= :broken (read-with 30)))
    (is (= :broken (read-with 200))))
  (let [as-long-as-all (str "X:" (str/join (repeat 98 "x")) "\r\n")]
    (is (= :broken (read-body (str "0\r\n" as-long-as-all as-long-as-all "\r\n") :chunked)))))

(deftest chunks-may-be-larger-than-an-int
  (is (= :broken (read-body "100000000\r\nabcd" :chunked)))
  (sockets/with-client [c "100000004\r\nabcd"]
    (let [body (body-of (input/input c) :chunked (atom []))]
      (is (= 4 (.take body (byte-array 10) 0 10))))))

(deftest a-read-of-nothing-waits-for-nothing
  (sockets/with-client [c nil]
    (is (zero? (.read (body/stream (body-of (input/input c) 4 (atom []))) (byte-array 0))))))

(deftest a-rest-that-is-skipped-limits-no-later-body
  (sockets/with-client [c "restbody"]
    (let [in (input/input c), long-ago (spi/deadline-in -60000)]
      (is (body/skip-rest! (body-of in 4 (atom [])) (in-a-minute)))
      (is (nil? (.bodyUntil in)))
      (is (not (body/skip-rest! (body-of in 100 (atom [])) long-ago)))
      (is (nil? (.bodyUntil in))))))

(defn- failure
  "Returns the message of what a take of one byte throws."
  [^Body body]
  (try
    (.take body (byte-array 1) 0 1)
    (catch IOException e (ex-message e))))

(deftest a-body-is-not-read-on-behind-a-flaw
  (sockets/with-client [c "1;\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n"]
    (let [body (body-of (input/input c) :chunked (atom []))]
      (is (= ["The request's body is broken: an LF without its CR"
              "The request's body is broken: it cannot be read on"]
             [(failure body) (failure body)]))
      (is (not (body/ended? body))))))

(deftest a-chunk-that-is-longer-than-its-size-is-named
  (sockets/with-client [c "1\r\nab\r\n0\r\n\r\n"]
    (let [body (body-of (input/input c) :chunked (atom []))]
      (is (= [1 "The request's body is broken: a chunk does not end at its size"]
             [(failure body) (failure body)])))))

(deftest a-long-body-is-not-skipped
  (sockets/with-client [c (apply str (repeat 300000 "x"))]
    (let [in (input/input c)]
      (doseq [[length skipped?] [[60000 true] [65536 true] [80000 false]]
              :let [body (body-of in length (atom []))]]
        (is (= (not skipped?) (body/too-long? body)) (str length))
        (is (= skipped? (body/skip-rest! body (in-a-minute))) (str length)))
      (is (body/too-long? (body-of in 65537 (atom [])))))))

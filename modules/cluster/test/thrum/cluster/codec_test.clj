(ns thrum.cluster.codec-test
  "What is carried comes back equal and of its kind; what cannot be is refused with its path."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [clojure.test.check :as check]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.cluster.impl.codec :as codec]
   [thrum.cluster.nodes :as nodes]
   [thrum.cluster.work :as work]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang BigInt PersistentQueue)
   (java.time Duration Instant LocalDate LocalDateTime ZonedDateTime)))

(set! *warn-on-reflection* true)

(defrecord Parcel [id content])

(defn- there-and-back [x]
  (codec/<-bytes (codec/->bytes "the value" x)))

(defn- kind [x]
  (cond (record? x) (class x)
        (sorted? x) :sorted
        (vector? x) :vector
        (map? x) :map
        (set? x) :set
        (seq? x) :seq
        (instance? PersistentQueue x) :queue
        :else (class x)))

(def ^:private samples
  [nil true 1 -7 1.5 1N 2M 2/3 \a "text" :k :a/k 's 'a/s [] [1 [2]] () '(1 2) {} {:a {:b [1]}} #{}
   #{1 :a} (sorted-map 2 :b 1 :a) (sorted-set 3 1 2) (into PersistentQueue/EMPTY [1 2])
   (->Parcel 1 {:a [1]}) [(->Parcel 2 nil)] (map inc [1 2]) (range 40) (zipmap (range 40) (range))
   (first {:a 1}) #inst "2026-01-01" #uuid "00000000-0000-0000-0000-000000000001"
   (Instant/parse "2026-01-01T00:00:00.123456789Z") (LocalDate/parse "2026-01-01")
   (LocalDateTime/parse "2026-01-01T10:00") (Duration/ofMillis 1500)
   (ZonedDateTime/parse "2026-01-01T10:00+01:00[Europe/Berlin]") (java.net.URI. "http://a/b")])

(deftest what-is-carried-comes-back-equal-and-of-its-kind
  (doseq [x samples]
    (is (= x (there-and-back x)))
    (is (= (kind x) (kind (there-and-back x))) (pr-str x))))

(deftest a-few-come-back-as-a-close-relative
  (doseq [x [(int 7) (short 7) (byte -7)]]
    (is (= [(long x) Long] ((juxt identity class) (there-and-back x)))))
  (is (= [7N BigInt] ((juxt identity class) (there-and-back (biginteger 7)))))
  (is (= ["a"] (vec (there-and-back (into-array String ["a"]))))))

(deftest arrays-and-patterns-come-back
  (is (= [1 2 -3] (vec (there-and-back (byte-array [1 2 -3])))))
  (is (bytes? (:b (there-and-back {:b (byte-array 3)}))))
  (is (= [1.5] (vec (there-and-back (double-array [1.5])))))
  (is (= "a+" (str (there-and-back #"a+")))))

(deftest metadata-comes-back-at-every-depth
  (is (= {:a 1} (meta (there-and-back (with-meta [1] {:a 1})))))
  (is (= {:tag 'String} (meta (:x (there-and-back {:x (with-meta 'y {:tag 'String})})))))
  (is (= {:m 1} (meta (there-and-back (with-meta (->Parcel 1 2) {:m 1}))))))

(deftest any-data-comes-back
  (let [property (prop/for-all [x gen/any-equatable]
                   (let [y (there-and-back x)] (and (= x y) (= (kind x) (kind y)))))
        outcome (check/quick-check 300 property :max-size 40)]
    (is (:pass? outcome) (pr-str (:shrunk outcome)))))

(deftest an-exception-comes-back-with-class-message-data-and-causes
  (let [t (there-and-back (ex-info "late" {:type :shop/late, :ids #{1}}
                                   (java.io.IOException. "reset")))]
    (is (= ["late" {:type :shop/late, :ids #{1}}] [(ex-message t) (ex-data t)]))
    (is (instance? java.io.IOException (ex-cause t)))
    (is (= "reset" (ex-message (ex-cause t))))
    (is (some #(.contains (.getClassName ^StackTraceElement %) "codec_test")
              (.getStackTrace ^Throwable t))))
  (let [t (there-and-back (java.io.UncheckedIOException. "no such constructor"
                                                         (java.io.IOException. "x")))]
    (is (= :thrum/remote (:type (ex-data t))))
    (is (= 'java.io.UncheckedIOException (:class (ex-data t))))))

(deftest an-exception-whose-constructor-says-something-else-keeps-message-and-cause
  (doseq [t [(nodes/thrown #(format "%s %s" 1)) (java.util.UnknownFormatConversionException. "q")
             (ExceptionInInitializerError. (java.io.IOException. "x"))]
          :let [back (there-and-back t)]]
    (is (= (str (.getName (class t)) (some->> (ex-message t) (str ": "))) (ex-message back)))
    (is (= [:thrum/remote (symbol (.getName (class t)))]
           ((juxt :type :class) (ex-data back))))
    (is (= (some-> t ex-cause ex-message) (some-> back ex-cause ex-message))))
  (let [back (there-and-back (ClassNotFoundException. "no x" (java.io.IOException. "no file")))]
    (is (= [ClassNotFoundException "no x"] ((juxt class ex-message) back)))
    (is (= "no file" (some-> back ex-cause ex-message)))))

(deftest a-record-of-a-namespace-with-an-underscore-comes-back
  (doseq [ns-name '[thrum.cluster.with_underscore thrum.cluster.with-dash_and_underscore]]
    (let [ns (create-ns ns-name)]
      (try
        (let [x ((binding [*ns* ns]
                   (refer-clojure)
                   (eval '(defrecord Crate [id]))
                   (eval '->Crate))
                 7)]
          (is (= [x (class x)] ((juxt identity class) (there-and-back x)))))
        (finally (remove-ns ns-name))))))

(defn- refusal [x]
  (try (codec/->bytes "the value" x) :carried
       (catch clojure.lang.ExceptionInfo e (ex-data e))))

(deftest an-exception-whose-message-cannot-be-read-comes-back-all-the-same
  (let [t (there-and-back [(nodes/thrown #(work/unreadable 1))])]
    (is (str/includes? (ex-message (first t)) "could not be read"))))

(deftest what-cannot-be-carried-is-refused-with-its-path
  (doseq [[x path] [[inc []]
                    [[1 (Object.)] [1]]
                    [{:a [1 {:b (atom 1)}]} [:a 1 :b]]
                    [{:a (list 1 #'inc)} [:a 1]]
                    [(->Parcel 1 {:c (java.util.ArrayList.)}) [:content :c]]
                    [{:s (sorted-map-by > 1 2)} [:s]]
                    [(object-array [1 (Object.)]) [1]]
                    [(with-meta [1] {:f inc}) [:metadata :f]]
                    [[{:a (with-meta 's {:f [inc]})}] [0 :a :metadata :f 0]]
                    [[1 (with-meta (list (Object.)) {:f inc})] [1 :metadata :f]]]]
    (is (= [:thrum/invalid path] ((juxt :type :path) (refusal x))) (pr-str x))))

(deftest what-stands-behind-the-refused-part-is-not-looked-at
  (is (= [0 :metadata :f]
         (:path (gate/in-time 60000 #(refusal [(with-meta [1] {:f inc}) (repeat (range))]))))))

(defn- nested [n] (reduce (fn [x _] [x]) 1 (range n)))

(deftest what-is-nested-too-deeply-is-refused-by-the-writer-and-by-the-reader
  (is (= :thrum/invalid (:type (refusal (nested 100000)))))
  (let [written (promise)
        write! #(deliver written (codec/->bytes "it" (nested 100000)))
        large-stack 1000000000]
    (.start (Thread. nil write! "writer" large-stack))
    (is (= :thrum/invalid (nodes/type-of #(codec/<-bytes (deref written 20000 nil)))))))

(deftest an-endless-sequence-is-refused
  (doseq [x [(repeat nil) (repeat (range)) (repeat (repeat 1000 nil))
             [(with-meta [1] {:f inc}) (repeat (repeat 1000 nil))]]]
    (is (= :thrum/invalid (:type (gate/in-time 60000 #(refusal x)))))))

(deftest what-is-no-sequence-may-have-more-elements
  (doseq [x [(vec (repeat 1000001 nil)) (object-array 1000001)]]
    (is (= (count x) (count (there-and-back x)))))
  (is (= 1000000 (count (there-and-back (repeat 1000000 nil)))))
  (is (= :thrum/invalid (:type (refusal (repeat 1000001 nil))))))

(deftest an-interrupt-ends-the-work-on-a-long-sequence
  (let [interrupt! #(when (= 100 %) (.interrupt (Thread/currentThread)))
        interrupting #(map interrupt! (range))]
    (doseq [x [(interrupting)
               {:a [(repeat (interrupting))]}]]
      (is (instance? InterruptedException
                     (gate/in-time 20000 (fn [] (nodes/thrown #(codec/->bytes "it" x)))))))))

(ns thrum.server.engine.jdk.wire-test
  "How long the JDK's server may block on a client, over an exchange without a connection."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server.engine.jdk.patience :as patience]
   [thrum.server.engine.jdk.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (com.sun.net.httpserver Headers HttpExchange)
   (java.io IOException InputStream OutputStream)
   (java.lang Thread$State)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- exchange
  "Returns an exchange whose request has a body of this length, in, and whose response is written
  to out; its head by a call of send-head!."
  ([out] (exchange out (fn [])))
  ([out send-head!] (exchange out send-head! 10))
  ([out send-head! length] (exchange out send-head! length nil))
  ([out send-head! length in]
   (let [request (doto (Headers.) (.set "Content-length" (str length))), response (Headers.)]
     (proxy [HttpExchange] []
       (getRequestHeaders [] request)
       (getResponseHeaders [] response)
       (getRequestBody [] in)
       (getResponseBody [] out)
       (getProtocol [] "HTTP/1.1")
       (sendResponseHeaders [_ _] (send-head!))))))

(defn- guard
  "Returns a guard that notes in trail what it is asked for."
  [trail]
  (reify patience/Guard
    (enter! [_ _] (swap! trail conj :enter))
    (leave! [_] (swap! trail conj :leave))
    (mine! [this] this)
    (forget! [_ _])))

(defn- noting
  "Returns a stream that notes in trail how much is written at once."
  ^OutputStream [trail]
  (proxy [OutputStream] []
    (write
      ([b] (swap! trail conj (alength ^bytes b)))
      ([_ _ n] (swap! trail conj n)))))

(def ^:private in-pieces
  [:enter 65536 :enter 65536 :enter 1 :leave])

(def ^:private large (byte-array 131073))

(deftest each-piece-of-a-whole-body-has-its-own-time
  (let [trail (atom [])
        wire (wire/wire (exchange (noting trail)) (guard trail) 1000 nil)]
    (engine/send! wire 200 (object-array 0) large)
    (is (= in-pieces @trail))))

(deftest a-head-has-its-own-time
  (let [trail (atom [])
        exchange (exchange (noting (atom [])) #(swap! trail conj :head))
        wire (wire/wire exchange (guard trail) 1000 nil)]
    (engine/begin! wire 200 (object-array 0) -1)
    (is (= [:enter :head :leave] @trail))))

(deftest a-body-whose-rest-cannot-be-written-does-not-end
  (let [full (proxy [OutputStream] []
               (flush [] (throw (IOException. "full")))
               ;; As the JDK's stream of chunks, which swallows it.
               (close []))
        wire (wire/wire (exchange full (fn []) 0) (guard (atom [])) 1000 nil)]
    (engine/begin! wire 200 (object-array 0) -1)
    (is (thrown-with-msg? IOException #"full" (engine/end! wire)))))

(deftest each-piece-of-a-large-write-has-its-own-time
  (let [trail (atom [])
        out (patience/output (noting trail) (fn []) (guard trail) 1000)]
    (.write out ^bytes large)
    (is (= in-pieces @trail))))

(deftest an-alarm-that-comes-after-the-response-interrupts-nobody
  (let [alarm (atom nil)
        wire (wire/wire (exchange (noting (atom []))) (guard (atom [])) 1000 nil)]
    (with-redefs [spi/arm! (fn [^long _ f] (reset! alarm f))
                  spi/disarm! (fn [_])]
      (engine/send! wire 200 (object-array 0) large))
    (@alarm)
    (is (not (Thread/interrupted)))))

(defn- slow-to-read
  "Returns a stream that counts reads down when it is read, and gives a byte behind the gate."
  ^InputStream [^CountDownLatch reads gate]
  (proxy [InputStream] []
    (read [_ _ _]
      (.countDown reads)
      (deref gate 10000 nil)
      1)))

(deftest an-end-waits-for-a-read-of-the-request
  (let [reads (CountDownLatch. 1), gate (promise), closed (promise)
        in (slow-to-read reads gate)
        out (proxy [OutputStream] []
              (write [_ _ _])
              (flush [])
              (close [] (deliver closed true)))
        wire (wire/wire (exchange out (fn []) 10 in) (guard (atom [])) 1000 nil)
        read (t/future (.read ^InputStream (engine/body wire) (byte-array 1)))
        _ (.await reads)
        ending (.start (Thread/ofPlatform) #(engine/send! wire 200 (object-array 0) large))
        waits? #(= Thread$State/WAITING (.getState ending))]
    (is (gate/eventually 10000 #(or (realized? closed) (waits?))))
    (is (not (realized? closed)))
    (deliver gate true)
    (is (= [1 true] [@read (deref closed 10000 false)]))
    (.join ending)))

(deftest an-end-waits-for-a-read-that-does-not-end-for-a-second
  (let [reads (CountDownLatch. 1), gate (promise)
        in (slow-to-read reads gate)
        wire (wire/wire (exchange (noting (atom [])) (fn []) 10 in) (guard (atom [])) 1000 nil)
        read (t/future (.read ^InputStream (engine/body wire) (byte-array 1)))]
    (.await reads)
    (is (thrown-with-msg? IOException #"Another thread reads"
          (engine/send! wire 200 (object-array 0) large)))
    (is (not (Thread/interrupted)))
    (deliver gate true)
    (is (= 1 @read))))

(deftest an-answer-without-a-body-waits-for-no-read
  (let [reads (CountDownLatch. 1), gate (promise), sent (promise)
        in (slow-to-read reads gate)
        exchange (exchange (noting (atom [])) #(deliver sent true) 10 in)
        wire (wire/wire exchange (guard (atom [])) 1000 nil)
        read (t/future (.read ^InputStream (engine/body wire) (byte-array 1)))]
    (.await reads)
    (engine/send! wire 204 (object-array 0) nil)
    (is (= [true false] [(deref sent 0 false) (realized? read)]))
    (is (= ["close"] (.get (.getResponseHeaders ^HttpExchange exchange) "Connection")))
    (deliver gate true)
    (is (= 1 @read))))

(deftest a-body-may-be-read-on-behind-an-answer-without-one
  (let [in (slow-to-read (CountDownLatch. 1) (doto (promise) (deliver true)))
        wire (wire/wire (exchange (noting (atom [])) (fn []) 10 in) (guard (atom [])) 1000 nil)]
    (engine/send! wire 204 (object-array 0) nil)
    (is (= 1 (deref (t/future (.read ^InputStream (engine/body wire) (byte-array 1)))
                    5000
                    :waits)))))

(deftest a-cut-has-interrupted-what-blocks-before-another-thread-closes-the-connection
  (let [trail (atom [])
        guard (reify patience/Guard (fire! [_ _] (swap! trail conj :interrupt)))
        done (proxy [CountDownLatch] [1] (countDown [] (swap! trail conj :close)))]
    (engine/abort! (wire/wire (exchange (noting (atom []))) guard 1000 done))
    (is (= [:interrupt :close] @trail))))

(deftest nothing-is-sent-behind-a-cut
  (let [guard (reify patience/Guard
                (enter! [_ _])
                (leave! [_])
                (mine! [this] this)
                (forget! [_ _])
                (fire! [_ _]))
        trail (atom [])
        wire (wire/wire (exchange (noting trail) #(swap! trail conj :head)) guard 1000 nil)]
    (engine/abort! wire)
    (is (thrown-with-msg? IOException #"has been cut"
          (engine/send! wire 200 (object-array 0) large)))
    (is (= [] @trail))))

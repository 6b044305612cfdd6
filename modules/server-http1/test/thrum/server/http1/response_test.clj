(ns thrum.server.http1.response-test
  "What is held of a response's body."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.response :as response]
   [thrum.server.http1.sockets :as sockets])
  (:import
   (java.io ByteArrayOutputStream OutputStream)
   (java.net Socket)
   (java.nio.charset StandardCharsets)
   (thrum.server.http1.response Begun)))

(set! *warn-on-reflection* true)

(defn- noting
  "Returns a stream that keeps in most the size of the largest piece that was written to it."
  ^ByteArrayOutputStream [most]
  (proxy [ByteArrayOutputStream] []
    (write
      ([_] (swap! most max 1))
      ([b offset n]
       (swap! most max n)
       (let [^ByteArrayOutputStream this this] (proxy-super write b offset n))))))

(defn- sent
  "Returns what a client gets of a body of these pieces, and the largest piece that was held."
  [chunked? pieces]
  (sockets/call-with-client nil
    (fn [c ^Socket client]
      (let [most (atom 0)
            begun (Begun. c chunked? (noting most) (noting most))
            got (future (String. (.readAllBytes (.getInputStream client))
                                 StandardCharsets/ISO_8859_1))
            ^OutputStream out (response/stream begun)]
        (doseq [^String piece pieces]
          (.write out (.getBytes piece))
          (.flush out))
        (response/finish! begun)
        (connection/cut! c)
        [(deref got 10000 :late) @most]))))

(defn- text [n] (str/join (repeat n "a")))

(deftest a-large-piece-is-not-held
  (let [large (text 1000000)]
    (is (= [(str "2\r\nab\r\nf4240\r\n" large "\r\n1\r\nc\r\n0\r\n\r\n") true]
           (update (sent true ["ab" large "c"]) 1 #(< (long %) 16384))))
    (is (= [(str "ab" large "c") true]
           (update (sent false ["ab" large "c"]) 1 #(< (long %) 16384))))))

(deftest what-is-held-goes-before-a-large-piece
  (sockets/call-with-client nil
    (fn [c ^Socket client]
      (let [begun (response/begun c (.getBytes "head ") true)
            ^OutputStream out (response/stream begun)]
        (.write out (.getBytes "ab"))
        (.write out (.getBytes "cd"))
        (.write out (.getBytes ^String (text 10000)))
        (response/finish! begun)
        (connection/cut! c)
        (is (= (str "head 4\r\nabcd\r\n2710\r\n" (text 10000) "\r\n0\r\n\r\n")
               (String. (.readAllBytes (.getInputStream client)))))))))

(deftest small-pieces-that-are-never-flushed-do-not-gather
  (sockets/call-with-client nil
    (fn [c ^Socket client]
      (let [begun (response/begun c (.getBytes "head ") false)
            ^OutputStream out (response/stream begun)
            ^ByteArrayOutputStream held (.-held begun)
            piece (.getBytes ^String (text 1000))
            most (reduce max (repeatedly 100 #(do (.write out piece) (.size held))))]
        (response/finish! begun)
        (connection/cut! c)
        (is (= 100005 (alength (.readAllBytes (.getInputStream client)))))
        (is (< (long most) 10000))))))

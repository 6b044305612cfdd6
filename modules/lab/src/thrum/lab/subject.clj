(ns thrum.lab.subject
  "Web servers to put under load, each in a JVM of its own: what they do is thrum.lab.subject.work,
  what they are a job of thrum.lab.subject.child."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.checkout :as checkout]
   [thrum.lab.child :as child]
   [thrum.lab.cpu-time :as cpu-time]
   [thrum.lab.load :as load]
   [thrum.lab.load.built-in :as built-in]
   [thrum.lab.measure :as measure]
   [thrum.lab.subject.work :as work])
  (:import
   (java.io File)
   (java.net InetSocketAddress URI)
   (java.nio ByteBuffer)
   (java.nio.channels SocketChannel)))

(set! *warn-on-reflection* true)

(def jvm-opts
  "The flags of every server's JVM, so that all have the same."
  (-> ["-Xmx1g"]
      (into child/http-server-opts)
      (into cpu-time/jvm-opts)))

(def ^:private http-kit "The alias of the checkout that names http-kit. It is on Clojars, which not
  every machine can reach." "-T:http-kit")
(def ^:private http-kit-ms "How long it may take to resolve, and to download, http-kit: one small
  jar." 40000)
(def ^:private start-ms "How long a server's JVM may take to start." 60000)
(def ^:private answer-ms "How long it may take to answer a question." 30000)
(def ^:private asleep-ms "How long all connections may take to be asleep, or awake." 20000)
(def ^:private backlog "As Thrum's default: with less, a burst of connections waits for
  retransmission." 4096)

(defn engines
  "Returns the engines that are on the class path."
  []
  (cond-> #{:jdk}
    (io/resource "org/eclipse/jetty/server/Server.class") (conj :jetty)
    (io/resource "org/apache/catalina/startup/Tomcat.class") (conj :tomcat)
    (io/resource "io/helidon/webserver/WebServer.class") (conj :helidon)
    (io/resource "org/httpkit/server.clj") (conj :http-kit)))

(defn http-kit-class-path!
  "Returns {:class-path text}, this JVM's and http-kit behind it, which ./cljw of the checkout in
  folder finds in the local Maven repository or downloads; {:problem words} where it cannot."
  [folder]
  (let [{:keys [class-path problem]} (checkout/class-path! folder http-kit http-kit-ms)]
    (if problem
      {:problem (str "http-kit could not be had: " problem)}
      {:class-path (str/join File/pathSeparator [(child/class-path) class-path])})))

(defn start!
  "Starts the server of a job, {:engine :engine-options :way :pool :handler :peer}, in a JVM of its
  own and returns it, a thrum.lab.child with its :url. The JVM has the :class-path of the job, where
  it has one, otherwise that of this one. Throws ex-info of :type :thrum/lab-child if it does not
  start."
  [{:keys [class-path], :as job}]
  (child/ready! (child/start! (child/java-command jvm-opts 'thrum.lab.subject.child class-path))
    (fn [server]
      (child/send! server (merge {:backlog backlog} (dissoc job :class-path)))
      (let [{:keys [port problem]} (child/read-answer server start-ms)]
        (when problem
          (throw (ex-info (str "The server did not start: " problem)
                          {:type :thrum/lab-child, :job job})))
        (assoc server :url (str "http://127.0.0.1:" port))))))

(defn- ask! [server question]
  (child/send! server question)
  (child/ask server answer-ms))

(defn facts
  "Returns {:threads n :rss bytes}: the most platform threads that the server's JVM had, and its
  resident memory now, nil where that is unknown."
  [server]
  (ask! server :facts))

(defn cpu-nanos
  "Returns the CPU time that the server's JVM has used, in ns."
  [server]
  (:cpu-nanos (ask! server :cpu)))

(defn url
  "Returns the URL of a request to a server whose handler sleeps for ms; nil: not at all."
  [server ms]
  (str (:url server) (work/path ms)))

;; The heap of connections whose handlers sleep

(defn- send-request!
  ^SocketChannel [{:keys [url]}]
  (let [uri (URI. url)
        channel (SocketChannel/open (InetSocketAddress. (.getHost uri) (.getPort uri)))
        job {:url (str url work/held), :headers load/browser-headers}
        request (ByteBuffer/wrap (built-in/request job))]
    (while (.hasRemaining request) (.write channel request))
    channel))

(defn- await-sleepers!
  [server n]
  (let [end (+ (measure/now-ms) asleep-ms)]
    (loop []
      (let [{:keys [sleepers]} (ask! server :sleepers)]
        (cond (= n sleepers) nil
              (< end (measure/now-ms))
              (throw (ex-info (str "Only " sleepers " of " n " handlers slept at once")
                              {:type :thrum/lab-child, :sleepers sleepers, :wanted n}))
              :else (do
                      (Thread/sleep 20)
                      (recur)))))))

(defn- settled-heap
  "Returns the heap after a collection, once it no longer falls: a server that was under load is
  still busy with what is over."
  [server]
  (loop [before (:heap (ask! server :heap)), looks-left 20]
    (Thread/sleep 100)
    (let [now (:heap (ask! server :heap))]
      (if (and (pos? looks-left) (< now (* 0.99 before)))
        (recur now (dec looks-left))
        now))))

(defn- wake-all! [server]
  (ask! server :wake)
  (await-sleepers! server 0))

(defn heap-per-sleeper
  "Returns by how many bytes the heap after a collection is larger for each of n connections whose
  handlers sleep. Then wakes them, and closes the connections. To be asked of a server whose code is
  warm, since a parked thread's frames are larger while it is interpreted, and which has not been
  left by thousands of connections before. Throws ex-info if not all of them are asleep within 20
  s."
  [server n]
  (let [before (settled-heap server)
        channels (volatile! [])]
    (try
      (dotimes [_ n] (vswap! channels conj (send-request! server)))
      (await-sleepers! server n)
      (let [during (:heap (ask! server :heap))]
        (wake-all! server)
        (/ (- during before) (double n)))
      (finally
        (run! SocketChannel/.close @channels)))))

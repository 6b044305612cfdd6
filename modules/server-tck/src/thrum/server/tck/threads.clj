(ns thrum.server.tck.threads
  "Chapter: which threads call what the user wrote."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)
   (java.lang.management ManagementFactory)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn- expect-virtual
  "Calls (f note!), which has a server call note!: fails unless that is on a virtual thread."
  [f]
  (let [seen (promise)]
    (f #(deliver seen (Thread/.isVirtual (Thread/currentThread))))
    (expect= true (scene/within seen "a call"))))

(defn- ask [env handler options]
  (scene/ask env (scene/serve env handler options) (wire/get "/")))

(defcase handler-runs-on-a-virtual-thread "4.1"
  "A handler runs on a virtual thread."
  [env]
  (expect-virtual (fn [note!] (ask env (fn [r] (note!) (scene/ok r)) {}))))

(defcase async-handler-runs-on-a-virtual-thread "4.1"
  "An async handler runs on a virtual thread."
  [env]
  (expect-virtual
    (fn [note!]
      (ask env (fn [r respond _] (note!) (respond (scene/ok r))) {:async? true}))))

(defcase seq-is-realised-on-a-virtual-thread "4.1"
  "A lazy body is realised on a virtual thread."
  [env]
  (expect-virtual
    (fn [note!] (ask env (scene/answering {:body (lazy-seq (note!) ["x"])}) {}))))

(defcase stream-is-read-on-a-virtual-thread "4.1"
  "An InputStream body is read on a virtual thread."
  [env]
  (expect-virtual
    (fn [note!]
      (let [body (proxy [InputStream] []
                   (read ([] (note!) -1) ([_] (note!) -1) ([_ _ _] (note!) -1)))]
        (ask env (scene/answering {:body body}) {})))))

(defcase error-handler-runs-on-a-virtual-thread "4.1"
  "The :error-handler runs on a virtual thread."
  [env]
  (let [boom (fn [_] (throw (ex-info "boom" {})))]
    (expect-virtual
      (fn [note!] (ask env boom {:error-handler (fn [r _] (note!) (scene/ok r))})))))

(defcase on-overload-runs-on-a-virtual-thread "4.1"
  "The :on-overload function runs on a virtual thread."
  [env]
  (expect-virtual
    (fn [note!]
      (let [on-overload (fn [_] (note!) {:status 503, :headers {}})
            {:keys [server]} (scene/waiting env {:max-concurrent 1, :on-overload on-overload})]
        (scene/ask env server (wire/get "/"))))))

(defcase observers-run-on-virtual-threads "4.1"
  "The observer's functions run on virtual threads."
  [env]
  (doseq [k [:start :end]]
    (expect-virtual (fn [note!] (ask env scene/ok {:observer {k (fn [_] (note!))}})))))

(defcase every-request-has-a-thread-of-its-own "4.1"
  "Every request on a connection has a fresh thread: nothing in a ThreadLocal survives."
  [env]
  (let [local (ThreadLocal.)
        left (atom [])
        handler (fn [r] (swap! left conj (.get local)) (.set local :left) (scene/ok r))
        c (scene/client env (scene/serve env handler {}))]
    (dotimes [_ 4] (wire/ask! c (wire/get "/")))
    (expect= [nil nil nil nil] @left)))

(defn- platform-threads []
  (.getThreadCount (ManagementFactory/getThreadMXBean)))

(defcase platform-threads-do-not-grow "4.1"
  "Two hundred requests at once need no more platform threads than twenty do."
  {:alone? true}
  [env]
  (let [entered (CountDownLatch. 200)
        gate (scene/gate env)
        handler (fn [r] (.countDown entered) (deref gate 30000 nil) (scene/ok r))
        server (scene/serve env handler {})
        crowd (fn [n left]
                (dotimes [_ n] (wire/send! (scene/client env server) (wire/get "/")))
                (expect (scene/eventually #(<= (.getCount entered) (long left)))
                        "all in the handler"
                        (.getCount entered))
                (platform-threads))
        few (crowd 20 180)
        many (crowd 180 0)]
    (expect (<= many (+ few 20))
            "at most 20 more platform threads"
            {:with-20 few, :with-200 many})))

(defcase bindings-do-not-leak-in "4.1"
  "A handler does not see the dynamic bindings of the client or of another request."
  [env]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen *print-length*) (scene/ok r)) {})
        before *print-length*]
    (binding [*print-length* 4711] (scene/ask env server (wire/get "/")))
    (expect= before (scene/within seen "a call of the handler"))))

;; What one request leaves on its thread

(defn traces
  "Returns [leave! found]: leave! puts something into an InheritableThreadLocal of the calling
  thread, and gives it another class loader; found returns what a thread has of that, [] where it
  has nothing and the class loader is that of the caller of traces."
  []
  (let [local (InheritableThreadLocal.)
        loader (.getContextClassLoader (Thread/currentThread))
        current #(.getContextClassLoader (Thread/currentThread))]
    [(fn []
       (.set local :left)
       (.setContextClassLoader (Thread/currentThread) (proxy [ClassLoader] [])))
     (fn []
       (cond-> []
         (.get local) (conj :inheritable-thread-local)
         (not (identical? loader (current))) (conj :class-loader)))]))

(defn tracing
  "Returns [handler seen]: a handler that notes in the atom seen what its thread has of the requests
  before, and leaves something behind."
  []
  (let [[leave! found] (traces)
        seen (atom [])]
    [(fn [r] (swap! seen conj (found)) (leave!) (scene/ok r)) seen]))

(defcase nothing-is-inherited-on-a-kept-connection "4.1"
  "What a request leaves in an InheritableThreadLocal, or as context class loader, the next one on
  the connection does not find."
  [env]
  (let [[handler seen] (tracing)
        c (scene/client env (scene/serve env handler {}))]
    (dotimes [_ 4] (wire/ask! c (wire/get "/")))
    (expect= [[] [] [] []] @seen)))

(defcase nothing-is-inherited-in-a-pipeline "4.1"
  "Nor does one that was sent together with it."
  [env]
  (let [[handler seen] (tracing)
        c (scene/client env (scene/serve env handler {}))]
    (wire/send! c (wire/get "/") (wire/get "/") (wire/get "/") (wire/get "/"))
    (dotimes [_ 4] (wire/response c))
    (expect= [[] [] [] []] @seen)))

(defcase nothing-is-inherited-with-a-deadline "4.1"
  "Nor where requests have a deadline."
  [env]
  (let [[handler seen] (tracing)
        c (scene/client env (scene/serve env handler {:request-timeout-ms 5000}))]
    (dotimes [_ 4] (wire/ask! c (wire/get "/")))
    (expect= [[] [] [] []] @seen)))

(defcase nothing-is-inherited-from-the-starter "4.1"
  "A request's thread has the context class loader of the thread that started the server, and none
  of its InheritableThreadLocals."
  [env]
  (let [local (doto (InheritableThreadLocal.) (.set :left))
        thread (Thread/currentThread)
        before (.getContextClassLoader thread)
        loader (proxy [ClassLoader] [before])
        seen (promise)
        handler (fn [r]
                  (deliver seen [(.get local) (.getContextClassLoader (Thread/currentThread))])
                  (scene/ok r))
        server (try
                 (.setContextClassLoader thread loader)
                 (scene/serve env handler {})
                 (finally
                   (.remove local)
                   (.setContextClassLoader thread before)))]
    (scene/ask env server (wire/get "/"))
    (expect= [nil loader] (scene/within seen "a call of the handler"))))

(defcase nothing-is-inherited-by-observers "4.1"
  "An observer that is called at a deadline finds nothing of what the handler has left on its
  thread."
  [env]
  (let [[leave! found] (traces)
        seen (promise)
        handler (fn [r] (leave!) (Thread/sleep 4000) (scene/ok r))
        server (scene/serve env
                            handler
                            {:request-timeout-ms 100
                             :observer {:timeout (fn [_] (deliver seen (found)))}})]
    (scene/ask env server (wire/get "/"))
    (expect= [] (scene/within seen "a call of the observer"))))

(ns thrum.watch
  "Shows what runs in this process, and why it waits: scopes, tasks, limiters and registered things,
  as data, sentences, metrics and a page. It reads, and changes nothing.

  Watching begins when this namespace is loaded. Older work is seen only where newer work, a limiter
  or a registration leads to it."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.spi.options :as options]
   [thrum.spi.watch :as spi]
   [thrum.watch.impl.access :as access]
   [thrum.watch.impl.figures :as figures]
   [thrum.watch.impl.groups :as groups]
   [thrum.watch.impl.http :as http]
   [thrum.watch.impl.recorder :as recorder]
   [thrum.watch.impl.sampler :as sampler]
   [thrum.watch.impl.snapshot :as snapshot]
   [thrum.watch.impl.tree :as tree])
  (:import
   (java.lang AutoCloseable)))

(set! *warn-on-reflection* true)

(spi/watch! true)
(snapshot/watch-requests!)
(recorder/observe!)

;; Data

(def ^:private flag {:check #(or (nil? %) (boolean? %)), :accepts "true or false"})

(defn tree
  "Returns what runs as a vector of trees of maps: :kind (:scope, :task, :fan-out, :joiner,
  :executor, :limiter, :request, or a registered one), :id, :name, :state, :age-ms (nil where it is
  not known), :deadline-ms (from now; negative when it has passed), :thread (its id), :thread-state
  (:runnable, :parked, :timed-parked, :blocked), :carrier, :waits-for, :children, and facts of its
  kind. With {:stacks? true} also :stack, a vector of lines, innermost first: some 10 us a thread
  more. With {:fold? true} ten or more alike siblings are one, the oldest, with their :count. Below
  200 levels :left-out is how many children are not shown.

  Ages are exact to 20 ms while a watch runs, see start!; otherwise to the last call of tree, groups
  or lints."
  ([] (tree {}))
  ([{:keys [stacks? fold?] :as options}]
   (options/check {:stacks? flag, :fold? flag} options)
   (cond-> (tree/tree (snapshot/take! (constantly (boolean stacks?))) options)
     fold? tree/fold)))

(def ^:private most-stacks 20000)

(defn- at-most [n]
  (let [left (volatile! n)]
    (fn [_] (nat-int? (vswap! left dec)))))

(defn groups
  "Returns Thrum's threads by where they wait, the largest group first: maps of :count, :waits-at
  (\"my.app/fetch -> SocketInputStream.read\"), :frame (the line to look at), :state, :oldest-ms,
  :stack and :sample, up to five names. The stacks of 20 000 threads are read, or of :max-stacks;
  further threads are counted with those of their state, but are neither in :oldest-ms nor in
  :sample. Ages are as exact as those of tree. Some 10 us a stack."
  ([] (groups {}))
  ([{:keys [max-stacks], :or {max-stacks most-stacks}, :as options}]
   (options/check {:max-stacks {:check nat-int?, :accepts "an integer, not negative"}} options)
   (groups/groups (snapshot/take! (at-most max-stacks)))))

;; A watch that runs

(defn- end!
  "Ends what is not nil; an interrupt of before stays, and ends no wait."
  [sampler exporter server]
  (let [interrupted? (Thread/interrupted)]
    (try
      (when server (http/stop! server))
      (finally
        (try
          (when exporter ((:close exporter)))
          (finally
            (sampler/stop! sampler)
            (when interrupted? (.interrupt (Thread/currentThread)))))))))

;; exporter: that of thrum.watch.impl.prometheus, or nil.
(deftype Watch [sampler server exporter token]
  AutoCloseable
  (close [_] (end! sampler exporter server)))

(ns-unmap *ns* '->Watch)

(defn- checked ^Watch [x]
  (options/instance Watch "a watch, as start! returns it" x))

(defn lints
  "Returns what is wrong, as a vector of maps: :rule, :id, :sentence, :frame (the line to look at,
  or nil), :since-ms and :data. Those of a watch are at hand; without one it looks for two seconds.
  Throws :thrum/invalid for what is no watch."
  ([]
   (let [sampler (sampler/start! (fn [_]))]
     (try
       (Thread/sleep 2000)
       (sampler/lints sampler)
       (finally (sampler/stop! sampler)))))
  ([watch]
   (sampler/lints (.-sampler (checked watch)))))

(defn port
  "Returns the port of a watch. Throws :thrum/invalid for what is none."
  [watch]
  (http/port (.-server (checked watch))))

(defn token
  "Returns the token of a watch, for Authorization: Bearer, and to sign in on its page. Throws
  :thrum/invalid for what is no watch."
  [watch]
  (.-token (checked watch)))

(def ^:private rows
  {:port {:check #(and (int? %) (<= 0 % 65535))
          :accepts "an integer from 0 to 65535"
          :default "7777"
          :doc "the port; 0: any that is free"}
   :host {:check string?, :accepts "a string", :default "\"127.0.0.1\""
          :doc "the address to listen on"}
   :hosts {:check #(and (coll? %) (every? string? %))
           :accepts "a collection of strings"
           :default "none"
           :doc "further names of this server, as a browser's Host header has them"}
   :token {:check #(and (string? %) (re-matches #"[!-~]{8,}" %)), :secret? true
           :accepts (str "a string of at least 8 characters of ASCII, without spaces (a variable "
                         "that is not set gives nil)")
           :default "a random one, see token"
           :doc "what readers must show"}
   :on-lint {:check ifn?, :accepts "a function", :default "none"
             :doc "called with each new lint, on the watch's own thread, which waits"}
   :monitors? {:check boolean?, :accepts "a boolean", :default "false"
               :doc "whether lints say who holds a monitor (JDK 25), by the JDK's dump"}})

;; As long as the lint :starved needs, with a look more.
(def ^:private ^:const stuck-ms 1000)

(defn- health [sampler]
  (fn []
    (if (< stuck-ms (long (sampler/late-ms sampler)))
      (http/as-json 503 {:status :stuck})
      (http/as-json 200 {:status :up}))))

(defn- event
  "Returns a function that returns what readers of events get: the figures as of now, and the lints
  that they count."
  [sampler]
  (let [figures (figures/remembering)]
    #(let [lints (sampler/lints sampler)]
       (assoc (figures (or (sampler/latest sampler) (snapshot/take! (constantly false))) lints)
              :sentences lints))))

(defn- flag? [query flag]
  (boolean (some #{flag} (str/split (str query) #"&"))))

(defn- new-exporter
  "Returns that of thrum.watch.impl.prometheus, or nil where its library is not on the class path."
  [sampler]
  (when (io/resource "io/micrometer/prometheusmetrics/PrometheusMeterRegistry.class")
    ((requiring-resolve 'thrum.watch.impl.prometheus/exporter) sampler)))

(defn- metrics [{:keys [text]}]
  (if text
    {:status 200, :type "text/plain; version=0.0.4; charset=utf-8", :body (text)}
    (http/as-json 501 {:error (str "Metrics are Micrometer's text: add "
                                   "io.micrometer/micrometer-registry-prometheus to the class "
                                   "path")})))

(defn- routes [sampler exporter]
  {"/tree" #(http/as-json 200 (tree {:fold? (flag? % "fold"), :stacks? (flag? % "stacks")}))
   "/groups" (fn [_] (http/as-json 200 (groups)))
   "/lints" (fn [_] (http/as-json 200 (sampler/lints sampler)))
   "/metrics" (fn [_] (metrics exporter))})

(defn start!
  "Starts to watch, and serves what it sees on a port of its own, by platform threads: it answers
  while no virtual thread can run. They are daemons: a program may end without close. Returns the
  watch, an AutoCloseable: see port, token, lints.

      /health   200 or 503, without a token and without names
      /         the page, after signing in with the token
      /tree /groups /lints   JSON; with the token
      /metrics  Prometheus' text, where io.micrometer/micrometer-registry-prometheus is on the class
                path, a 501 elsewhere; with the token
      /events   the figures and lints, once a second, as server-sent events

  A sampler looks four to ten times a second within 1 % of one processor: many tasks are looked at
  less often. With :monitors? it takes the JDK's dump while a task has been blocked at a monitor for
  half a second, and says who holds it: a dump of a busy server has crashed JDK 25.0.3 twice.
  Without, it says at which line tasks have been blocked for a second. Options:
    :port - the port; 0: any that is free (an integer from 0 to 65535; default 7777)
    :host - the address to listen on (a string; default \"127.0.0.1\")
    :hosts - further names of this server, as a browser's Host header has them (a collection of
      strings; default none)
    :token - what readers must show (a string of at least 8 characters of ASCII, without spaces;
      default a random one, see token)
    :on-lint - called with each new lint, on the watch's own thread, which waits (a function;
      default none)
    :monitors? - whether lints say who holds a monitor (JDK 25), by the JDK's dump (a boolean;
      default false)

  Throws :thrum/invalid, and :thrum/start-failed where it cannot listen."
  ([] (start! {}))
  ([options]
   (let [{:keys [host hosts port on-lint monitors?], :as options}
         (merge {:host "127.0.0.1", :port 7777, :on-lint (fn [_])} (options/check rows options))

         token (or (:token options) (access/random-token))
         sampler (sampler/start! on-lint {:monitors? monitors?})
         exporter (volatile! nil)]
     (try
       (vreset! exporter (new-exporter sampler))
       (Watch. sampler
               (http/start! {:host host
                             :port port
                             :hosts (access/hosts host hosts)
                             :access {:token token, :session (access/random-token)}
                             :health (health sampler)
                             :routes (routes sampler @exporter)
                             :event (event sampler)})
               @exporter
               token)
       (catch Throwable t
         (end! sampler @exporter nil)
         (throw t))))))

(defmethod print-method Watch [watch ^java.io.Writer w]
  (.write w (str "#<watch on port " (port watch) ">")))

(ns thrum.watch.impl.frames
  "Frames of stacks as data, [class method file line], and what a reader wants of them: the line of
  his own code, and the call that it waits in."
  {:no-doc true}
  (:require
   [clojure.string :as str])
  (:import
   (clojure.lang Compiler)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.regex Matcher)))

(set! *warn-on-reflection* true)

(def ^:private calls-of-clojure
  #{"invoke" "invokeStatic" "doInvoke" "invokePrim" "call" "run" "applyTo"})

(defn- clojure-name
  "Returns my.app/fetch for my.app$fetch$fn__123."
  [class]
  (-> (Compiler/demunge class)
      (str/replace #"--\d+" "")
      (str/replace #"(?:/fn)+$" "")
      (str/replace #"^eval\d+$" "eval")))

(defn- clojure-frame? [[class method file]]
  (and (str/includes? class "$")
       (if (str/includes? (str file) ".")
         (some? (re-find #"\.cljc?$" file))
         (calls-of-clojure method))))

(defn- called [[class method :as frame]]
  (if (clojure-frame? frame)
    (clojure-name class)
    (str (last (str/split class #"\.")) "." method)))

(defn- place [[_ _ file line]]
  (when file
    (str " (" file (when (pos? (long line)) (str ":" line)) ")")))

(def ^:private plumbing
  ["java." "javax." "jdk." "sun." "com.sun." "clojure."
   "thrum.impl." "thrum.core$" "thrum.spi" "thrum.adaptive$" "thrum.async$" "thrum.async.executor"
   "thrum.async.impl." "thrum.cluster$" "thrum.cluster.engine." "thrum.cluster.impl."
   "thrum.cluster.main" "thrum.cluster.spi" "thrum.context." "thrum.jdbc$" "thrum.jdbc.impl."
   "thrum.server$" "thrum.server.impl." "thrum.server.http1" "thrum.server.engine."
   "thrum.server.spi" "thrum.watch$" "thrum.watch.impl." "thrum.watch.doctor"
   "thrum.watch.micrometer" "io.github.thrumclj.Thrum"])

(def ^:private below-thrum
  "What Thrum's modules stand on: engines, drivers and pools."
  ["com.hazelcast." "com.zaxxer.hikari." "io.helidon." "next.jdbc" "org.apache.coyote."
   "org.apache.tomcat." "org.eclipse.jetty." "org.h2." "org.httpkit." "org.infinispan."
   "org.jgroups." "org.postgresql."])

(def ^:private parking
  ["java.lang.VirtualThread" "java.lang.System$" "jdk.internal." "sun.nio.ch."
   "java.util.concurrent.locks.LockSupport" "java.util.concurrent.ForkJoinPool"
   "java.util.concurrent.locks.AbstractQueuedSynchronizer" "thrum.impl.wait" "thrum.impl.deadline"
   "thrum.impl.clock" "thrum.impl.sync_point"])

(defn- within? [[^String class] prefixes]
  (boolean (some #(.startsWith class %) prefixes)))

(defn- looks-of
  "Returns what a reader wants of a frame: :call, :text, :whose (:own, :below or :plumbing) and
  :parks?."
  [frame]
  (let [call (called frame)]
    {:call call, :text (str call (place frame)), :parks? (within? frame parking)
     :whose (cond (within? frame plumbing) :plumbing (within? frame below-thrum) :below
                  :else :own)}))

;; Ten thousand stacks have some hundred frames: each is looked at once, and has its looks as
;; metadata. By StackTraceElement, or line of a dump.
(def ^:private ^ConcurrentHashMap known (ConcurrentHashMap.))
(def ^:private ^:const most-known 10000)

(defn- know! [source frame]
  (let [frame (with-meta frame (looks-of frame))]
    (when (<= (long most-known) (.size known)) (.clear known))
    (.put known source frame)
    frame))

(defn of-element
  "Returns the frame of a StackTraceElement."
  [^StackTraceElement e]
  (or (.get known e)
      (know! e [(.getClassName e) (.getMethodName e) (.getFileName e) (.getLineNumber e)])))

(def ^:private dumped #"(?:[^/(]*/)*([^(]+)\.([^.(]+)\((?:([^:)]+)(?::(\d+))?)?\)")

(defn- parsed [line]
  (let [^Matcher m (re-matcher dumped line)]
    (when (.matches m)
      [(.group m 1) (.group m 2) (.group m 3) (or (some-> (.group m 4) parse-long) -1)])))

(defn of-text
  "Returns the frame of a line of the JDK's dump: java.base/java.lang.Thread.run(Thread.java:9)."
  [^String line]
  (or (.get known line)
      (some->> (parsed line) (know! line))))

(defn- looks [frame]
  (or (meta frame) (looks-of frame)))

(defn call
  "Returns what is called in the frame: my.app/fetch, or SocketInputStream.read."
  [frame]
  (:call (looks frame)))

(defn text
  "Returns the frame as a reader looks for it: my.app/fetch (app.clj:12)."
  [frame]
  (when frame (:text (looks frame))))

(defn- innermost [whose stack]
  (some #(when (= whose (:whose (looks %))) %) stack))

(defn app-frame
  "Returns the application's innermost frame, neither the JDK's nor Clojure's nor Thrum's; where it
  has none, that of an engine, a driver or a pool; or nil."
  [stack]
  (or (innermost :own stack) (innermost :below stack)))

(defn leaf
  "Returns the innermost frame that is not part of how a thread parks, or nil."
  [stack]
  (some #(when-not (:parks? (looks %)) %) stack))

(defn waits-at
  "Returns where a stack is: my.app/fetch -> SocketInputStream.read."
  [stack]
  (let [app (app-frame stack), leaf (leaf stack)]
    (cond
      (nil? leaf) "(no frames)"
      (or (nil? app) (= app leaf)) (call leaf)
      :else (str (call app) " -> " (call leaf)))))

(defn line
  "Returns the line to look at: that of the application's innermost frame, or of the innermost."
  [stack]
  (text (or (app-frame stack) (leaf stack) (first stack))))

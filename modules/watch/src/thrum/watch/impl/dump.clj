(ns thrum.watch.impl.dump
  "The JDK's own dump of all threads, as JSON: for threads that are not Thrum's, and for who holds
  which monitor (JDK 25)."
  {:no-doc true}
  (:require
   [clojure.data.json :as json]
   [clojure.string :as str]
   [thrum.watch.impl.frames :as frames])
  (:import
   (com.sun.management HotSpotDiagnosticMXBean HotSpotDiagnosticMXBean$ThreadDumpFormat)
   (java.lang.management ManagementFactory)
   (java.nio.file Files Path)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(def ^:private states
  {"NEW" :new, "RUNNABLE" :runnable, "BLOCKED" :blocked, "WAITING" :parked
   "TIMED_WAITING" :timed-parked, "TERMINATED" :ended})

(defn- number [x]
  (if (string? x) (parse-long x) x))

(defn- virtual?
  "Before JDK 25 the dump does not say: the stack's last frame does."
  [{:strs [virtual stack]}]
  (boolean (or virtual (some-> (peek stack) (str/includes? "java.lang.VirtualThread.run")))))

(defn- thread [carriers {:strs [tid name state stack carrier blockedOn monitorsOwned] :as t}]
  {:tid (number tid)
   :name (if (str/blank? name) (str "#" tid) name)
   :virtual? (virtual? t)
   :state (states state)
   :carrier (when carrier (or (carriers (number carrier)) (str "#" carrier)))
   :stack (into [] (keep frames/of-text) stack)
   :blocked-on blockedOn
   :owned (into #{} (comp (mapcat #(get % "locks")) (remove nil?)) monitorsOwned)})

(defn parse
  "Returns the threads of a dump, a reader of JSON: maps of :tid, :name, :virtual?, :state (nil
  before JDK 25), :carrier (its name, or nil), :stack, :blocked-on and :owned, names of monitors."
  [reader]
  (let [all (->> (get-in (json/read reader) ["threadDump" "threadContainers"])
                 (mapcat #(get % "threads")))
        carriers (into {} (map (fn [{:strs [tid name]}] [(number tid) name])) all)]
    (mapv #(thread carriers %) all)))

(defn take!
  "Returns the threads of this process. Costs some 20 us a thread, and a temporary file."
  []
  (let [folder (Files/createTempDirectory "thrum-watch" (make-array FileAttribute 0))
        file (.resolve folder "threads.json")]
    (try
      (.dumpThreads ^HotSpotDiagnosticMXBean
                    (ManagementFactory/getPlatformMXBean HotSpotDiagnosticMXBean)
                    (str file)
                    HotSpotDiagnosticMXBean$ThreadDumpFormat/JSON)
      (with-open [reader (Files/newBufferedReader file)]
        (parse reader))
      (finally
        (Files/deleteIfExists file)
        (Files/deleteIfExists ^Path folder)))))

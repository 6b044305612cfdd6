(ns thrum.soak.crowd
  "Ten thousand connections that do nothing, in a process of their own."
  (:require
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.soak.stage :as stage :refer [expect]]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.io BufferedReader)
   (java.lang ProcessBuilder$Redirect)))

(set! *warn-on-reflection* true)

(def ^:private visitors 10000)

(defn- start-visitors
  ^Process [stage port]
  (let [command (jvm/command (jvm/this-home) [] 'thrum.soak.visitors [(str port) (str visitors)])
        process (.start (doto (ProcessBuilder. ^java.util.List command)
                          (.redirectError ProcessBuilder$Redirect/INHERIT)))]
    (scene/at-end stage #(.destroyForcibly process))
    process))

(defn- told
  "Returns the number that the visitors say next, of what."
  [^Process process what]
  (let [line (.readLine ^BufferedReader (.inputReader process))
        [said n] (str/split (str line) #" ")]
    (expect (= what said) (str "that the visitors say " what) line)
    (parse-long n)))

(defn- tell! [^Process process line]
  (doto (.outputWriter process) (.write (str line "\n")) (.flush)))

(defn- expect-all [n found]
  (expect (= n found) (str n " connections") found))

(defn- crowd!
  [stage]
  (let [server (stage/serve stage
                            scene/ok
                            {:idle-timeout-ms 60000
                             :header-timeout-ms 20000
                             :max-connections (+ 1000 (long visitors))})
        port (server/port server)
        before (stage/open-descriptors)
        heap (stage/used-heap)
        process (start-visitors stage port)]
    (stage/beside-bystanders port
                             #(do
                                (expect-all visitors (told process "arrived"))
                                {}))
    (let [each (quot (- (stage/used-heap) heap) (long visitors))
          figures (stage/beside-bystanders port
                                           #(do
                                              (tell! process "again")
                                              {:asked-again (told process "asked")}))]
      (expect-all (quot (long visitors) 2) (:asked-again figures))
      (stage/beside-bystanders port
                               #(do
                                  (stage/pause! 2000)
                                  {}))
      (.close (.outputWriter process))
      (expect-all 100 (told process "silent"))
      (scene/eventually 15000 #(<= (stage/open-descriptors) (+ before 20)))
      (expect (<= (stage/open-descriptors) (+ before 20))
              "that the sockets are closed"
              (- (stage/open-descriptors) before))
      (assoc figures :heap-each each))))

(def ^:private idle-crowd
  {:name "idle-crowd"
   :sentence
   (str "10 000 idle connections are held and answered when they ask again; others are answered "
        "in time meanwhile.")
   :alone? true
   :controls [["max-connections is 5000" #(assoc-in % [:options :max-connections] 5000)]]
   :run crowd!})

(def ordeals
  "The ordeals of this namespace."
  [idle-crowd])

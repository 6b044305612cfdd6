(ns thrum.lab.subject-test
  "Servers in JVMs of their own, with and without Thrum."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.checkout :as checkout]
   [thrum.lab.child :as child]
   [thrum.lab.subject :as subject]
   [thrum.lab.subject.work :as work]
   [thrum.lab.temporary :as temporary])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io File)
   (java.net HttpURLConnection URI)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util.concurrent BlockingQueue TimeUnit)
   (java.util.zip ZipEntry ZipOutputStream)))

(set! *warn-on-reflection* true)

(defn- with-server [job f]
  (let [server (subject/start! job)]
    (try (f server) (finally (child/stop! server)))))

(deftest the-path-says-how-long-to-sleep
  (are [path ms] (= path (work/path ms))
    "/sleep/50" 50
    "/" nil))

(deftest a-server-greets-and-tells-what-it-uses
  (with-server {:engine :jdk, :way :bare}
               (fn [server]
                 (is (= work/greeting
                        (slurp (subject/url server nil))
                        (slurp (subject/url server 1))))
                 (let [{:keys [threads rss]} (subject/facts server)]
                   (is (pos-int? threads))
                   (is (or (nil? rss) (< 10000000 rss))))
                 (is (< 500 (subject/heap-per-sleeper server 200) 200000)
                     "a virtual thread's stack, buffers, an exchange")
                 (child/send! server :sleepers)
                 (is (= 0 (:sleepers (child/ask server 10000))) "and all were woken"))))

(deftest tomcat-alone-serves-from-a-pool-and-from-virtual-threads
  (with-server {:engine :tomcat, :way :bare}
               (fn [server]
                 (is (= work/greeting
                        (slurp (subject/url server nil))
                        (slurp (subject/url server 1))))
                 (is (< 500 (subject/heap-per-sleeper server 300) 400000)
                     "more connections than Tomcat's default has threads")))
  (let [folder (temporary/folder! "thrum-lab")]
    (with-redefs [subject/jvm-opts (conj subject/jvm-opts (str "-Djava.io.tmpdir=" folder))]
      (with-server {:engine :tomcat, :way :bare, :pool 3}
                   (fn [server] (is (= work/greeting (slurp (subject/url server nil)))))))
    (is (empty? (.list (io/file folder))) "the server leaves nothing behind")))

(deftest helidon-alone-serves
  (with-server {:engine :helidon, :way :bare}
    (fn [server]
      (is (= work/greeting (slurp (subject/url server nil)) (slurp (subject/url server 1))))
      (is (< 500 (subject/heap-per-sleeper server 300) 400000)))))

(deftest a-peer-serves-the-labs-handler
  (with-server {:way :peer, :peer 'thrum.lab.users-handler/peer}
               (fn [server] (is (= work/greeting (slurp (subject/url server 1)))))))

(deftest the-users-handler-runs-on-the-threads-that-are-asked-for
  (doseq [[pool virtual?] [[nil "true"] [2 "false"]]]
    (with-server
      {:engine :jdk
       :way :thrum
       :handler 'thrum.lab.users-handler/on-a-virtual-thread?
       :pool pool}
      (fn [server] (is (= virtual? (slurp (:url server))))))))

(defn- status [url]
  (.getResponseCode ^HttpURLConnection (.openConnection (.toURL (URI. url)))))

(deftest what-the-users-handler-prints-is-no-answer-of-the-lab
  (let [job {:engine :jdk, :way :thrum, :handler 'thrum.lab.users-handler/noisy}
        {:keys [^BlockingQueue lines]} (with-server job
                                         (fn [server]
                                           (is (= 500 (status (:url server))))
                                           (is (pos-int? (:threads (subject/facts server))))
                                           server))]
    (is (= ::child/end (.poll lines 10 TimeUnit/SECONDS)) "no line more")))

(deftest a-server-that-cannot-start-says-why
  (let [failure (try
                  (subject/start! {:engine :jdk, :way :thrum, :handler 'nowhere/handler})
                  (catch ExceptionInfo e e))]
    (is (= :thrum/lab-child (:type (ex-data failure))))
    (is (re-find #"^The server did not start: .*nowhere" (ex-message failure)))))

;; http-kit, which is not on the class path, out of a local Maven repository in which a jar stands
;; for it

(defn- folder ^File []
  (io/file (temporary/folder! "thrum-lab")))

(defn- write! [folder path content]
  (let [file (io/file folder path)]
    (io/make-parents file)
    (spit file content)))

(defn- copy-folder! [^File from ^File to]
  (doseq [^File file (file-seq from) :when (.isFile file)
          :let [copy (io/file to (str (.relativize (.toPath from) (.toPath file))))]]
    (io/make-parents copy)
    (io/copy file copy)))

(def ^:private stub
  "In place of http-kit's namespace: the JDK's server, so that it can be asked."
  (str
    "(ns org.httpkit.server)\n" "(def port (atom nil))\n"
    "(defn run-server [handler _]\n"
    "  (reset! port ((requiring-resolve 'thrum.lab.subject.jdk/start!) {:backlog 10})))\n"
    "(defn server-port [_] @port)\n"))

(defn- jar! [file]
  (io/make-parents file)
  (with-open [out (ZipOutputStream. (io/output-stream file))]
    (.putNextEntry out (ZipEntry. "org/httpkit/server.clj"))
    (.write out (.getBytes ^String stub))))

(defn- local-repository!
  "Puts Clojure, as this JVM has it, and the stub into a Maven repository."
  [repository]
  (let [[jar] (filter #(re-find #"clojure-1[^/]*\.jar$" %)
                      (str/split (child/class-path) (re-pattern File/pathSeparator)))
        clojure (nth (iterate File/.getParentFile (io/file jar)) 3)]
    (copy-folder! clojure (io/file repository "org" "clojure"))
    (jar! (io/file repository "http-kit/http-kit/2.9.0/http-kit-2.9.0.jar"))
    (write!
      repository
      "http-kit/http-kit/2.9.0/http-kit-2.9.0.pom"
      (str
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>http-kit</groupId><artifactId>http-kit</artifactId>"
        "<version>2.9.0</version></project>"))))

(defn- checkout!
  "Returns a folder that passes for a checkout, whose every repository is a port without a
  listener."
  [repository]
  (let [folder (folder)
        nowhere {:url "https://127.0.0.1:1/"}]
    (write! folder
            "deps.edn"
            (pr-str
              {:mvn/local-repo (str repository)
               :mvn/repos {"central" nowhere, "clojars" nowhere}
               :aliases (select-keys (:aliases (edn/read-string (slurp "deps.edn"))) [:http-kit])}))
    (Files/createSymbolicLink (.toPath (io/file folder "cljw"))
                              (.toPath (io/file (checkout/folder) "cljw"))
                              (make-array FileAttribute 0))
    (str folder)))

(deftest http-kit-comes-from-the-local-repository-without-a-network
  (let [repository (folder)]
    (local-repository! repository)
    (let [{:keys [class-path problem]} (subject/http-kit-class-path! (checkout! repository))]
      (is (nil? problem))
      (is (str/includes? (str class-path) "http-kit-2.9.0.jar"))
      (with-server {:engine :http-kit, :way :bare, :class-path class-path}
        (fn [server]
          (is (= work/greeting (slurp (subject/url server nil)))))))))

(deftest http-kit-that-cannot-be-had-is-one-sentence
  (is
    (re-find
      (re-pattern (str "^http-kit could not be had: no repository "
                       "(that can be reached has it|had answered after 40 s)$"))
      (:problem (subject/http-kit-class-path! (checkout! (folder)))))))

(deftest engines-are-found-on-the-class-path
  (is (every? (subject/engines) [:jdk :jetty :tomcat :helidon])))

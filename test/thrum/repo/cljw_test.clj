(ns thrum.repo.cljw-test
  "The wrapper on machines of many kinds: fake Javas, fake Clojure CLIs, and a repository of jars on
  this machine."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.io File)
   (java.net InetSocketAddress)
   (java.nio.file Files LinkOption)
   (java.nio.file.attribute FileAttribute)
   (java.security MessageDigest)
   (java.util HexFormat)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

;; A machine: a folder with a blank in its name that holds a repository, Javas and a PATH

(def ^:private ^:dynamic ^File *machine* nil)

(defn- at
  ^File [& path]
  (apply io/file *machine* path))

(defn- write
  [^File file & lines]
  (io/make-parents file)
  (spit file (str/join "\n" (concat lines [""])))
  file)

(defn- write-script
  [^File file & lines]
  (.setExecutable ^File (apply write file lines) true)
  file)

(defn- link
  [^File from ^File to]
  (io/make-parents from)
  (Files/createSymbolicLink (.toPath from) (.toPath to) (make-array FileAttribute 0)))

(def ^:private tools
  ["bash" "cat" "cksum" "dirname" "mkdir" "mv" "readlink" "rm" "sed" "tr"])

(defn- tool
  "Returns where the PATH of these tests has a tool."
  [tool-name]
  (some #(let [file (io/file % tool-name)] (when (.canExecute file) file))
        (str/split (System/getenv "PATH") #":")))

(defn- set-up-repository
  []
  (doseq [file ["cljw" "script/cljw/tools-deps.lock" "script/cljw/Bootstrap.java"
                "script/cljw/exec.clj" "script/cljw/make-classpath2.clj"]]
    (io/make-parents (at "repo" file))
    (io/copy (io/file file) (at "repo" file)))
  (.setExecutable (at "repo" "cljw") true)
  (run! #(write (at %) "{}") ["repo/deps.edn" "fake.jar" "manifest.edn"])
  (run! #(link (at "bin" %) (tool %)) tools))

(defn- delete-all
  [^File file]
  (when (Files/isDirectory (.toPath file) (into-array [LinkOption/NOFOLLOW_LINKS]))
    (run! delete-all (.listFiles file)))
  (.delete file))

(use-fixtures
  :each
  (fn [f]
    (binding [*machine* (.toFile (Files/createTempDirectory "a machine"
                                                            (make-array FileAttribute 0)))]
      (try
        (set-up-repository)
        (f)
        (finally
          (delete-all *machine*))))))

(defn- java
  "Makes a fake Java that logs what it is asked for, and plays tools.deps. Returns its home."
  [home version & {:keys [modules], :or {modules "java.base jdk.compiler"}}]
  (write (at home "release")
         "IMPLEMENTOR=\"Fake\""
         (str "JAVA_VERSION=\"" version "\"")
         (str "MODULES=\"" modules "\""))
  (write-script
    (at home "bin" "java")
    "#!/bin/sh"
    "echo \"$0\" \"$*\" >>\"$LOG\"" "previous="
    "for arg; do" "  case $previous in"
    "    --cp-file) echo \"src:$FAKE_JAR\" >\"$arg\" ;;" "    --basis-file) echo '{}' >\"$arg\" ;;"
    "    --jvm-file) echo '-Dfrom=alias with blank' >\"$arg\" ;;"
    "    --main-file) printf -- '-m\\nmain.ns\\n' >\"$arg\" ;;"
    "    --manifest-file) echo \"$FAKE_MANIFEST\" >\"$arg\" ;;" "  esac"
    "  previous=$arg" "done"
    "case $* in"
    "  *Bootstrap.java*) mkdir -p \"${previous%/*}\"; echo tools >\"$previous\"; exit ;;"
    "  *make-classpath2*) exit ;;" "esac"
    "echo \"JAVA $0\"; for arg; do echo \"ARG $arg\"; done" "cat")
  (at home))

(defn- environment
  [env]
  (merge {"PATH" (str (at "bin"))
          "HOME" (str (at "home"))
          "LOG" (str (at "log"))
          "FAKE_JAR" (str (at "fake.jar"))
          "FAKE_MANIFEST" (str (at "manifest.edn"))
          "CLJW_JAVA_DIRS" (str (at "jvms"))}
         (update-vals env str)))

(defn- run-in
  "Runs the wrapper in a folder with an environment of nothing but env. Returns {:exit :out :err
  :log}."
  [^File folder env & args]
  (let [^java.util.List command (into [(str (tool "bash")) (str (at "repo" "cljw"))] args)
        builder (doto (ProcessBuilder. command)
                  (.directory folder)
                  (.redirectInput ^File (write (at "stdin") "from stdin"))
                  (.redirectError (at "err"))
                  (.redirectOutput (at "out")))]
    (doto (.environment builder) (.clear) (.putAll (environment env)))
    (write (at "log"))
    (let [process (.start builder)]
      (when-not (.waitFor process 120 TimeUnit/SECONDS)
        (.destroyForcibly process)
        (throw (ex-info "cljw did not end" {:args args})))
      {:exit (.exitValue process)
       :out (slurp (at "out"))
       :err (slurp (at "err"))
       :log (slurp (at "log"))})))

(defn- cljw
  [env & args]
  (apply run-in (at "repo") env args))

(defn- java-of
  "Returns the home of the Java that a run ended in, relative to the machine."
  [{:keys [out]}]
  (some-> (re-find #"(?m)^JAVA (.*)/bin/java$" out) second (str/replace (str *machine* "/") "")))

(defn- args-of
  [{:keys [out]}]
  (map second (re-seq #"(?m)^ARG (.*)$" out)))

(defn- computed?
  [{:keys [log]}]
  (str/includes? log "make-classpath2"))

;; Which Java

(deftest java-home-wins-over-a-newer-one
  (let [home (java "my 21" "21.0.9")]
    (java "jvms/25" "25.0.3")
    (let [{:keys [exit err] :as run} (cljw {"JAVA_HOME" home} "-M" "-e" "1")]
      (is (= [0 "my 21" ""] [exit (java-of run) err])))))

(deftest an-old-java-home-is-passed-over-with-one-line
  (let [home (java "my 17" "17.0.15")]
    (java "jvms/a 21" "21.0.1")
    (java "jvms/b 25" "25.0.3")
    (java "jvms/c 8" "1.8.0_402")
    (let [{:keys [err], :as run} (cljw {"JAVA_HOME" home} "-M")]
      (is (= "jvms/b 25" (java-of run)))
      (is (= [(str "cljw: JAVA_HOME ("
                   home
                   ") is Java 17.0.15; using Java 25.0.3 ("
                   (at "jvms/b 25")
                   ").")]
             (str/split-lines err))))))

(deftest a-java-home-without-java-is-passed-over
  (java "jvms/21" "21")
  (is (str/includes? (:err (cljw {"JAVA_HOME" (at "nowhere")} "-M")) "is no Java; using Java 21")))

(deftest the-newest-is-found-on-path-too
  (java "jvms/21" "21.0.1")
  (link (at "alternatives" "java") (io/file (java "opt/26" "26-ea") "bin" "java"))
  (link (at "bin" "java") (at "alternatives" "java"))
  (let [{:keys [err] :as run} (cljw {} "-M")]
    (is (= ["opt/26" ""] [(java-of run) err]))))

(deftest a-java-of-a-mac-is-found
  (java "jvms/temurin.jdk/Contents/Home" "22.0.1")
  (is (= "jvms/temurin.jdk/Contents/Home" (java-of (cljw {} "-M")))))

(deftest an-explicit-choice-is-taken-or-refused
  (java "jvms/25" "25")
  (is (= "other 21"
         (java-of (cljw {"CLJW_JAVA_HOME" (java "other 21" "21"), "JAVA_HOME" (at "jvms/25")}
                        "-M"))))
  (let [{:keys [exit err]} (cljw {"CLJW_JAVA_HOME" (java "other 17" "17.0.1")} "-M")]
    (is (= 1 exit))
    (is (str/includes? err "is Java 17.0.1; Java 21 or newer is needed")))
  (is (= 1 (:exit (cljw {"CLJW_JAVA_HOME" (at "nowhere")} "-M")))))

(deftest none-found-is-one-clear-error
  (java "jvms/11" "11.0.2")
  (let [{:keys [exit err]} (cljw {"JAVA_HOME" (java "my 17" "17.0.15")} "-M")]
    (is (= 1 exit))
    (doseq [text ["no Java 21 or newer found" "JAVA_HOME: " "(JDK 17.0.15)" "(JDK 11.0.2)"
                  (str (at "jvms")) "Install a JDK"]]
      (is (str/includes? err text)))))

(deftest no-java-at-all-is-the-same-error
  (let [{:keys [exit err]} (cljw {} "-M")]
    (is (= 1 exit))
    (is (str/includes? err "nothing that is a Java"))))

(deftest a-jre-is-named-as-such-and-does-once-the-cache-is-there
  (java "jvms/jre" "25" :modules "java.base java.net.http")
  (let [{:keys [exit err]} (cljw {} "-M")]
    (is (= 1 exit))
    (is (str/includes? err "is a JRE (25): it has no compiler (module jdk.compiler)")))
  (java "my 21" "21")
  (is (= 0 (:exit (cljw {"JAVA_HOME" (at "my 21")} "-M"))))
  (is (= "jvms/jre" (java-of (cljw {} "-M")))))

(deftest a-jre-borrows-the-compiler-of-a-jdk
  (java "jvms/jdk" "21")
  (let [run (cljw {"JAVA_HOME" (java "jre" "25" :modules "java.base")} "-M")
        bootstrap (first (filter #(str/includes? % "Bootstrap.java") (str/split-lines (:log run))))]
    (is (= "jre" (java-of run)))
    (is (str/starts-with? (str bootstrap) (str (at "jvms/jdk"))))))

;; The official CLI

(deftest the-official-cli-takes-over-with-the-java-that-was-picked
  (java "jvms/25" "25")
  (write-script (at "bin" "clojure") "#!/bin/sh"
                "if [ \"$1\" = --version ]; then echo 'Clojure CLI version 1.12.6.1'; exit; fi"
                "echo \"CLI $JAVA_HOME\"; echo \"$JAVA_CMD\"; for arg; do echo \"$arg\"; done; cat")
  (is (= [(str "CLI " (at "jvms/25")) (str (at "jvms/25/bin/java")) "-M:test" "a b" "" "from stdin"]
         (str/split-lines (:out (cljw {} "-M:test" "a b" "")))))
  (is (= "jvms/25" (java-of (cljw {"CLJW_OWN" "1"} "-M")))))

(deftest a-bare-repl-named-clojure-is-not-the-cli
  (java "jvms/25" "25")
  (write-script (at "bin" "clojure")
                "#!/bin/sh"
                "echo \"debian $*\" >>\"$LOG\"" "echo 'Clojure 1.11.1'"
                "cat >/dev/null" "exit 1")
  (let [{:keys [out log], :as run} (cljw {} "-M")]
    (is (= "jvms/25" (java-of run)))
    (is (str/includes? log "debian --version"))
    (is (str/includes? out "from stdin") "stdin was not eaten"))
  (is (not (str/includes? (:log (cljw {} "-M")) "debian")) "it is asked once"))

;; The cache

(deftest a-failed-bootstrap-ends-the-start
  (let [home (java "jvms/25" "25")]
    (write-script (io/file home "bin" "java") "#!/bin/sh" "echo \"$*\" >>\"$LOG\"" "exit 1")
    (let [{:keys [exit log]} (cljw {} "-M")]
      (is (= 1 exit))
      (is (= 1 (count (str/split-lines log))) "nothing is started after it"))))

(defn- set-modified
  [^File file ms]
  (.setLastModified file ms))

(defn- later [] (+ (System/currentTimeMillis) 5000))

(deftest the-classpath-is-computed-once
  (java "jvms/25" "25")
  (is (computed? (cljw {} "-M:a")))
  (is (not (computed? (cljw {} "-M:a"))))
  (is (computed? (cljw {} "-M:b")) "other aliases")
  (is (computed? (cljw {} "-Sdeps" "{:deps {}}" "-M:a")) "other data")
  (is (computed? (cljw {} "-Sforce" "-M:a"))))

(deftest a-stale-classpath-is-computed-again
  (java "jvms/25" "25")
  (testing "a newer deps.edn, lock file or manifest of a local root"
    (doseq [file [(at "repo" "deps.edn") (at "repo" "script/cljw/tools-deps.lock")
                  (at "manifest.edn")]]
      (cljw {} "-M")
      (set-modified file (later))
      (is (computed? (cljw {} "-M")) (str file))
      (set-modified file 0)))
  (testing "a jar that is gone"
    (cljw {} "-M")
    (is (computed? (cljw {"FAKE_JAR" (at "other.jar")} "-Sforce" "-M")))
    (is (computed? (cljw {} "-M")))))

(deftest the-users-deps-count-unless-told-otherwise
  (java "jvms/25" "25")
  (let [user (write (at "home" ".clojure" "deps.edn") "{}")]
    (is (str/includes? (:log (cljw {} "-M")) (str "--config-user " user)))
    (is (not (str/includes? (:log (cljw {} "-Srepro" "-Sforce" "-M")) "--config-user")))))

(deftest nothing-half-written-is-left
  (java "jvms/25" "25")
  (cljw {} "-M")
  (is (= #{"basis" "cp" "jvm" "main" "manifest"}
         (set (keep #(second (re-matches #"cljw-\d+\.(.*)" %)) (.list (at "repo" ".cpcache")))))))

(def ^:private tools-script 'clojure.tools.deps.script.make-classpath2)

(defn- resolved
  "Returns what the wrapper's script returns, [options of a run ...], where tools.deps has (run
  options), and what it prints."
  [run]
  (let [ns (create-ns tools-script), said (java.io.StringWriter.), calls (atom [])
        run (intern ns 'run (fn [options] (swap! calls conj options) (run options)))]
    (intern ns '-main (fn [& args] (@run {:args args})))
    (dosync (commute @#'clojure.core/*loaded-libs* conj tools-script))
    (try
      (binding [*command-line-args* ["--tree"], *err* said]
        (load-file "script/cljw/make-classpath2.clj"))
      (catch clojure.lang.Compiler$CompilerException e (swap! calls conj (ex-message (ex-cause e))))
      (finally
        (dosync (commute @#'clojure.core/*loaded-libs* disj tools-script))
        (remove-ns 'cljw.make-classpath2)
        (remove-ns tools-script)))
    [@calls (str said)]))

(defn- thrown-in ^Throwable [class-name]
  (let [frame (StackTraceElement. class-name "validateId" "X.java" 1)]
    (doto (ClassCastException. "no TreeNode") (.setStackTrace (into-array [frame])))))

(deftest a-resolution-in-which-threads-met-is-done-again-on-one
  (let [failing (fn [t] (fn [{:keys [threads]}] (when-not threads (throw t))))
        met (thrown-in "org.apache.maven.model.validation.DefaultModelValidator")]
    (doseq [t [met (RuntimeException. met)]]
      (is (= [[{:args ["--tree"]} {:args ["--tree"], :threads "1"}]
              "Two threads of Maven have met, as they do now and then: once more, on one.\n"]
             (resolved (failing t)))))
    (is (= [[{:args ["--tree"]} "no TreeNode"] ""] (resolved (failing (thrown-in "a.B")))))))

(deftest a-folder-with-its-own-deps-has-its-own-cache
  (java "jvms/25" "25")
  (write (at "repo" "modules" "core" "deps.edn") "{}")
  (is (= 0 (:exit (run-in (at "repo" "modules" "core") {} "-M:test"))))
  (is (seq (.listFiles (at "repo" "modules" "core" ".cpcache")))))

;; Arguments

(defn- same-tail?
  [expected args]
  (= expected (take-last (count expected) args)))

(deftest each-way-to-run-becomes-its-command
  (java "jvms/25" "25")
  (let [cp (str "src:" (at "fake.jar"))]
    (testing "arguments -> the end of the command line"
      (doseq [[args expected]
              {["-M:x" "a b" ""] ["-classpath" cp "clojure.main" "-m" "main.ns" "a b" ""]
               ["-J-Xmx1g" "-M"] ["-classpath" cp "clojure.main" "-m" "main.ns"]
               ["-A:dev" "-e" "1"] ["-classpath" cp "clojure.main" "-e" "1"]
               ["-X:x" ":a" "1"] ["clojure.main" (str (at "repo" "script/cljw/exec.clj")) ":a" "1"]
               ["-T:build" "jars"] ["clojure.main" (str (at "repo" "script/cljw/exec.clj")) "jars"]
               ["-Scp" "x" "-M"] ["-classpath" "x" "clojure.main" "-m" "main.ns"]}]
        (is (same-tail? expected (args-of (apply cljw {} args))) (pr-str args))))))

(deftest jvm-options-come-from-aliases-and-arguments
  (java "jvms/25" "25")
  (is (= ["-Xss1m" "-Dfrom=alias with blank" "-Dx=a b"]
         (take 3 (args-of (cljw {"JAVA_OPTS" "-Xss1m"} "-J-Dx=a b" "-M"))))))

(deftest what-only-asks-runs-nothing
  (java "jvms/25" "25")
  (is (nil? (java-of (cljw {} "-P" "-M"))))
  (is (= (str "src:" (at "fake.jar") "\n") (:out (cljw {} "-Spath"))))
  (is (str/includes? (:out (cljw {} "-Sdescribe")) ":java-version \"25\""))
  (is (str/includes? (:out (cljw {} "--help")) "-Sdeps EDN"))
  (is (= (cljw {} "--help") (cljw {} "help")))
  (is (re-find #"^cljw \d+ \(tools.deps [\d.]+\)\n$" (:out (cljw {} "--version")))))

(deftest wrong-arguments-are-refused
  (java "jvms/25" "25")
  (doseq [args [["-Sdeps"] ["-Snope"] ["-A"] ["-Rx"]]]
    (is (= 1 (:exit (apply cljw {} args))) (pr-str args))))

;; The bootstrap

(defn- sha256
  [^String content]
  (.formatHex (HexFormat/of) (.digest (MessageDigest/getInstance "SHA-256") (.getBytes content))))

(defn- answer
  [^HttpExchange exchange status ^String body]
  (with-open [out (.getResponseBody exchange)]
    (.sendResponseHeaders exchange status (count body))
    (.write out (.getBytes body))))

(defn- with-repository
  "Calls f with the URL of a repository in which jar one is fine, and jar two answers 503 once."
  [f]
  (let [refused (atom #{})
        handle (reify HttpHandler
                 (handle [_ exchange]
                   (let [path (str (.getRequestURI exchange))]
                     (if (and (str/ends-with? path "two.jar") (not (@refused path)))
                       (do (swap! refused conj path) (answer exchange 503 "later"))
                       (answer exchange 200 path)))))
        server (doto (HttpServer/create (InetSocketAddress. "localhost" 0) 0)
                 (.createContext "/" handle)
                 (.start))]
    (try (f (str "http://localhost:" (.getPort (.getAddress server)) "/"))
         (finally (.stop server 0)))))

(defn- bootstrap
  "Runs Bootstrap.java on a lock file of these lines; returns {:exit :out :cp}, cp nil where none
  was written."
  [url & lock-lines]
  (let [lock (apply write (at "lock") lock-lines)
        cp (at "cache" "tools.cp")
        ^java.util.List command [(str (io/file (jvm/this-home) "bin" "java"))
                                 "-XX:TieredStopAtLevel=1" (str "-Duser.home=" (at "home"))
                                 "script/cljw/Bootstrap.java" (str lock) (str cp)]
        builder (doto (ProcessBuilder. command) (.redirectErrorStream true))
        _ (.put (.environment builder) "MAVEN_CENTRAL_URL" url)
        process (.start builder)
        out (slurp (.getInputStream process))]
    {:exit (.waitFor process), :out out, :cp (when (.isFile cp) (str/trim (slurp cp)))}))

(defn- in-repository
  ^File [path]
  (at "home" ".m2" "repository" path))

(deftest jars-are-fetched-checked-and-kept
  (with-repository
    (fn [url]
      (write (in-repository "a/one.jar") "half a jar")
      (let [{:keys [exit out cp]} (bootstrap url
                                             "# a comment"
                                             (str (sha256 "/a/one.jar") "  a/one.jar")
                                             (str (sha256 "/b/two.jar") "  b/two.jar"))]
        (is (= 0 exit) out)
        (is (= (str (in-repository "a/one.jar") ":" (in-repository "b/two.jar")) cp))
        (is (= ["/a/one.jar" "/b/two.jar"]
               (map #(slurp (in-repository %)) ["a/one.jar" "b/two.jar"])))
        (is (= ["one.jar"] (seq (.list (in-repository "a")))))))))

(deftest a-jar-with-another-sum-is-refused
  (with-repository
    (fn [url]
      (let [{:keys [exit out cp]} (bootstrap url (str (sha256 "something else") "  a/one.jar"))]
        (is (= [1 nil] [exit cp]))
        (is (str/includes? out "not that of tools-deps.lock"))
        (is (not (.exists (in-repository "a/one.jar"))))))))

(deftest offline-is-one-clear-error
  (let [{:keys [exit out cp]} (bootstrap "http://localhost:1" (str (sha256 "x") "  a/one.jar"))]
    (is (= [1 nil] [exit cp]))
    (is (str/includes? out "could not download http://localhost:1/a/one.jar"))
    (is (str/includes? out "needs the network"))
    (is (not (str/includes? out "\tat ")) "no stack trace")))

;; Calling a function

(defn- exec
  "Runs exec.clj with the arguments; returns [exit output]."
  [& args]
  (let [basis (write (at "basis.edn") "{}")
        ^java.util.List command (concat [(str (io/file (jvm/this-home) "bin" "java"))
                                         "-XX:TieredStopAtLevel=1" (str "-Dclojure.basis=" basis)
                                         "-classpath" (System/getProperty "java.class.path")
                                         "clojure.main" "script/cljw/exec.clj"]
                                        args)
        builder (doto (ProcessBuilder. command) (.redirectErrorStream true))
        ;; Java says that it has found them.
        _ (run! #(.remove (.environment builder) %)
                ["JDK_JAVA_OPTIONS" "JAVA_TOOL_OPTIONS" "_JAVA_OPTIONS"])
        process (.start builder)
        out (slurp (.getInputStream process))]
    [(.waitFor process) out]))

(deftest a-function-that-is-not-there-is-one-line
  (is (= [1 "There is no function clojure.string/nosuch\n"] (exec "clojure.string/nosuch")))
  (is (= [1 "There is no function no-such.ns/f\n"] (exec "no-such.ns/f")))
  (is (= [0 ""] (exec "clojure.set/union" ":a" "1")))
  (is (= [1 "No function found on the command line or in :exec-fn\n"] (exec)))
  (is (= [0 ""] (exec "clojure.core/keys" ":a" "1"))))

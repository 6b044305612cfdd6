(ns thrum.java-test
  "The Java face, used from Java: the samples are compiled, then run."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.java.compiler :as compiler]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo RT)
   (java.io File IOException)
   (java.lang.reflect Executable Field InvocationTargetException Method Modifier Type)
   (java.util.concurrent CancellationException CompletionException ExecutionException TimeoutException)
   (java.util.regex Pattern)))

(set! *warn-on-reflection* true)

(def ^:private ^:dynamic *classes* nil)
(def ^:private ^:dynamic *loader* nil)

(defn- load-samples
  []
  (when-some [complaints
              (compiler/compile! *classes* [] (mapcat compiler/sources ["src" "samples"]))]
    (throw (ex-info complaints {})))
  (compiler/loader *classes*))

(defn- compiled [f]
  (binding [*classes* (compiler/folder)]
    (try
      (binding [*loader* (delay (load-samples))]
        (f))
      (finally (compiler/delete! *classes*)))))

(defn- loaded
  "Here a test can be skipped, for want of a compiler."
  [f]
  @*loader*
  (f))

(use-fixtures :once compiled)
(use-fixtures :each loaded leak/no-leaks)

(defn- load-class ^Class [name]
  (Class/forName (str "io.github.thrumclj." name) true @*loader*))

(defn- sample
  "Returns what a method of the samples returned, or throws what it threw."
  [name & args]
  (let [^Method method (first (filter #(= name (.getName ^Method %))
                                      (.getDeclaredMethods (load-class "samples.Samples"))))]
    (try
      (.invoke method nil (object-array args))
      (catch InvocationTargetException e (throw (ex-cause e))))))

;; pmap

(deftest results-are-in-the-order-of-the-items
  (is (= [3 5 1 2] (sample "inputOrder"))))

(deftest a-checked-exception-is-inferred-and-thrown
  (is (= ["item -7" true] (sample "checkedException"))))

(deftest types-may-be-wider-than-what-is-given
  (is (= [1 2] (sample "wildcards"))))

(deftest nulls-travel
  (is (= ["was null" nil] (sample "nulls")))
  (is (= [] (sample "empty"))))

(deftest the-results-cannot-be-changed-and-are-a-list-of-javas
  (is (= "[1]" (sample "immutable")))
  (is (not (str/starts-with? (.getName (class (sample "nulls"))) "clojure."))))

(deftest each-call-has-a-fresh-virtual-thread
  (is (true? (sample "freshVirtualThreads"))))

(deftest what-a-thread-local-holds-stays-with-the-caller
  (is (= [nil "caller"] (sample "threadLocals"))))

(deftest the-context-class-loader-is-inherited
  (is (true? (sample "contextClassLoader"))))

(deftest so-many-calls-run-at-once
  (is (= 3 (sample "limit")) "two run, one item waits for room"))

(deftest the-first-failure-stops-its-siblings
  (is (= [true "interrupted"] (sample "siblingCancel"))))

(deftest items-are-asked-for-by-the-caller-as-there-is-room
  (is (= [100 0 true] (sample "iteration"))))

(deftest what-the-items-throw-is-thrown
  (is (= "same" (sample "failingIteration"))))

;; scope

(deftest a-scope-returns-what-its-body-does
  (is (= "Page[user=Ada, cart=[teapot 7]]" (sample "scopeReturns")))
  (is (= 3 (sample "scopeOfUnchecked"))))

(deftest a-scope-throws-the-original-exception-of-its-fork
  (is (= ["FileNotFoundException" "user -1"] (sample "scopeThrowsTheOriginal"))))

(deftest a-fork-that-nobody-asks-for-still-counts
  (is (= [true "interrupted" true] (sample "forgottenFork"))))

(deftest get-tells-how-a-fork-ended
  (is (= [true "failed: no" "cancelled"] (sample "getOfFailedAndCancelled"))))

(deftest a-fork-of-an-outer-scope-fails-the-outer-scope
  (is (= [true true true] (sample "outerForkInInnerScope"))))

(deftest what-get-throws-is-no-second-failure
  (is (= [true 0] (sample "nothingRidesOnTheOriginal"))))

(deftest a-fork-is-late-by-the-deadline-it-was-started-in
  (is (= ["CompletionException" "TimeoutException" 1 true "TimeoutException" true]
         (sample "lateForkOfAnOuterScope"))))

(deftest a-fork-by-late-work-is-late
  (is (= ["CompletionException" "TimeoutException" false] (sample "forkOfLateWork"))))

(deftest what-get-throws-is-suppressed-as-one-of-the-jdks
  (is (= ["first" "java.util.concurrent.ExecutionException" true]
         (sample "getOfFailedIsSuppressed"))))

(deftest what-get-throws-in-an-item-names-the-item
  (is (= 1 (sample "getOfFailedInAnItem"))))

(deftest get-needs-no-text-of-the-failure
  (is (= [true true] (sample "getOfUnprintable"))))

(deftest a-handled-failure-still-fails-the-scope
  (is (= "handled in vain" (sample "handledFailure"))))

;; hedge

(deftest a-slow-call-is-made-a-second-time
  (is (= ["second" "interrupted"] (sample "hedgeReturnsTheSecond")))
  (is (= "first" (sample "hedgeReturnsTheFirst")))
  (is (= "second" (sample "hedgeAtOnce"))))

(deftest where-both-fail-the-first-failure-is-thrown
  (is (= ["item -1" true] (sample "hedgeThrowsTheFirst"))))

;; withTimeout

(deftest a-body-in-time-returns-its-value
  (is (= "Ada" (sample "inTime")))
  (is (= 1 (sample "hugeTimeout"))))

(deftest what-is-late-is-stopped-and-has-ended
  (let [[all-ended message] (sample "late")]
    (is (true? all-ended))
    (is (str/ends-with? message "was not done in time, within 50 ms"))))

(deftest the-cause-of-what-is-late-is-what-the-body-threw
  (is (true? (sample "causeOfLateIsWhatGetThrew"))))

(deftest what-is-late-can-be-written-to-a-stream
  (is (= "CancellationException" (sample "lateIsSerializable"))))

(deftest a-cancel-in-clojure-code-is-an-exception-of-the-jdks
  (is (= "java.util.concurrent.CancellationException: This work was cancelled: :thrum/timeout"
         (sample "lateInClojureIsSerializable" #(t/pmapv 1 (fn [_] @(promise)) [1])))))

(deftest the-earliest-deadline-wins
  (is (= ["outer" "CancellationException"] (sample "nestedDeadlines"))))

(deftest a-fork-after-the-deadline-is-no-failure-of-its-own
  (is (= "late" (sample "forkAfterTheDeadline"))))

(deftest a-timeout-of-the-bodys-own-is-thrown-as-it-is
  (is (true? (sample "timeoutOfTheBody"))))

(deftest an-answer-to-the-interrupt-without-an-interrupt-in-it-is-thrown-as-it-is
  (is (= "IllegalStateException: The query was stopped" (sample "anotherAnswerToTheInterrupt"))))

(deftest a-timeout-is-rounded-up-to-a-millisecond
  (is (= 0 (sample "smallTimeoutIsRoundedUp"))))

;; Exceptions

(deftest an-interrupt-of-the-caller-is-thrown-when-all-have-ended
  (is (= ["interrupted, running: 0, flag: false"] (sample "interruptOfTheCaller"))))

(deftest what-the-user-throws-comes-out-as-it-is
  (doseq [thrown [(IOException. "io") (IllegalStateException. "state") (StackOverflowError. "error")
                  (TimeoutException. "theirs") (CancellationException. "theirs")
                  (ExecutionException. (IOException. "io"))
                  (CompletionException. (IOException. "io")) (ex-info "theirs" {:a 1})
                  (ex-info "looks like ours" {:type :thrum/timeout})
                  (ex-info "so does this" {:type :thrum/invalid})
                  (proxy [RuntimeException] ["no hash"]
                    (hashCode [] (throw (IllegalStateException. "of the test"))))]]
    (testing (str thrown)
      (is (= (repeat 7 true) (map #(identical? thrown %) (sample "through" thrown)))))))

(deftest work-that-is-cancelled-starts-nothing
  (is (= "CancellationException" (sample "inCancelledWork"))))

;; Misuse

(deftest misuse-is-told-at-the-call-in-javas-terms
  (is (= ["IllegalArgumentException: limit must be at least 1, not 0"
          "IllegalArgumentException: limit must be at least 1, not -1"
          "NullPointerException: items must not be null"
          "NullPointerException: the iterator of items must not be null"
          "NullPointerException: mapper must not be null"
          "NullPointerException: body must not be null"
          "NullPointerException: body must not be null"
          "NullPointerException: timeout must not be null"
          "NullPointerException: body must not be null"
          "IllegalArgumentException: timeout must be positive, not PT0S"
          "IllegalArgumentException: timeout must be positive, not PT-0.005S"
          "NullPointerException: after must not be null"
          "NullPointerException: first must not be null"
          "NullPointerException: second must not be null"
          "IllegalArgumentException: after must not be negative, but is PT-0.001S"]
         (sample "misuse"))))

(deftest a-closed-scope-takes-no-fork
  (is
    (= (repeat 2
               "IllegalStateException: The scope has ended, nothing can be forked into it any more")
       (sample "closedScope"))))

(deftest a-cancelled-scope-takes-no-fork
  (is (= "IllegalStateException: The scope is cancelled, nothing can be forked into it any more"
         (sample "cancelledScope"))))

(deftest a-wrong-wrap-is-no-wrong-thread
  (is (thrown-with-msg? ExceptionInfo #"The wrap of a task's body is 42"
        (binding [t/*wrap* 42] (sample "scopeOfUnchecked")))))

(deftest a-foreign-thread-may-not-fork
  (is (str/starts-with? (sample "foreignThread")
                        "WrongThreadException: This thread does not work for the scope")))

(deftest a-fork-that-waits-for-itself-is-told
  (is (re-matches #"IllegalStateException: .* waits for itself" (sample "waitsForItself"))))

;; Loading

(defn- first-call
  "Returns the last line that the sample prints in a JVM of its own, with the folders and the parts
  of this classpath that match the pattern."
  [pattern & folders]
  (let [parts (str/split (System/getProperty "java.class.path")
                         (re-pattern (Pattern/quote File/pathSeparator)))
        class-path (str/join File/pathSeparator
                             (concat (map str folders)
                                     [(str *classes*)]
                                     (filter #(re-find pattern %) parts)))
        java (str (io/file (jvm/this-home) "bin" "java"))]
    (jvm/last-line
      (:lines (jvm/quietly [java "-cp" class-path "io.github.thrumclj.samples.FirstCall"]
                           280000
                           jvm/quick)))))

(deftest the-first-call-waits-for-another-load-and-keeps-the-interrupt
  (is (= "works, flag: true, #'thrum.core/with-scope-call" (first-call #""))))

(deftest what-cannot-be-loaded-is-told-in-javas-terms
  (is (str/starts-with? (first-call #"org.clojure")
                        "IllegalStateException of java.io.FileNotFoundException: ")))

(deftest another-version-of-thrum-cannot-be-loaded
  (let [folder (compiler/folder), core (io/file folder "thrum" "core.clj")]
    (io/make-parents core)
    (spit core "(ns thrum.core) (defn pmapv [limit f items])")
    (try
      (is (= (str "IllegalStateException of java.lang.IllegalStateException: thrum.core has no "
                  "with-scope-call: the class path has another version of thrum than of thrum-java")
             (first-call #"" folder)))
      (finally (compiler/delete! folder)))))

(deftest a-namespace-that-is-being-loaded-may-call
  (let [face (Class/forName "io.github.thrumclj.Thrum" true (compiler/loader *classes*))
        ^Method load-method (.getMethod face "load" (make-array Class 0))
        none (object-array 0)]
    (is (nil? (gate/in-time 20000 #(locking RT/REQUIRE_LOCK (.invoke load-method nil none)))))))

;; Types

(defn- mentioned
  "Returns the names of all types in the public signatures of a class: generic ones, so with their
  arguments and bounds."
  [^Class class]
  (let [visible? #(or (Modifier/isPublic %) (Modifier/isProtected %))]
    (concat [(str (.getGenericSuperclass class))]
            (map str (.getGenericInterfaces class))
            (for [^Executable e (concat (.getDeclaredMethods class)
                                        (.getDeclaredConstructors class))
                  :when (visible? (.getModifiers e))]
              (.toGenericString e))
            (for [^Field f (.getDeclaredFields class)
                  :when (visible? (.getModifiers f))]
              (.getTypeName ^Type (.getGenericType f))))))

(deftest no-type-of-clojures-is-in-a-public-signature
  (let [face (load-class "Thrum")
        public (filter #(Modifier/isPublic (.getModifiers ^Class %))
                       (cons face (.getDeclaredClasses face)))]
    (is (= #{"Thrum" "Mapper" "Body" "ScopeBody" "Scope" "Fork"}
           (into #{} (map #(.getSimpleName ^Class %)) public)))
    (is (= [] (filter #(re-find #"clojure\.|thrum\.(?!\w*clj)" %) (mapcat mentioned public))))
    (is (some #(re-find #"clojure\." %) (mentioned (class t/pmap)))
        "a class of Clojure's would be seen")))

(def ^:private wrong
  "Statements that the compiler must refuse, and what it says."
  {(str "List<Integer> r = Thrum.pmap(1, List.of(1), "
     "i -> { if (i == 1) throw new IOException(); return i; });")
   "unreported exception IOException"
   "List<String> r = Thrum.pmap(1, List.of(1), i -> i + 1);" "incompatible types"
   "Thrum.scope(scope -> scope.fork(() -> { throw new IOException(); }));"
   "unreported exception IOException"
   (str "Thrum.scope((Thrum.Scope<IOException> scope) -> "
     "{ scope.fork(() -> { throw new IOException(); }); return 1; });")
   "unreported exception IOException"
   "Thrum.withTimeout(Duration.ZERO, () -> { if (true) throw new IOException(); return 1; });"
   "unreported exception IOException"})

(defn- complaint
  "Returns what the compiler says about a method that has these statements as its body, nil where it
  says nothing."
  [^String statements]
  (let [folder (compiler/folder)
        file (io/file folder "Wrong.java")]
    (try
      (spit
        file
        (str
          "import io.github.thrumclj.Thrum; "
          "import java.io.*; import java.time.*; import java.util.*;\n"
          "final class Wrong { static void m() throws InterruptedException, "
          "java.util.concurrent.TimeoutException {\n"
          statements
          "\n} }\n"))
      (compiler/compile! folder [*classes*] [(str file)])
      (finally
        (compiler/delete! folder)))))

(deftest the-compiler-refuses-what-is-wrong
  (is (nil? (complaint "List<Integer> r = Thrum.pmap(1, List.of(1), i -> i + 1);")))
  (doseq [[statements expected] wrong]
    (is (str/includes? (str (complaint statements)) expected) statements)))

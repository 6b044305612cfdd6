(ns thrum.async.release
  "Which release of core.async the tests run with, for those that need a newer one:

    (deftest ^{:skip (release/before [1 8])} io-threads-are-virtual ...)"
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.util Properties)))

(set! *warn-on-reflection* true)

(def version
  "The version of core.async on the classpath, a string."
  (with-open [in (io/input-stream (io/resource
                                    "META-INF/maven/org.clojure/core.async/pom.properties"))]
    (.getProperty (doto (Properties.) (.load in)) "version")))

(defn- numbers [version]
  (mapv parse-long (take 2 (str/split version #"\."))))

(defn before
  "Returns why a test is skipped that needs core.async from this [major minor] on, or nil where it
  can run."
  [[major minor :as least]]
  (when (neg? (compare (numbers version) least))
    (str "needs core.async " major "." minor ", this is " version)))

(ns thrum.build.lock
  "The lock file of ./cljw: the jars of tools.deps, and their sums."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.tools.build.api :as b])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.security MessageDigest)
   (java.util HexFormat)))

(set! *warn-on-reflection* true)

(def path
  "Where the lock file is."
  "script/cljw/tools-deps.lock")

(def ^:private tools
  "What ./cljw computes a classpath with: tools.deps without Amazon's client, and a logger that is
  silent."
  '{:paths []
    :deps {org.clojure/clojure {:mvn/version "1.12.6"}
           org.clojure/tools.deps {:mvn/version "0.31.1646"
                                   :exclusions [org.clojure/tools.deps.maven-s3-transporter]}
           org.slf4j/slf4j-nop {:mvn/version "1.7.36"}}})

(defn- sha256 [^File file]
  (.formatHex (HexFormat/of)
              (.digest (MessageDigest/getInstance "SHA-256") (Files/readAllBytes (.toPath file)))))

(defn- line [jar]
  (let [repository (str (System/getProperty "user.home") "/.m2/repository/")]
    (str (sha256 (io/file jar)) "  " (str/replace jar repository ""))))

(defn jars
  "Returns the paths of the jars that ./cljw computes a classpath with, sorted."
  []
  (sort (mapcat :paths (vals (:libs (b/create-basis {:project tools, :user nil}))))))

(defn write
  "Writes the lock file from the versions above."
  []
  (spit path (str/join (map #(str (line %) "\n") (jars)))))

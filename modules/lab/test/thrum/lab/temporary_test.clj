(ns thrum.lab.temporary-test
  "Folders that are deleted again."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn- exists? [path]
  (.exists (io/file path)))

(defn- full-folder! []
  (let [folder (temporary/folder! "thrum-lab")]
    (io/make-parents folder "below" "file")
    (spit (io/file folder "below" "file") "x")
    folder))

(deftest what-nobody-has-deleted-is-deleted-at-the-end
  (let [folders (repeatedly 2 full-folder!)]
    (temporary/delete! (first folders))
    (is (= [false true] (map exists? folders)))
    (temporary/delete-all!)
    (is (not-any? exists? folders))))

(deftest what-a-link-leads-to-stays
  (let [[outside inside] (repeatedly 2 full-folder!)]
    (Files/createSymbolicLink (.toPath (io/file inside "link"))
                              (.toPath ^File (io/file outside))
                              (make-array FileAttribute 0))
    (temporary/delete! inside)
    (is (not (exists? inside)))
    (is (exists? (io/file outside "below" "file")))
    (temporary/delete! outside)))

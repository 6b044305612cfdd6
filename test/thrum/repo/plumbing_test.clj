(ns thrum.repo.plumbing-test
  "No line of Thrum's own is shown as the one to look at."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [clojure.tools.namespace.file :as ns-file]
   [clojure.tools.namespace.parse :as parse]
   [thrum.repo.files :as files]
   [thrum.watch.impl.frames :as frames]))

(set! *warn-on-reflection* true)

(defn- namespaces []
  (->> (files/committed)
       (filter #(re-matches #"modules/(?!lab/|test-kit/|server-tck/)[^/]+/src/.*\.clj" %))
       (map #(parse/name-from-ns-decl (ns-file/read-file-ns-decl (io/file %))))))

(defn- line-of [namespace]
  (frames/of-text (str (munge namespace) "$f.invoke(f.clj:1)")))

(deftest the-line-to-look-at-is-no-module's-own
  (is (= [] (filter #(frames/app-frame [(line-of %)]) (namespaces))))
  (is (< 100 (count (namespaces))))
  (is (some? (frames/app-frame [(line-of 'my.app)]))))

(ns thrum.repo.api-test
  "Nothing that users call changes unseen: names, arities and options are those of
  doc/reference/api.edn. After a change on purpose: ./cljw -M:api, and a line in CHANGELOG.md."
  (:require
   [clojure.data :as data]
   [clojure.edn :as edn]
   [clojure.test :refer [deftest is]]
   [thrum.dev.api :as api]))

(set! *warn-on-reflection* true)

(deftest what-users-call-is-what-is-written
  (let [[gone new] (data/diff (api/written) (edn/read-string (pr-str (api/found))))]
    (is (nil? gone) "in doc/reference/api.edn only; ./cljw -M:api, and a line in CHANGELOG.md")
    (is (nil? new) "in the code only; ./cljw -M:api, and a line in CHANGELOG.md")))

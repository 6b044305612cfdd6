(ns thrum.async.guide-test
  "The table of doc/guides/channels.md is read, and this JVM does what it says of its release."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.async.guide :as guide]
   [thrum.async.probe :as probe]))

(set! *warn-on-reflection* true)

(deftest tables-are-read
  (is
    (= {["1.2"] {"go" "platform x", "thread" "none"}
        ["1.3-alpha4" "-Dclojure.core.async.a=b/c"] {"go" "virtual, no name", "thread" "virtual y"}}
       (guide/table
         (str/join "\n"
                   ["# x" "" "| a | b |" "|---|---|" "| 1 | 2 |" ""
                    "| core.async | `go` | `thread` |"
                    "|---|---|---|" "| 1.2 | platform `x` | none |"
                    "| 1.3-alpha4, `a=b/c` | virtual, no name | virtual `y` |" "" "| z |"]))))
  (is (nil? (guide/table "# x\n"))))

(deftest this-release-runs-it-where-the-guide-says
  (let [places (probe/places)]
    (is (= (guide/of-this-release) (select-keys places guide/uses)))
    (is (= (places "go") (places "go, woken")) "a go block that was woken runs where it began")))

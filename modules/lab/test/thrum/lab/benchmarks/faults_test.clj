(ns thrum.lab.benchmarks.faults-test
  "What counts as found, and how it is shown."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.benchmarks.faults.child :as child]
   [thrum.lab.benchmarks.faults.experiment :as faults]
   [thrum.lab.benchmarks.faults.tools :as tools]))

(set! *warn-on-reflection* true)

(deftest a-frame-is-known-by-its-whole-name
  (are [line found] (= found (tools/frame? (str "x\n  " line "\n") "spin"))
    "\"thrum.lab.benchmarks.faults.child$spin.invokeStatic(child.clj:80)\"" true
    "at thrum.lab.benchmarks.faults.child$spin$fn__12.invoke(child.clj:80)" true
    "at thrum.lab.benchmarks.faults.child$spin_often.invoke(child.clj:81)" false
    "at my.app$spin.invoke(app.clj:1)" false))

(deftest only-the-rules-of-a-fault-find-it
  (let [lints [{:rule :crowded, :ms 1} {:rule :pinned, :ms 700, :frame "x"} {:rule :jdk-hang}]]
    (is (= {:found true, :ms 700, :frame "x", :besides [:crowded]}
           (#'faults/found #{:pinned} lints)))
    (is (= {:found false, :ms nil, :frame nil, :besides [:crowded :pinned]}
           (#'faults/found #{:cycle} lints)))))

(deftest a-cell-says-what-was-found
  (are [finding cell] (= cell (#'faults/finding finding))
    {:found true, :ms 700, :frame "x"} "yes, 700 ms"
    {:found true, :frame "x"} "yes"
    {:found true, :ms 9, :frame nil} "yes, 9 ms, no line"
    {:found false} "no"))

(deftest meters-that-did-not-move-say-nothing
  (are [meters cell] (= cell (#'faults/moved meters))
    {"jvm.threads.virtual.pinned" 3.0, "jvm.threads.virtual.live" 9.0} "pinned 3"
    {"jvm.threads.virtual.pinned" 0.0} ""
    nil "not on the class path"))

(deftest every-fault-of-the-table-can-be-seeded
  (is (= (set (keys child/faults)) (into #{} (map first) faults/faults))))

(ns thrum.test-kit.release-test
  "Another release's jar takes the place of the one there is."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.release :as release])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- path [& entries]
  (String/join File/pathSeparator ^Iterable entries))

(deftest one-jar-is-replaced
  (is
    (=
      (path "src" "new.jar" "m/lib.x-2.0.jar")
      (release/replaced (path "src" "m/lib-1.0-alpha2.jar" "m/lib.x-2.0.jar") 'some/lib
        "new.jar"))))

(deftest no-jar-or-two-are-refused
  (doseq [found [[] ["lib-1.0.jar" "lib-2.0.jar"]]]
    (is (= {:lib 'some/lib, :found found}
           (try
             (release/replaced (apply path "src" found) 'some/lib "new.jar")
             (catch clojure.lang.ExceptionInfo e (ex-data e)))))))

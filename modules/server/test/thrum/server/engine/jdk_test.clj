(ns thrum.server.engine.jdk-test
  "What stands in the place of the JDK's own server is refused."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jdk :as jdk])
  (:import
   (clojure.lang ExceptionInfo)
   (com.sun.net.httpserver.spi HttpServerProvider)))

(set! *warn-on-reflection* true)

(def ^:private check-provider! @#'jdk/check-provider!)

(deftest the-jdks-own-server-is-taken
  (is (nil? (check-provider! (HttpServerProvider/provider)))))

(deftest another-in-its-place-is-refused
  (let [another (proxy [HttpServerProvider] [])
        e (is (thrown? ExceptionInfo (check-provider! another)))]
    (is (= [:thrum/invalid :engine (.getName (class another))]
           ((juxt :type :option :provider) (ex-data e))))
    (is (str/includes? (ex-message e) (.getName (class another))))))

(ns thrum.context.mdc-test
  "The MDC in tasks."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.context.mdc :as mdc]
   [thrum.core :as t]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util HashMap Map)
   (java.util.concurrent Callable ExecutorService Executors)
   (org.slf4j MDC)
   (org.slf4j.spi MDCAdapter)))

(set! *warn-on-reflection* true)

;; An adapter as Logback's: by thread, and inherited by none. The tests' provider of SLF4J has none.

(defn- by-thread ^MDCAdapter []
  (let [maps (ThreadLocal/withInitial (fn [] (HashMap.)))
        here (fn ^Map [] (.get ^ThreadLocal maps))]
    (reify
      MDCAdapter
      (put [_ k v] (.put ^Map (here) k v))
      (get [_ k] (.get ^Map (here) k))
      (remove [_ k] (.remove ^Map (here) k))
      (clear [_] (.clear ^Map (here)))
      (getCopyOfContextMap [_] (HashMap. ^Map (here)))
      (setContextMap [_ context] (.set ^ThreadLocal maps (HashMap. ^Map context))))))

(def ^:private field
  (doto (.getDeclaredField MDC "MDC_ADAPTER") (.setAccessible true)))

(defn- with-adapter [f]
  (let [^java.lang.reflect.Field field field, before (.get field nil)]
    (.set field nil (by-thread))
    (try (f) (finally (.set field nil before)))))

(use-fixtures :once with-adapter)
(use-fixtures :each leak/no-leaks)

(defn- request [] (MDC/get "request"))

(defn- in-every-task
  "Returns what the tasks of each form see as the request."
  []
  (t/with-executor [executor]
    (let [pool ^ExecutorService executor]
      {:future @(t/future (request))
       :pmapv (t/pmapv 2 (fn [_] (request)) [1 2])
       :pmap (vec (t/pmap 2 (fn [_] (request)) [1 2]))
       :all (t/all (request) (request))
       :fork (t/with-scope [s] @(t/fork s (request)))
       :via @(t/future-via [executor] (request))
       :submit (.get (.submit pool ^Callable request))
       :retry (t/retry {} (request))
       :abandon (t/abandon-on-interrupt (fn []) (request))})))

(deftest the-mdc-is-there-in-every-task
  (MDC/put "request" "7")
  (try
    (is (= #{"7"} (into #{} (comp (map val) (mapcat #(if (vector? %) % [%])))
                        (binding [t/*wrap* mdc/wrap] (in-every-task)))))
    (is (= "7" (request)))
    (finally (MDC/clear))))

(deftest a-thread-of-a-pool-keeps-its-own
  (with-open [pool (Executors/newSingleThreadExecutor)]
    (.get (.submit pool ^Runnable #(MDC/put "request" "pool's")))
    (MDC/put "request" "7")
    (try
      (is (= "7" (binding [t/*wrap* mdc/wrap] @(t/future-via [pool] (request)))))
      (is (= "pool's" (.get (.submit pool ^Callable request))))
      (finally (MDC/clear)))))

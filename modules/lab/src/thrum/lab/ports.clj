(ns thrum.lab.ports
  "Ports for processes that cannot say which one the system gave them."
  (:import
   (java.io IOException)
   (java.net InetAddress ServerSocket)))

(set! *warn-on-reflection* true)

(defn- free? [port]
  (try
    (with-open [_ (ServerSocket. (int port) 1 (InetAddress/getLoopbackAddress))] true)
    (catch IOException _ false)))

(defn free
  "Returns n ports of loopback that are free, with those 10000 above them, which members of a
  cluster use too. Most systems give none of them to who asks for any port."
  [n]
  (into []
        (comp (filter #(and (free? %) (free? (+ 10000 (long %))))) (take n))
        (repeatedly #(+ 10000 (rand-int 12000)))))

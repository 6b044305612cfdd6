(ns thrum.server.impl.health
  "What probes are answered: whether the process lives, and whether the server is to be sent
  requests."
  {:no-doc true})

(set! *warn-on-reflection* true)

(defn paths?
  "True if x says where probes ask: a map of :live and :ready, or one of them, to paths."
  [x]
  (and (map? x) (seq x)
       (every? #{:live :ready} (keys x))
       (every? #(and (string? %) (re-matches #"/[^?#\s]*" %)) (vals x))))

(defn- word
  [status text]
  {:status status
   :headers {"Content-Type" "text/plain; charset=utf-8", "Cache-Control" "no-store"}
   :body text})

(defn answer
  "Returns the response to a probe, nil for any other request. running?: whether the server is
  neither draining nor stopped."
  [{:keys [live ready]} {:keys [request-method uri]} running?]
  (when (or (= :get request-method) (= :head request-method))
    (cond
      (= live uri) (word 200 "ok")
      (not= ready uri) nil
      running? (word 200 "ok")
      :else (word 503 "draining"))))

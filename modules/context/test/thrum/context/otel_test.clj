(ns thrum.context.otel-test
  "Spans through random programs of tasks, and around requests."
  (:require
   [clojure.core.async :as async]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.async :as a]
   [thrum.context.otel :as otel]
   [thrum.core :as t]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.locale :as locale])
  (:import
   (io.opentelemetry.api.trace Span SpanKind StatusCode Tracer)
   (io.opentelemetry.api.trace.propagation W3CTraceContextPropagator)
   (io.opentelemetry.context Context)
   (io.opentelemetry.context.propagation TextMapGetter TextMapPropagator)
   (io.opentelemetry.sdk.testing.exporter InMemorySpanExporter)
   (io.opentelemetry.sdk.trace SdkTracerProvider)
   (io.opentelemetry.sdk.trace.data SpanData)
   (io.opentelemetry.sdk.trace.export SimpleSpanProcessor)
   (java.util SplittableRandom)
   (java.util.concurrent Callable ExecutorService Executors)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private ^:dynamic ^Tracer *tracer* nil)

(defn- spans-of
  "Returns the spans that f makes."
  [f]
  (let [exporter (InMemorySpanExporter/create)]
    (with-open [provider (-> (SdkTracerProvider/builder)
                             (.addSpanProcessor (SimpleSpanProcessor/create exporter))
                             (.build))]
      (binding [*tracer* (.get provider "test")] (f))
      (vec (.getFinishedSpanItems exporter)))))

;; Random programs: {:id n, :kind how the children are run, :children [program ...]}

(def ^:private kinds
  [:here :pmapv :upmap :all :fork :future :via :submit :pool :retry :abandon :pipeline :upipeline
   :pmap->chan :handler])

(defn- draw ^long [^SplittableRandom random n] (.nextInt random (int n)))

(defn- program [random ids depth]
  {:id (str (vswap! ids inc))
   :kind (nth kinds (draw random (count kinds)))
   :children (when (pos? (long depth))
               (vec (repeatedly (draw random 4) #(program random ids (dec (long depth))))))})

(defn- request-of
  "Returns the name of the span of the request that runs a program."
  [{:keys [id]}]
  (str "GET request-" id))

(defn- parents-by-id
  "Returns by id of a program the id of its parent, of those that run."
  [parent {:keys [id kind children]}]
  (into {id parent}
        (mapcat #(if (= :handler kind)
                   (assoc (parents-by-id (request-of %) %) (request-of %) id)
                   (parents-by-id id %)))
        (if (= :pool kind) (take 1 children) children)))

(defn- programs
  "Returns random programs with at least n spans."
  [random n]
  (let [ids (volatile! 0)]
    (loop [all [], spans 0]
      (if (< spans (long n))
        (let [more (program random ids 4)]
          (recur (conj all more) (+ spans (count (parents-by-id nil more)))))
        all))))

(declare run)

(defn- drain! [out] (while (some? (a/<!! out))))

(defn- through! [pipeline children]
  (let [out (async/chan 8)]
    (pipeline 2 out (async/to-chan! children))
    (drain! out)))

(defn- request!
  "Runs a program in an async handler, which answers from another thread."
  [child]
  (let [answered (promise)
        handler (fn [_ respond raise]
                  (t/future
                    (try
                      (run child)
                      (respond {:status 200, :thrum/route (subs (request-of child) 4)})
                      (catch Throwable t (raise t)))))]
    ((otel/handler handler {:tracer *tracer*})
     {:request-method :get, :uri "/"}
     #(deliver answered %)
     #(deliver answered %))
    (when-not (map? (deref answered 60000 nil)) (throw (ex-info "no answer" {})))))

(defn- run-children [kind ^ExecutorService pool children]
  (case kind
    (:here) (run! run children)
    :pmapv (t/pmapv 2 run children)
    :upmap (dorun (t/upmap 2 run children))
    :all (t/all-call (mapv (fn [child] #(run child)) children))
    :fork (t/with-scope [s] (run! #(t/fork s (run %)) children))
    :future (run! deref (mapv #(t/future (run %)) children))
    :via (t/with-executor [e] (run! #(t/future-via [e] (run %)) children))
    :submit (t/with-executor [e]
              (run! #(.submit ^ExecutorService e ^Callable (fn [] (run %))) children))
    :pool (run! (fn [child] @(t/future-via [pool] (run child))) (take 1 children))
    :retry (run! #(t/retry {} (run %)) children)
    :pipeline (through! #(a/pipeline-fn %1 %2 run %3) children)
    :upipeline (through! #(a/upipeline %1 %2 (map run) %3) children)
    :pmap->chan (drain! (a/pmap->chan 2 run children))
    :handler (run! request! children)
    :abandon (run! #(t/abandon-on-interrupt (fn []) (run %)) children)))

(def ^:private ^:dynamic *pool* nil)

(defn- run [{:keys [id kind children]}]
  (otel/call-in-span id {:tracer *tracer*} (fn [_] (run-children kind *pool* children)))
  id)

(defn- parents-seen [spans]
  (let [names (into {} (map (juxt #(.getSpanId ^SpanData %) #(.getName ^SpanData %))) spans)]
    (into {} (map (juxt #(.getName ^SpanData %) #(names (.getParentSpanId ^SpanData %)))) spans)))

(deftest every-parent-is-right-and-nothing-is-left
  (let [seed (System/nanoTime), all (programs (SplittableRandom. seed) 10000)
        left (atom #{})]
    (with-open [pool (Executors/newCachedThreadPool)]
      (let [spans (spans-of #(binding [*pool* pool, t/*wrap* otel/wrap] (run! run all)))]
        (is (<= 10000 (count spans)))
        (is (= (into {} (mapcat #(parents-by-id nil %)) all) (parents-seen spans))
            (str "seed " seed)))
      (run! #(.get (.submit pool ^Callable (fn [] (swap! left conj (Context/current)) %)))
            (range 20)))
    (is (= #{(Context/root)} (conj @left (Context/current))))))

(deftest an-attempt-has-a-span-where-it-is-asked-for
  (let [attempts (atom 0)
        attempt (fn [_] (when (< (long (swap! attempts inc)) 3) (throw (ex-info "not yet" {}))))
        spans (spans-of
                #(otel/call-in-span "all" {:tracer *tracer*}
                   (fn [_]
                     (t/retry {:schedule (t/constant 0)}
                       (otel/call-in-span "attempt" {:tracer *tracer*} attempt)))))
        status (fn [span] (.getStatusCode (.getStatus ^SpanData span)))]
    (is (= [StatusCode/ERROR StatusCode/ERROR StatusCode/UNSET StatusCode/UNSET]
           (map status spans)))
    (is (= {"all" nil, "attempt" "all"} (parents-seen spans)))))

(deftest without-the-wrap-a-span-has-no-parent
  (let [spans (spans-of (fn []
                          (otel/call-in-span "a" {:tracer *tracer*}
                            (fn [_]
                              @(t/future
                                 (otel/call-in-span "b" {:tracer *tracer*} (constantly nil)))))))]
    (is (= {"a" nil, "b" nil} (parents-seen spans)))))

;; Requests

(defn- request-span ^SpanData [handler request]
  (first
    (spans-of
      #(try
         ((otel/handler handler
                        {:tracer *tracer*, :propagator (W3CTraceContextPropagator/getInstance)})
          request)
         (catch Exception _)))))

(deftest misuse-is-answered-at-the-call
  (doseq [f [#(otel/call-in-span "a" {:trace 1} identity)
             #(otel/call-in-span "a" {:kind :server} identity)
             #(otel/call-in-span :a {} identity)
             #(otel/call-in-span "a" {} nil)
             #(otel/handler nil)
             #(otel/handler identity {:trace 1})
             #(otel/handler identity {:propagator 1})]]
    (is (= :thrum/invalid (try (f) (catch Exception e (t/error-type e)))))))

(deftest a-request-has-a-span
  (let [span (request-span (constantly {:status 200, :thrum/route "/orders/:id"})
                           {:request-method :get, :uri "/orders/7"})]
    (is (= "GET /orders/:id" (.getName span)))
    (is (= SpanKind/SERVER (.getKind span)))
    (is (= StatusCode/UNSET (.getStatusCode (.getStatus span))))
    (is (= {"http.request.method" "GET", "url.path" "/orders/7", "http.route" "/orders/:id"
            "http.response.status_code" 200}
           (into {} (map (fn [[k v]] [(str k) v])) (.asMap (.getAttributes span))))))
  (is (= "POST" (.getName (request-span (constantly {:status 204}) {:request-method :post})))))

(deftest a-request-that-fails-says-so
  (doseq [handler [(constantly {:status 503}) (fn [_] (throw (ex-info "no" {})))]]
    (is (= StatusCode/ERROR
           (.getStatusCode (.getStatus (request-span handler {:request-method :get})))))))

(defn- async-span ^SpanData [handler]
  (first
    (spans-of
      #(try
         ((otel/handler handler {:tracer *tracer*}) {:request-method :get} identity identity)
         (catch Exception _)))))

(deftest an-async-request-has-a-span-that-ends-with-its-answer
  (let [current (atom nil)
        span (async-span (fn [_ respond _]
                           (reset! current (.getSpanId (.getSpanContext (Span/current))))
                           (respond {:status 503, :thrum/route "/a"})))]
    (is (= ["GET /a" StatusCode/ERROR @current]
           [(.getName span) (.getStatusCode (.getStatus span)) (.getSpanId span)])))
  (doseq [handler [(fn [_ _ raise] (raise (ex-info "no" {})))
                   (fn [_ _ _] (throw (ex-info "no" {})))]]
    (let [span (async-span handler)]
      (is (= [StatusCode/ERROR 1]
             [(.getStatusCode (.getStatus span)) (count (.getEvents span))])))))

(deftest a-throwable-that-cannot-be-read-is-handed-on-and-ends-the-span
  (let [failure (proxy [RuntimeException] [] (getMessage [] (throw (Error. "No message"))))
        handed-on (atom nil)
        fail! (fn [handler & args]
                (spans-of #(reset! handed-on
                                   (try
                                     (apply (otel/handler handler {:tracer *tracer*})
                                       {:request-method :get}
                                       args)
                                     (catch Throwable t t)))))]
    (is (= [StatusCode/ERROR]
           (map #(.getStatusCode (.getStatus ^SpanData %)) (fail! (fn [_] (throw failure))))))
    (is (true? (identical? failure @handed-on)))
    (is (= 1 (count (fail! (fn [_ _ raise] (raise failure)) identity identity))))
    (is (true? (identical? failure @handed-on)))))

(deftest a-response-whose-status-is-no-number-reaches-the-server
  (doseq [status ["200" nil :ok]]
    (let [response {:status status}, responded (atom nil)
          serve #((otel/handler (fn [_ respond _] (respond response)) {:tracer *tracer*})
                  {:request-method :get}
                  (partial reset! responded)
                  identity)]
      (is (= 1 (count (spans-of serve))))
      (is (= response @responded)))))

(deftest the-clients-span-is-the-parent
  (let [trace "0af7651916cd43dd8448eb211c80319c"
        span (request-span (constantly {:status 200})
                           {:request-method :get
                            :headers {"traceparent" (str "00-" trace "-b7ad6b7169203331-01")}})]
    (is (= [trace "b7ad6b7169203331"] [(.getTraceId span) (.getParentSpanId span)]))))

(defn- reading
  "Returns a propagator that extracts nothing, and calls f with the getter and the request."
  ^TextMapPropagator [f]
  (reify
    TextMapPropagator
    (fields [_] [])
    (inject [_ _ _ _])
    (extract [_ context request getter]
      (f getter request)
      context)))

(defn- read-of
  "Returns [what f reads of the request's headers, the name of its span]."
  [f request]
  (let [seen (promise), propagator (reading #(deliver seen (f %1 %2)))
        span (first
               (spans-of
                 #((otel/handler (constantly {:status 200})
                                 {:tracer *tracer*, :propagator propagator})
                   request)))]
    [@seen (.getName ^SpanData span)]))

(deftest names-are-alike-in-every-locale
  (is (= ["7" "OPTIONS"]
         (locale/in-turkish
           (fn []
             (read-of #(TextMapGetter/.get %1 %2 "X-B3-TraceId")
                      {:request-method :options, :headers {"x-b3-traceid" "7"}}))))))

(deftest a-request-without-headers-has-no-keys
  (doseq [request [{:request-method :get} {:request-method :get, :headers {}}]]
    (is (= [[] "GET"] (read-of #(vec (TextMapGetter/.keys %1 %2)) request)))
    (is (some? (first (read-of #(TextMapGetter/.keys %1 %2) request))))))

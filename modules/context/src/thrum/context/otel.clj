(ns thrum.context.otel
  "OpenTelemetry's context in every task, and a span for each request. opentelemetry-api is to be on
  the class path."
  (:require
   [clojure.string :as str])
  (:import
   (io.opentelemetry.api GlobalOpenTelemetry)
   (io.opentelemetry.api.trace Span SpanKind StatusCode Tracer)
   (io.opentelemetry.context Context)
   (io.opentelemetry.context.propagation TextMapGetter TextMapPropagator)))

(set! *warn-on-reflection* true)

(defn- in-context
  "Returns the value of the thunk, called with the context as the current one."
  [^Context context thunk]
  (with-open [_ (.makeCurrent context)]
    (thunk)))

(defn wrap
  "Returns a thunk that runs the given one in the context (the current span, baggage) of the calling
  thread as it is now. For thrum.core/*wrap*, or :wrap:

      (alter-var-root #'t/*wrap* (constantly otel/wrap))"
  [thunk]
  (let [here (Context/current)]
    (fn [] (in-context here thunk))))

(defn- global-tracer ^Tracer []
  (.getTracer (GlobalOpenTelemetry/get) "thrum"))

(defn- failed! [^Span span ^Throwable t]
  (.setStatus span StatusCode/ERROR)
  (.recordException span t))

(defn call-in-span
  "Returns the value of (f span), called in a new span of that name, which ends with it. What f
  throws is recorded. options: :tracer - default the global one's, named thrum; :kind - a SpanKind;
  :parent - a Context, default the current one.

      (retry {:attempts 3} (otel/call-in-span \"attempt\" {} (fn [_] (query ...))))"
  [^String span-name {:keys [^Tracer tracer kind parent]} f]
  (let [span (-> (or tracer (global-tracer))
                 (.spanBuilder span-name)
                 (.setParent (or parent (Context/current)))
                 (.setSpanKind (or kind SpanKind/INTERNAL))
                 (.startSpan))]
    (try
      (in-context (.with (Context/current) span) #(f span))
      (catch Throwable t (failed! span t) (throw t))
      (finally (.end span)))))

;; Requests

(def ^:private headers
  (reify
    TextMapGetter
    (keys [_ request] (keys (:headers request)))
    (get [_ request key] (get (:headers request) (str/lower-case key)))))

(defn- global-propagator ^TextMapPropagator []
  (.getTextMapPropagator (.getPropagators (GlobalOpenTelemetry/get))))

(defn- parent-of ^Context [^TextMapPropagator propagator request]
  (.extract propagator (Context/current) request headers))

(defn- method-of ^String [{:keys [request-method]}]
  (str/upper-case (name (or request-method :unknown))))

(defn- answered! [^Span span method {:keys [status] :as response}]
  (when-some [route (:thrum/route response)]
    (.updateName span (str method " " route))
    (.setAttribute span "http.route" (str route)))
  (when status
    (.setAttribute span "http.response.status_code" (long status))
    (when (<= 500 (long status)) (.setStatus span StatusCode/ERROR)))
  response)

(defn handler
  "Returns the Ring handler with a span around each request: named by its method, and by the route
  where the response has one as :thrum/route; of kind SERVER; with the status. Its parent is the
  client's span, if the headers name one. options: :tracer; :propagator - a TextMapPropagator;
  both default to the global ones. For handlers of one argument."
  ([handler] (thrum.context.otel/handler handler {}))
  ([handler {:keys [tracer propagator]}]
   (fn [request]
     (let [method (method-of request)
           propagator (or propagator (global-propagator))]
       (call-in-span method
                     {:tracer tracer, :kind SpanKind/SERVER, :parent (parent-of propagator request)}
                     (fn [^Span span]
                       (.setAttribute span "http.request.method" ^String method)
                       (.setAttribute span "url.path" (str (:uri request)))
                       (answered! span method (handler request))))))))

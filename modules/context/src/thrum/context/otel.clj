(ns thrum.context.otel
  "OpenTelemetry's context in every task, and a span for each request. opentelemetry-api is to be on
  the class path."
  (:require
   [thrum.spi.options :as options])
  (:import
   (io.opentelemetry.api GlobalOpenTelemetry)
   (io.opentelemetry.api.trace Span SpanKind StatusCode Tracer)
   (io.opentelemetry.context Context)
   (io.opentelemetry.context.propagation TextMapGetter TextMapPropagator)
   (java.util Locale)))

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

(defn- start-span ^Span [^String span-name {:keys [^Tracer tracer kind]} ^Context parent]
  (-> (or tracer (global-tracer))
      (.spanBuilder span-name)
      (.setParent parent)
      (.setSpanKind (or kind SpanKind/INTERNAL))
      (.startSpan)))

(defn- fail!
  "Ends the span with what was thrown. That may throw when it is asked for its message: it is left
  out then."
  [^Span span ^Throwable t]
  (try
    (.setStatus span StatusCode/ERROR)
    (.recordException span t)
    (catch Throwable _)
    (finally (.end span))))

(defn- within
  "Returns the value of (f span), called in the span as a child of parent. Ends it where f throws."
  [^Span span ^Context parent f]
  (try
    (in-context (.with parent span) #(f span))
    (catch Throwable t (fail! span t) (throw t))))

(def ^:private span-rows
  {:tracer {:check #(or (nil? %) (instance? Tracer %))
            :accepts "an OpenTelemetry Tracer, or nil"
            :default "the global one's, named thrum"
            :doc "makes the span"}
   :kind {:check #(or (nil? %) (instance? SpanKind %))
          :accepts "an OpenTelemetry SpanKind, or nil"
          :default "INTERNAL"
          :doc "the span's kind"}
   :parent {:check #(or (nil? %) (instance? Context %))
            :accepts "an OpenTelemetry Context, or nil"
            :default "the current one"
            :doc "has the span's parent"}})

(defn call-in-span
  "Returns the value of (f span), called in a new span of that name, which ends with it. What f
  throws is recorded.

      (retry {:attempts 3} (otel/call-in-span \"attempt\" {} (fn [_] (query ...))))

  Throws :thrum/invalid, and what f throws. Options:
    :tracer - makes the span (an OpenTelemetry Tracer, or nil; default the global one's, named
      thrum)
    :kind - the span's kind (an OpenTelemetry SpanKind, or nil; default INTERNAL)
    :parent - has the span's parent (an OpenTelemetry Context, or nil; default the current
      one)"
  [span-name options f]
  (let [span-name (options/instance String "the name of a span, a string" span-name)
        f (options/function f)
        {:keys [parent] :as options} (options/check span-rows (or options {}))
        parent (or parent (Context/current))
        span (start-span span-name options parent)
        value (within span parent f)]
    (.end span)
    value))

;; Requests

(def ^:private handler-rows
  {:tracer (:tracer span-rows)
   :propagator {:check #(or (nil? %) (instance? TextMapPropagator %))
                :accepts "an OpenTelemetry TextMapPropagator, or nil"
                :default "the global one"
                :doc "finds the client's span in the headers"}})

(def ^:private headers
  (reify
    TextMapGetter
    (keys [_ request] (or (keys (:headers request)) ()))
    (get [_ request key] (get (:headers request) (.toLowerCase ^String key Locale/ROOT)))))

(defn- global-propagator ^TextMapPropagator []
  (.getTextMapPropagator (.getPropagators (GlobalOpenTelemetry/get))))

(defn- parent-of ^Context [^TextMapPropagator propagator request]
  (.extract propagator (Context/current) request headers))

(defn- method-of ^String [{:keys [request-method]}]
  (.toUpperCase (name (or request-method :unknown)) Locale/ROOT))

(defn- begin!
  "Names the method and the path in a request's span."
  [^Span span ^String method request]
  (.setAttribute span "http.request.method" method)
  (.setAttribute span "url.path" (str (:uri request))))

(defn- answer!
  "Ends a request's span with its response, whose status is left out where it is no integer. Returns
  the response."
  [^Span span method {:keys [status] :as response}]
  (when-some [route (:thrum/route response)]
    (.updateName span (str method " " route))
    (.setAttribute span "http.route" (str route)))
  (when (int? status)
    (.setAttribute span "http.response.status_code" (long status))
    (when (<= 500 (long status)) (.setStatus span StatusCode/ERROR)))
  (.end span)
  response)

(defn handler
  "Returns the Ring handler, of one argument or of three, with a span around each request: named by
  its method, and by the route where the response has one as :thrum/route; of kind SERVER; with the
  status. Its parent is the client's span, if the headers name one. It ends with the response,
  before the body is sent. Throws :thrum/invalid.

  Options:
    :tracer - makes the span (an OpenTelemetry Tracer, or nil; default the global one's, named
      thrum)
    :propagator - finds the client's span in the headers (an OpenTelemetry TextMapPropagator,
      or nil; default the global one)"
  ([handler] (thrum.context.otel/handler handler {}))
  ([handler options]
   (let [handler (options/function handler)
         {:keys [tracer propagator]} (options/check handler-rows (or options {}))
         in-span (fn [request f]
                   (let [method (method-of request)
                         parent (parent-of (or propagator (global-propagator)) request)
                         span (start-span method {:tracer tracer, :kind SpanKind/SERVER} parent)]
                     (begin! span method request)
                     (within span parent #(f % method))))]
     (fn
       ([request]
        (in-span request (fn [span method] (answer! span method (handler request)))))
       ([request respond raise]
        (in-span request
                 (fn [span method]
                   (handler request
                            #(respond (answer! span method %))
                            #(do (fail! span %) (raise %))))))))))

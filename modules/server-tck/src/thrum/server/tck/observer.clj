(ns thrum.server.tck.observer
  "Chapter: the observer's events."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io StringWriter)))

(set! *warn-on-reflection* true)

(defn- trail
  "Returns [observer events]: the events in their order, as [name map]."
  []
  (let [events (atom [])]
    [(into {} (for [k [:start :end :shed :timeout :disconnect]] [k #(swap! events conj [k %])]))
     events]))

(defn- event
  "Returns the map of the first event of this name; fails when it does not come."
  [events k]
  (let [of-name (fn [] (some (fn [[name m]] (when (= k name) m)) @events))]
    (expect (scene/eventually of-name) (str k) (mapv first @events))))

(defn- observed [env handler options & parts]
  (let [[observer events] (trail)
        server (scene/serve env handler (assoc options :observer observer))]
    (apply scene/ask env server parts)
    events))

(defcase observer-hears-of-start-and-end "4.4"
  "The observer is called at a request's start, then at its end, once each."
  [env]
  (let [events (observed env scene/ok {} (wire/get "/seen"))]
    (event events :end)
    (expect= [[:start "/seen"] [:end "/seen"]]
             (mapv (fn [[k m]] [k (:uri (:request m))]) @events))))

(defcase observers-of-the-start-precede-the-handler "4.4"
  "The observer is called at a request's start before its handler is."
  [env]
  (let [[observer events] (trail)
        seen (promise)
        handler (fn [r] (deliver seen (mapv first @events)) (scene/ok r))]
    (scene/ask env (scene/serve env handler {:observer observer}) (wire/get "/"))
    (expect= [:start] (scene/within seen "a call of the handler"))))

(defcase end-tells-status-bytes-and-time "4.4"
  "At the end the observer gets the status, the bytes of the body and the nanoseconds."
  [env]
  (let [end (event (observed env (scene/answering {:status 201, :body "seven b"}) {} (wire/get "/"))
                   :end)]
    (expect= [201 7] [(:status end) (:bytes end)])
    (expect (pos-int? (:nanos end)) "nanoseconds" end)))

(defcase end-tells-what-was-thrown "4.4"
  "At the end of a failed request the observer gets what the handler threw, beside status 500."
  [env]
  (let [boom (ex-info "boom" {})
        end (event (observed env (fn [_] (throw boom)) {} (wire/get "/")) :end)]
    (expect= [500 true] [(:status end) (identical? boom (:throwable end))])))

(defcase end-tells-that-a-body-failed "4.4"
  "At the end of a request whose body failed half-way the observer gets the throwable."
  [env]
  (let [boom (ex-info "boom" {})
        handler
        (fn [_]
          {:status 200, :headers {}, :body (lazy-seq (cons "x" (lazy-seq (throw boom))))})
        end (event (observed env handler {} (wire/get "/")) :end)]
    (expect (identical? boom (:throwable end)) "what the body threw" end)))

(defcase observer-hears-of-shedding "4.4"
  "The observer is called when a request is shed, with the request."
  [env]
  (let [[observer events] (trail)
        {:keys [server]} (scene/waiting env {:max-concurrent 1, :observer observer})]
    (scene/ask env server (wire/get "/shed"))
    (expect= "/shed" (:uri (:request (event events :shed))))))

(defcase observer-hears-of-timeouts "4.5"
  "The observer is called when a request has reached its deadline."
  [env]
  (let [events
        (observed env (fn [_] (Thread/sleep 4000)) {:request-timeout-ms 100} (wire/get "/late"))]
    (expect= "/late" (:uri (:request (event events :timeout))))))

(defcase observers-exception-is-not-seen "4.4"
  "An observer that throws changes nothing for the client."
  [env]
  (let [boom (fn [_] (throw (ex-info "secret" {})))
        c (scene/client env (scene/serve env scene/ok {:observer {:start boom, :end boom}}))]
    (dotimes [_ 3]
      (expect= "ok" (:body (expect-status 200 (wire/ask! c (wire/get "/"))))))))

(defcase observers-exceptions-are-counted "4.4"
  "An observer's exceptions are counted."
  {:uses #{:status}}
  [env]
  (let [boom (fn [_] (throw (ex-info "secret" {})))
        server (scene/serve env scene/ok {:observer {:end boom}})]
    (dotimes [_ 2] (scene/ask env server (wire/get "/")))
    (expect (scene/eventually #(= 2 (:observer-errors (scene/tool env :status server))))
            "2 errors" (scene/tool env :status server))))

(defcase served-and-failed-are-counted "4.4"
  "The status counts what was served and what failed."
  {:uses #{:status}}
  [env]
  (let [server
        (scene/serve env (scene/routes {"/boom" (fn [_] (throw (ex-info "boom" {})))}) {})
        counts #(select-keys (scene/tool env :status server) [:served :failed :in-flight])]
    (scene/ask env server (wire/get "/"))
    (scene/ask env server (wire/get "/boom"))
    (expect (scene/eventually #(= {:served 2, :failed 1, :in-flight 0} (counts)))
            "2 served, 1 failed, 0 in flight"
            (counts))))

;; The access log

(defn- line-of
  "Returns [answer line] of what is sent to a server with these options, whose access log has that
  format."
  [env format options & parts]
  (let [out (StringWriter.)
        server (scene/serve
                 env
                 scene/ok
                 (assoc options :observer (scene/tool env :access-log out {:format format})))
        answer (apply scene/ask env server parts)]
    [answer (scene/eventually #(first (re-seq #".+(?=\n)" (str out))))]))

(defn- logged
  "Returns the line that the access log writes for these bytes; nil where the request is refused."
  [env & parts]
  (let [[answer line] (apply line-of env :common {} parts)]
    (when (= 200 (:status answer))
      (expect line "a line" :none))))

(defcase access-log-has-the-common-format "4.4"
  "The access log writes a line of the common format."
  {:uses #{:access-log}}
  [env]
  (let [line (logged env (wire/get "/path"))]
    (expect (re-matches #"127\.0\.0\.1 - - \[[^\]]+\] \"GET /path HTTP/1\.1\" 200 2"
                        (str line))
            "the common format"
            line)))

(defcase access-log-keeps-secrets "4.4"
  "The access log shows no query, no cookie and no Authorization."
  {:uses #{:access-log}}
  [env]
  (let [line (logged env
                     (wire/get "/path?token=secret"
                               "Cookie: s=secret"
                               "Authorization: Basic secret"))]
    (expect (and line (not (str/includes? line "secret"))) "no secret" line)))

(defcase access-log-cannot-be-forged "4.4"
  "Quotes and bytes that are not printable ASCII are escaped in the access log, where they are not
  refused."
  {:uses #{:access-log}}
  [env]
  (doseq [target ["/a\"b" "/a\\b" "/\u00e4"]]
    (let [line (logged env (wire/get target))]
      (expect (not (str/includes? (str line) (str target " "))) "an escaped line" line))))

(defcase access-log-may-be-combined "4.4"
  "In the combined format referer and agent follow, the seconds, and the request's id."
  {:uses #{:access-log}}
  [env]
  (let [text (wire/get "/path" "Referer: http://a.example/x?secret" "User-Agent: curl \"8\"")
        [_ line] (line-of env :combined {:request-id? true} text)
        [_ common & more :as fields]
        (re-matches #"(.*) \"(.*)\" \"(.*)\" (\d+\.\d{6}) (\S{4,})" (str line))]
    (expect fields "the combined format" line)
    (expect (re-matches #"127\.0\.0\.1 - - \[[^\]]+\] \"GET /path HTTP/1\.1\" 200 2" common)
            "the common format first"
            line)
    (expect= ["http://a.example/x" "curl \\x228\\x22"] (take 2 more))))

(defcase access-log-may-be-json "4.4"
  "In the format :json a line is an object, in which quotes are escaped."
  {:uses #{:access-log}}
  [env]
  (let [[_ line] (line-of env :json {} (wire/get "/path" "User-Agent: a\"b"))]
    (expect (every? #(str/includes? (str line) %)
                    ["\"uri\":\"/path\"" "\"status\":200" "\"bytes\":2"
                     "\"user_agent\":\"a\\u0022b\"" "\"seconds\":0."])
            "an object"
            line)))

(defcase refused-requests-are-logged "4.4"
  "A request that is refused before a handler sees it has a line in the access log, and an :end."
  {:uses #{:access-log}}
  [env]
  (doseq [[status request] [[413 (wire/post "/long" "too long")]
                            [400 "GET /two HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"]]]
    (let [[answer line] (line-of env :common {:max-body-bytes 5} request)]
      (expect= status (:status answer))
      (expect (str/includes? (str line) (str " " status " ")) (str "a line with " status) line))))

;; Ids

(defn- ids
  "Returns the ids of two requests on a server with these options, which send headers."
  [env options & headers]
  (let [seen (atom [])
        server
        (scene/serve env (fn [r] (swap! seen conj (:thrum/request-id r)) (scene/ok r)) options)]
    (dotimes [_ 2] (scene/ask env server (apply wire/get "/" headers)))
    @seen))

(defcase requests-have-ids "4.2"
  "With :request-id? each request has an id of its own; what a client that is not trusted sends is
  none."
  [env]
  (let [[a b] (ids env {:request-id? true} "X-Request-Id: forged")]
    (expect (and (string? a) (string? b) (not= a b) (not= "forged" a)) "two ids" [a b])))

(defcase trusted-proxies-give-ids "4.2"
  "The id that a trusted proxy gives is kept, where it is short and printable."
  [env]
  (let [options {:request-id? true, :trusted-proxies [:loopback]}]
    (expect= ["from-a-proxy" "from-a-proxy"]
             (ids env options "X-Request-Id: from-a-proxy" "X-Forwarded-For: 203.0.113.7"))
    (doseq [id ["a b" (str/join (repeat 129 "a"))]]
      (expect (not-any? #{id} (ids env options (str "X-Request-Id: " id))) "another id" id))))

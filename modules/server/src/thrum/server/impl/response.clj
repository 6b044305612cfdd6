(ns thrum.server.impl.response
  "Makes a Head, status and headers for the wire, of a handler's response map: checked, and without
  what a handler must not say about framing. Sends nothing."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.spi.http :as http]
   [thrum.spi :as spi])
  (:import
   (java.util ArrayList HashMap Map TreeMap)))

(set! *warn-on-reflection* true)

;; headers: name, value ... without Content-Length. length: what the handler said it is, or nil.
(deftype Head [^long status ^objects headers length charset])

(defn- garbage [message data]
  (ex-info message (assoc (update-vals data spi/datum) :type :thrum/response)))

(defn- check-status
  [status]
  (when-not (and (int? status) (<= 200 (long status) 599))
    (throw (garbage (str "A response's :status is an integer from 200 to 599, not "
                         (spi/text status))
                    {:status status})))
  (long status))

(defn- line-safe? [^String value]
  (and (neg? (.indexOf value 10)) (neg? (.indexOf value 13)) (neg? (.indexOf value 0))))

(defn- check-name
  [name]
  (when-not (and (string? name) (http/token? name))
    (throw (garbage (str "A header's name is a token, not " (spi/text name)) {:header name}))))

(defn- check-value
  [name value]
  (when-not (string? value)
    (throw (garbage (str "The header " name
                         " is a string, or a sequence of strings, not " (spi/text value))
                    {:header name, :value value})))
  (when-not (line-safe? value)
    (throw (garbage (str "The header " name " has a CR, LF or NUL in it") {:header name}))))

(defn- declared-length
  [^String value]
  (or (when (re-matches #"\d{1,18}" value) (parse-long value))
      (throw (garbage (str "Content-Length is a number, not " (spi/text value))
                      {:header "Content-Length", :value value}))))

(defn- charset-of [^String content-type]
  (if (or (neg? (.indexOf content-type ";")) (.endsWith content-type "; charset=utf-8"))
    "utf-8"
    (or (second (re-find #"(?i);\s*charset=\"?([^\s;\"]+)" content-type)) "utf-8")))

(def ^:private ^:const most-bytes
  "How long the headers of a response may be. Engines have bounds of their own, the tightest of 16
  KiB, and cut the connection there."
  16000)

(defprotocol ^:private HeadBuilder
  "Collects the headers of a response, one after the other."
  (add-field! [fields name value] "Adds a header. Throws :thrum/response for an invalid one.")
  (add-line! [fields name value] "The same for one that is valid, and is sent.")
  (built [fields] "Returns the Head."))

(def ^:private ^Map kinds
  "What a header of a response needs beside a check of its value, by its name in any case. :own: it
  says how the connection is used, which is the engine's matter: HTTP/2 forbids it, and an engine
  may act on it."
  (doto (TreeMap. String/CASE_INSENSITIVE_ORDER)
    (.putAll {"Content-Length" :length
              "Content-Type" :type
              "Upgrade" :upgrade
              "Connection" :connection
              "Transfer-Encoding" :own
              "Trailer" :own
              "TE" :own
              "Keep-Alive" :own
              "Proxy-Connection" :own})))

(def ^:private ^Map usual-kinds
  "The same by the spellings that most handlers use, and of other usual names: there the tree is not
  searched, nor the name checked."
  (let [names ["Content-Length" "Content-Type" "Connection" "Cache-Control" "Content-Encoding"
               "Content-Language" "Content-Disposition" "Date" "ETag" "Expires" "Last-Modified"
               "Location" "Set-Cookie" "Vary" "Strict-Transport-Security" "X-Content-Type-Options"
               "X-Frame-Options" "X-XSS-Protection" "Content-Security-Policy"
               "Access-Control-Allow-Origin"]]
    (HashMap. ^Map (into {}
                         (for [^String name names, spelling [name (str/lower-case name)]]
                           [spelling (.getOrDefault kinds name :other)])))))

(defn- kind-of
  "Returns what a header of this name needs. Throws where it is no token."
  [name]
  (or (when (string? name) (.get usual-kinds name))
      (do (check-name name)
          (.getOrDefault kinds name :other))))

(def ^:private ^:const upgrade-required 426)

;; A handler may ask for the connection's end, and say what to upgrade to where nothing else would
;; do.
(deftype Fields [^long status ^ArrayList fields ^:unsynchronized-mutable length
                 ^:unsynchronized-mutable charset ^:unsynchronized-mutable ^long size]
  HeadBuilder
  (add-field! [this name value]
    (let [kind (kind-of name)]
      (check-value name value)
      (case kind
        :other (add-line! this name value)
        :type (do (set! charset (charset-of value)) (add-line! this name value))
        :length (set! length (declared-length value))
        :connection (when (.equalsIgnoreCase "close" value) (add-line! this name value))
        :upgrade (when (= upgrade-required status) (add-line! this name value))
        :own nil)))
  (add-line! [_ name value]
    (let [^String name name, ^String value value]
      (set! size (+ size 4 (.length name) (.length value)))
      (when (< most-bytes size)
        (throw (garbage (str "A response's headers have at most " most-bytes " bytes")
                        {:header name})))
      (doto fields (.add name) (.add value))))
  (built [_] (Head. status (.toArray fields) length (or charset "utf-8"))))

(defn- add-header!
  "Adds the header; returns the fields."
  [fields name value]
  (if (and (not (string? value)) (or (nil? value) (sequential? value)))
    (run! #(add-field! fields name %) value)
    (add-field! fields name value))
  fields)

(defn head
  "Returns the Head of a response map. Throws :thrum/response for what no client could be sent: a
  status that is not a final one, header names that are not tokens, values that are not strings or
  have CR, LF or NUL in them."
  ^Head [response]
  (when-not (map? response)
    (throw (garbage (str "A response is a map, not "
                         (if (nil? response) "nil" (.getName (class response))))
                    {})))
  (let [status (check-status (:status response))
        headers (:headers response)
        fields (Fields. status (ArrayList. 16) nil nil 0)]
    (when-not (or (nil? headers) (map? headers))
      (throw (garbage (str "A response's :headers are a map, not a " (.getName (class headers)))
                      {})))
    (reduce-kv add-header! fields headers)
    (built fields)))

(defn with-header
  "Returns the head with one more header."
  ^Head [^Head head name value]
  (Head. (.-status head)
         (to-array (concat (.-headers head) [name value]))
         (.-length head)
         (.-charset head)))

(defn closing
  "Returns the head with Connection: close, once."
  ^Head [^Head head]
  (if (some #(and (string? %) (.equalsIgnoreCase "connection" ^String %))
            (take-nth 2 (.-headers head)))
    head
    (with-header head "Connection" "close")))

(defn bodiless?
  "True if a response to this request has no body, also where the handler gave one (RFC 9110, 6.4.1
  and 15.3.6)."
  [request-method ^long status]
  (or (identical? :head request-method) (= 204 status) (= 205 status) (= 304 status)))

(defn plain
  "Returns a response without any detail: the status, and its reason as text."
  [status & {:as headers}]
  (let [reason ({400 "bad request"
                 408 "request timeout"
                 413 "content too large"
                 426 "upgrade required"
                 431 "request header fields too large"
                 505 "http version not supported"
                 500 "internal server error"
                 501 "not implemented"
                 503 "service unavailable"
                 403 "forbidden"}
                status
                "error")]
    {:status status
     :headers (merge {"Content-Type" "text/plain; charset=utf-8"} headers)
     :body reason}))

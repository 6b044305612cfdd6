(ns thrum.server.impl.handshake
  "Which requests may become a websocket (RFC 6455, 4.2.1)."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.response :as response]
   [thrum.spi :as spi]))

(set! *warn-on-reflection* true)

(defn- header [request k]
  (get-in request [:headers k]))

(defn- listed
  "Returns the elements of a header that is a list."
  [request k]
  (map str/trim (some-> (header request k) (str/split #","))))

(defn- asks?
  "True if the request asks for a websocket of the version that there is (RFC 6455, 4.2.1)."
  [request]
  (and (.equalsIgnoreCase "websocket" (header request "upgrade"))
       (some #(.equalsIgnoreCase "upgrade" %) (listed request "connection"))
       (= "13" (header request "sec-websocket-version"))))

(defn- body? [{:keys [content-length] :as request}]
  (or (header request "transfer-encoding")
      (pos? (long (or content-length 0)))))

(defn- well-formed?
  "True if the request that asks for a websocket may: a GET of HTTP/1.1 without a body, with a
  key of 16 bytes in base64."
  [request]
  (and (= :get (:request-method request))
       (= "HTTP/1.1" (:protocol request))
       (re-matches #"[A-Za-z0-9+/]{22}==" (or (header request "sec-websocket-key") ""))
       (not (body? request))))

(defn- same-host? [^String origin request]
  (let [[_ authority] (re-matches #"(?i)https?://([^/?#]+)" origin)
        ^String host (header request "host")]
    (boolean (and authority host (.equalsIgnoreCase host ^String authority)))))

(defn- allowed? [origins origin request]
  (cond
    (or (nil? origin) (= :any origins)) true
    (nil? origins) (same-host? origin request)
    :else (boolean (some #(.equalsIgnoreCase ^String % ^String origin) origins))))

(defn refusal
  "Returns the response for a request that must not become a websocket, nil for one that may.
  origins: the option :ws-origins."
  [request origins]
  (cond (not (asks? request))
        (if (= "HTTP/1.1" (:protocol request))
          (response/plain 426 "Upgrade" "websocket" "Sec-WebSocket-Version" "13")
          (response/plain 400))
        (not (well-formed? request)) (response/plain 400 "Connection" "close")
        (not (allowed? origins (header request "origin") request)) (response/plain 403)
        :else nil))

(defn check-capable!
  "Throws :thrum/response where the server of these options has no websockets."
  [options]
  (when-not (contains? (:capabilities (meta options)) :websockets)
    (throw (ex-info (str "The engine " (:engine options) " has no websockets")
                    {:type :thrum/response, :lacks :websockets}))))

(defn check-protocol!
  "Throws :thrum/response where the handler has chosen a subprotocol that the client does not offer:
  the client would have to hang up."
  [request protocol]
  (when-not (or (nil? protocol) (some #{protocol} (listed request "sec-websocket-protocol")))
    (throw (ex-info (str "The client does not offer the subprotocol " (spi/text protocol))
                    {:type :thrum/response
                     :protocol protocol
                     :offered (header request "sec-websocket-protocol")}))))

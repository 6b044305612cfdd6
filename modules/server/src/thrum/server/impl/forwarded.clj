(ns thrum.server.impl.forwarded
  "What trusted proxies say of a request: who the client is, and what it asked for (RFC 7239, or
  X-Forwarded-*).

  Each proxy appends its client's address. Everything before it may be forged. So the hops are read
  from the last one back, as long as the peer that wrote them is trusted. The first address that is
  not a trusted peer's is the client's."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.address :as address]
   [thrum.server.impl.refusal :as refusal]))

(set! *warn-on-reflection* true)

;; Hops, the last one first: maps of :for, :proto, :host and :port as they were written, each may be
;; missing

(defn- last-first [value]
  (when value (rseq (mapv str/trim (str/split value #"," -1)))))

(defn- nth-or-last [values i]
  (when (seq values) (nth values (min (long i) (dec (count values))))))

(defn- x-hops
  "Returns the hops of X-Forwarded-*. Where others have fewer values than X-Forwarded-For, their
  first one holds for the rest."
  [headers]
  (let [[fors protos hosts ports] (map #(last-first (get headers %))
                                       ["x-forwarded-for" "x-forwarded-proto" "x-forwarded-host"
                                        "x-forwarded-port"])]
    (when (or fors protos hosts ports)
      (for [i (range (max 1 (count fors)))]
        {:for (nth fors i nil)
         :proto (nth-or-last protos i)
         :host (nth-or-last hosts i)
         :port (nth-or-last ports i)}))))

(def ^:private pair
  "A name and its value, and what follows. Values in quotes have no backslash."
  #"[ \t]*([A-Za-z]+)=(?:\"([^\"\\]*)\"|([^\",;\s]+))[ \t]*([;,]|\z)")

(defn- rfc-hops
  "Returns the hops of Forwarded, or :malformed where a part of it is."
  [headers]
  (when-some [value (get headers "forwarded")]
    (let [matcher (re-matcher pair value), end (count value)]
      (loop [from 0, hop {}, hops ()]
        (.region matcher from end)
        (if (.lookingAt matcher)
          (let [[_ name quoted token sign] (re-groups matcher)
                hop (assoc hop (keyword (str/lower-case name)) (or quoted token))]
            (case sign
              ";" (recur (.end matcher) hop hops)
              "," (recur (.end matcher) {} (conj hops hop))
              (conj hops hop)))
          :malformed)))))

(defn- node
  "Returns the address of a node, which may have a port; nil for what is none, as unknown and
  _hidden."
  [s]
  (when s
    (if-some [[_ v6] (re-matches #"\[([^\]]*)\](?::[^:]*)?" s)]
      (when (str/includes? v6 ":") (address/address v6))
      (address/address (if-some [[_ v4] (re-matches #"([\d.]+):[^:]*" s)] v4 s)))))

(defn- client
  "Returns [address hop]: who the client is, and the hop that speaks of it."
  [trusted peer hops]
  (loop [address peer, hop nil, hops hops]
    (if (and (seq hops) (address/within? trusted address))
      (if-some [before (node (:for (first hops)))]
        (recur before (first hops) (next hops))
        [address (first hops)])
      [address hop])))

;; What the request was

(defn- scheme [{:keys [proto]}]
  (when proto ({"http" :http, "https" :https} (str/lower-case proto))))

(defn- port-number [s]
  (when (and s (re-matches #"\d{1,5}" s))
    (let [n (long (parse-long s))]
      (when (<= 1 n 65535) n))))

(defn- authority
  "Returns [authority name port] of a host, nil for what is none."
  [host]
  (when host
    (when-some [[all name port]
                (re-matches #"([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?" host)]
      [all name (port-number port)])))

(defn- as-asked
  "Returns the request with the scheme, host and port that the hop speaks of."
  [{:keys [headers], :as request} hop]
  (let [scheme (scheme hop)
        host (authority (:host hop))
        [_ _ port] (or host (authority (get headers "host")))
        given (port-number (:port hop))]
    (cond-> request
      scheme (assoc :scheme scheme)
      host (assoc :server-name (nth host 1) :headers (assoc headers "host" (nth host 0)))
      (or scheme host given)
      (assoc :server-port (or given port (if (= :https (or scheme (:scheme request))) 443 80))))))

(defn reader
  "Returns a function from a request as it arrived to the request as its client made it. trusted:
  blocks of addresses; kind: :x-forwarded or :forwarded, which headers are read: the other kind may
  come from an untrusted writer. The function throws :thrum/refused where a trusted peer passes on a
  Forwarded that is malformed: what the client wrote could hide who wrote it."
  [trusted kind]
  (let [hops-of ({:x-forwarded x-hops, :forwarded rfc-hops} kind)]
    (fn [{:keys [headers remote-addr] :as request}]
      (let [hops (hops-of headers)
            peer (when hops (address/peer remote-addr))]
        (if (and peer (address/within? trusted peer))
          (let [_ (when (= :malformed hops) (refusal/refuse! 400 "Forwarded is malformed"))
                [address hop] (client trusted peer hops)]
            (as-asked (assoc request :remote-addr (address/text address)) hop))
          request)))))

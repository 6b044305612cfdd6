(ns thrum.server.tck.proxies
  "Chapter: what a proxy in front may say of the client."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defn- seen
  "Returns what the handler gets of the request, with these options and headers."
  [env options & headers]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen r) (scene/ok r)) options)]
    (expect-status 200 (scene/ask env server (apply wire/get "/" headers)))
    @seen))

(def ^:private trusting {:trusted-proxies [:loopback "10.0.0.0/8" "2001:db8::/32"]})

(defcase trusted-proxies-tell-the-client "4.2"
  "Behind a trusted proxy the request has the client's address, scheme, host and port."
  [env]
  (let [request (seen env
                      trusting
                      "X-Forwarded-For: 203.0.113.7"
                      "X-Forwarded-Proto: https"
                      "X-Forwarded-Host: shop.example:8443")]
    (expect= ["203.0.113.7" :https "shop.example" 8443]
             (map request [:remote-addr :scheme :server-name :server-port]))
    (expect= "shop.example:8443" (get-in request [:headers "host"]))))

(defcase observers-see-the-client "4.2"
  "The observer sees the request as the handler does."
  [env]
  (let [end (promise)]
    (seen env
          (assoc trusting :observer {:end #(deliver end (:request %))})
          "X-Forwarded-For: 203.0.113.7")
    (expect= "203.0.113.7" (:remote-addr (scene/within end "an end")))))

(defcase untrusted-peers-tell-nothing "4.2"
  "What a peer says that is not trusted is not believed."
  [env]
  (let [request (seen env
                      {:trusted-proxies ["10.0.0.0/8"]}
                      "X-Forwarded-For: 203.0.113.7"
                      "X-Forwarded-Proto: https")]
    (expect= ["127.0.0.1" :http] (map request [:remote-addr :scheme]))))

(defcase hops-before-an-untrusted-one-are-not-believed "4.2"
  "The client is the last address that is no trusted proxy's, over several header lines."
  [env]
  (doseq [headers [["X-Forwarded-For: 198.51.100.1, 203.0.113.7, 10.1.2.3"]
                   ["X-Forwarded-For: 198.51.100.1" "X-Forwarded-For: 203.0.113.7:4711"
                    "X-Forwarded-For: [2001:db8::1]:80"]]]
    (expect= "203.0.113.7" (:remote-addr (apply seen env trusting headers)) headers)))

(defcase hops-without-an-address-end-the-walk "4.2"
  "Where a trusted proxy names no address, its own stands."
  [env]
  (doseq [hop ["unknown" "_hidden" "" "localhost" "203.0.113.256" "203.0.113.7, 2130706433"
               "203.0.113.7," "1:2:3"]]
    (expect= "127.0.0.1" (:remote-addr (seen env trusting (str "X-Forwarded-For: " hop))) hop)))

(defcase forwarded-is-read-where-it-is-asked-for "4.2"
  "With :forwarded-headers :forwarded that header is read, and nothing else; without, it is not
  read."
  [env]
  (let [client "for=\"[2001:dead::7]:4711\";proto=https;host=shop.example;by=_p"
        headers [(str "Forwarded: for=198.51.100.1, " client ", For=10.1.2.3")
                 "X-Forwarded-For: 203.0.113.7"]
        addresses (fn [options] (:remote-addr (apply seen env options headers)))]
    (expect= ["2001:dead:0:0:0:0:0:7" "203.0.113.7"]
             [(addresses (assoc trusting :forwarded-headers :forwarded)) (addresses trusting)])))

(defcase malformed-forwarded-is-refused "4.2"
  "A Forwarded header from a trusted proxy that is malformed anywhere is a 400; another's is not
  read."
  [env]
  (doseq [value ["for=\"203.0.113.7" "for=203.0.113.7 proto=https" "for=\"a\\\", for=203.0.113.7"
                 "\", for=203.0.113.7"]
          :let [ask #(scene/ask env
                                (scene/serve env scene/ok (assoc % :forwarded-headers :forwarded))
                                (wire/get "/" (str "Forwarded: " value)))]]
    (expect-status 400 (ask trusting))
    (expect-status 200 (ask {:trusted-proxies ["10.0.0.0/8"]}))))

(defcase trusted-proxies-are-addresses "4.10"
  "A trusted proxy that is no address throws at start: no name is looked up."
  [env]
  (doseq [wrong [["proxy.example"] ["10.0.0.0/33"] [:everybody] "10.0.0.1"]]
    (expect (nil? (scene/started env {:trusted-proxies wrong})) "an exception" wrong)))

(ns thrum.server.forwarded-test
  "A trusted proxy alone says who the client is."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [clojure.test.check :as check]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.server.impl.address :as address]
   [thrum.server.impl.forwarded :as forwarded]
   [thrum.server.impl.request-id :as request-id])
  (:import
   (java.net InetAddress)))

(set! *warn-on-reflection* true)

(defmacro ^:private holds [n property]
  `(let [result# (check/quick-check ~n ~property)]
     (is (:pass? result#) (pr-str (:shrunk result#)))))

(def ^:private proxies ["10.0.0.0/8" "2001:db8::/32"])

(defn- read-as
  [kind headers & [peer]]
  ((forwarded/reader (address/blocks proxies) kind)
   {:remote-addr (or peer "10.0.0.1")
    :scheme :http
    :server-name "localhost"
    :server-port 80
    :headers headers}))

(defn- client-of
  "Returns whom the request is taken to come from, or the status that it is refused with."
  [kind headers]
  (try
    (:remote-addr (read-as kind headers))
    (catch clojure.lang.ExceptionInfo e (:status (ex-data e)))))

(deftest an-id-is-taken-from-a-trusted-peer-alone
  (let [give (request-id/giver (address/blocks proxies))
        id-from #(:thrum/request-id (give {:remote-addr %, :headers {"x-request-id" "given"}}))]
    (is (= "given" (id-from "10.0.0.1")))
    (is (not= "given" (id-from "203.0.113.7")))))

(deftest an-address-in-brackets-is-one-of-ipv6
  (is (= "2001:dead:0:0:0:0:0:7" (client-of :x-forwarded {"x-forwarded-for" "[2001:dead::7]"})))
  (is (= "10.0.0.1" (client-of :x-forwarded {"x-forwarded-for" "[203.0.113.7]"}))))

;; Addresses

(def ^:private address-bytes
  (gen/one-of [(gen/vector gen/byte 4) (gen/vector gen/byte 16)]))

(defn- address-of ^InetAddress [bs]
  (InetAddress/getByAddress (byte-array bs)))

(deftest an-address-is-what-its-text-says
  (holds 300 (prop/for-all [bs address-bytes]
               (let [a (address-of bs)]
                 (= a (address/address (address/text a)))))))

(deftest only-literals-are-addresses
  (doseq [text ["cafe" "1.2.3" "01.2.3.4" "1.2.3.256" "1.2.3.4.5" "2130706433" "0x7f.1.1.1" "" ":"
                ":::" "fe80::1%eth0" "localhost" "[::1]" " 1.2.3.4"]]
    (is (nil? (address/address text)) text)))

(deftest a-v4-address-in-v6-is-v4
  (is (= "10.0.0.7" (address/text (address/address "::ffff:10.0.0.7")))))

(defn- number-of [bs]
  (reduce (fn [n b] (+ (* 256N n) (bit-and 255 (int b)))) 0N bs))

(deftest a-block-holds-what-has-its-first-bits
  (holds
    300
    (prop/for-all
      [[bs others bits]
       (gen/bind
         (gen/elements [4 16])
         #(gen/tuple (gen/vector gen/byte %) (gen/vector gen/byte %) (gen/choose 0 (* 8 (long %)))))
       same gen/boolean]
      (let [others (if same (into (vec (take 3 bs)) (drop 3 others)) others)
            cut #(quot (number-of %) (.pow (biginteger 2) (int (- (* 8 (count bs)) (long bits)))))]
        (= (= (cut bs) (cut others))
           (address/within? (address/blocks [(str (address/text (address-of bs)) "/" bits)])
                            (address-of others)))))))

(deftest what-is-no-block-is-told
  (doseq [wrong [["10.0.0.0/33"] ["::/129"] ["10.0.0.0/"] ["proxy"] [:everybody] [nil] "10.0.0.1"
                 5]]
    (is (nil? (address/blocks wrong)) (pr-str wrong))))

(deftest the-blocks-with-a-name-are-those-of-the-rfcs
  (doseq [[block inside outside]
          [[:loopback ["127.0.0.1" "127.255.255.255" "::1"] ["126.255.255.255" "128.0.0.1" "::2"]]
           [:private ["10.0.0.1" "172.16.0.1" "172.31.255.255" "192.168.1.1" "fc00::1" "fdff::1"]
            ["11.0.0.1" "172.15.255.255" "172.32.0.1" "192.169.0.1" "fbff::1" "fe00::1"]]]
          [addresses in?] [[inside true] [outside false]]
          a addresses]
    (is (= in? (address/within? (address/blocks [block]) (address/address a))) [block a])))

(deftest addresses-of-one-form-are-in-no-block-of-the-other
  (is (not (address/within? (address/blocks ["10.0.0.0/8"]) (address/address "a00::1"))))
  (is (not (address/within? (address/blocks ["a00::/64"]) (address/address "10.0.0.1"))))
  (is (not (address/within? (address/blocks ["::/0"]) (address/address "10.0.0.1")))))

;; Hops

(def ^:private garbage
  (gen/one-of [gen/string-ascii
               (gen/elements ["" "," "\"" ";" "for=" "for=\"" "6.6.6.6" "for=6.6.6.6" "unknown" "_x"
                              "10.0.0.9"])]))

(def ^:private garbled
  (gen/fmap str/join (gen/vector garbage 0 6)))

(def ^:private trusted-text
  (gen/elements ["10.0.0.2" "10.9.9.9:4711" "2001:db8::5" "[2001:db8::5]" "[2001:db8::5]:80"]))

(deftest nothing-before-the-client-changes-who-it-is
  (holds 500
         (prop/for-all
           [made-up garbled behind (gen/vector trusted-text 0 4)]
           (= "203.0.113.7"
              (:remote-addr (read-as :x-forwarded
                                     {"x-forwarded-for"
                                      (str/join ", " (concat [made-up "203.0.113.7"] behind))}))))))

(deftest made-up-hops-of-forwarded-name-the-client-or-are-refused
  (holds 500 (prop/for-all [made-up garbled, behind (gen/vector trusted-text 0 4)]
               (let [hops (map #(str "for=\"" % "\"") (cons "203.0.113.7" behind))
                     found (client-of :forwarded {"forwarded" (str/join "," (cons made-up hops))})]
                 (contains? #{"203.0.113.7" 400} found)))))

(deftest a-host-whose-port-is-none-has-the-schemes
  (doseq [host ["shop.example:0" "shop.example:65536"]]
    (is (= 443 (:server-port (read-as :x-forwarded {"x-forwarded-proto" "https"
                                                    "x-forwarded-host" host}))))))

(deftest whatever-is-sent-a-request-comes-of-it-or-a-refusal
  (holds
    500
    (prop/for-all
      [values (gen/vector garbled 5) kind (gen/elements [:x-forwarded :forwarded])]
      (let [headers (zipmap ["forwarded" "x-forwarded-for" "x-forwarded-proto" "x-forwarded-host"
                             "x-forwarded-port"]
                            values)
            status (client-of kind headers)
            {:keys [remote-addr scheme server-port]}
            (when-not (= 400 status) (read-as kind headers))]
        (if (= 400 status)
          (= :forwarded kind)
          (and (address/address remote-addr) (#{:http :https} scheme) (<= 1 server-port 65535)))))))

(deftest a-long-header-is-read-in-time-and-space
  (doseq [value [(str/join (repeat 20000 "\"")) (str "for=\"" (str/join (repeat 20000 "\\a")))
                 (str/join (repeat 8000 "for=a,"))]]
    (is (contains? #{"10.0.0.1" 400} (client-of :forwarded {"forwarded" value})))))

(deftest scheme-and-host-are-those-of-the-clients-hop
  (is (= [:https "a.example" 443]
         (map (read-as :x-forwarded
                       {"x-forwarded-for" "203.0.113.7, 10.0.0.2"
                        "x-forwarded-proto" "https, http"
                        "x-forwarded-host" "a.example, b.example"})
              [:scheme :server-name :server-port])))
  (is (= [:https 8443]
         (map (read-as :x-forwarded {"x-forwarded-proto" "https", "x-forwarded-port" "8443"})
              [:scheme :server-port])))
  (is (= ["a.example" 9443]
         (map (read-as :x-forwarded
                       {"x-forwarded-host" "a.example:8443", "x-forwarded-port" "9443"})
              [:server-name :server-port]))))

(deftest the-port-is-that-of-the-host-or-the-schemes
  (doseq [[port headers] {443 {"x-forwarded-proto" "HTTPS"}
                          8443 {"x-forwarded-proto" "https", "host" "a.example:8443"}}]
    (is (= [:https port] (map (read-as :x-forwarded headers) [:scheme :server-port]))))
  (is (= 443 (:server-port ((forwarded/reader (address/blocks proxies) :x-forwarded)
                            {:remote-addr "10.0.0.1"
                             :scheme :https
                             :headers {"x-forwarded-host" "a.example"}})))))

(deftest what-a-client-has-made-up-is-not-its-hops
  (is (= ["203.0.113.7" :http "localhost"]
         (map (read-as :forwarded {"forwarded" (str "for=6.6.6.6;host=evil.example;proto=https,"
                                                    "for=203.0.113.7")})
              [:remote-addr :scheme :server-name]))))

(deftest the-first-of-fewer-values-holds-for-the-rest
  (is (= ["203.0.113.7" :https "a.example"]
         (map (read-as :x-forwarded {"x-forwarded-for" "203.0.113.7, 10.0.0.2, 10.0.0.3"
                                     "x-forwarded-proto" "https, http"
                                     "x-forwarded-host" "a.example"})
              [:remote-addr :scheme :server-name]))))

(deftest a-peer-with-a-zone-is-in-its-block
  (let [read (forwarded/reader (address/blocks ["fe80::/10"]) :x-forwarded)]
    (is (= "203.0.113.7"
           (:remote-addr (read {:remote-addr "fe80:0:0:0:0:0:0:1%eth0", :scheme :http
                                :headers {"x-forwarded-for" "203.0.113.7"}}))))))

(deftest a-host-that-is-none-is-not-taken
  (doseq [host ["a b" "a/b" "a,@b" "<x>" ":80" "a:123456" "[::1" (str/join (repeat 256 "a"))]]
    (is (= "localhost" (:server-name (read-as :forwarded {"forwarded" (str "host=\"" host "\"")})))
        host)))

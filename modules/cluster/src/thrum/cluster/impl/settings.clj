(ns thrum.cluster.impl.settings
  "The options of join!, checked. Off loopback a node needs TLS and a secret."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (java.io FileInputStream)
   (java.lang ProcessHandle)
   (java.net InetAddress UnknownHostException)
   (java.security KeyStore)))

(set! *warn-on-reflection* true)

(defn- text? [x] (and (string? x) (not (str/blank? x))))

(def ^:private address #"(?:\[[^\[\]\s,]+\]|[^\[\]\s,]+):(\d{1,5})")

(defn- address? [x]
  (when-some [[_ port] (when (string? x) (re-matches address x))]
    (<= 1 (parse-long port) 65535)))

(def rows
  "The options of join!."
  {:cluster {:check text?, :accepts "a string that is not blank", :default "thrum"
             :doc "the name of the cluster; nodes of another name are not seen"}
   :name {:check #(and (string? %) (re-matches #"[A-Za-z0-9._-]{1,60}" %))
          :accepts "letters, digits, dots and dashes"
          :default "the host's with the process's id"
          :doc "the name of this node"}
   :allow {:check #(and (set? %) (every? simple-symbol? %))
           :accepts "a set of symbols that name namespaces"
           :default "none"
           :doc (str "the namespaces whose functions this node runs; they are loaded here. "
                     "Without them the node is a caller")}
   :host {:check text?, :accepts "an address", :default "127.0.0.1"
          :doc "the address to bind. Any that is not loopback needs :tls and a :secret"}
   :port {:check #(and (int? %) (<= 1 % 55535))
          :accepts "an integer from 1 to 55535"
          :default "7800 for a member, the first free one from 7900 for a caller"
          :doc "the port to bind; the one 10000 above it is for the detection of failures"}
   :seeds {:check #(and (sequential? %) (seq %) (every? address? %))
           :accepts "a vector of addresses, [\"host:port\" ...]"
           :default "this host's port 7800"
           :doc "where members are"}
   :dns {:check text?, :accepts "a host name", :doc "a name whose addresses are the members'"}
   :secret {:check text?, :accepts "a string that is not blank", :secret? true
            :doc "what all nodes share: it seals each request and answer"}
   :tls {:check #(and (map? %)
                      (every? (comp text? %)
                              [:key-store :key-password :trust-store :trust-password]))
         :accepts "a map with :key-store, :key-password, :trust-store and :trust-password"
         :secret? true
         :doc "the keys of this node, and the certificates that it trusts"}
   :wrap (assoc (:wrap options/rows)
           :default "none"
           :doc "on a member: as thrum.core/*wrap*, around each request that it runs")
   ;; A caller shows that it is there 2.5 times a second.
   :lease-ms {:check #(and (int? %) (<= 1000 %)), :accepts "an integer from 1000"
              :default "10000"
              :doc (str "what a member runs for a caller is stopped when nothing has "
                        "come from the caller for so many ms")}
   :heartbeat-ms {:check #(and (int? %) (<= 200 %)), :accepts "an integer from 200"
                  :default "10000"
                  :doc "a node is lost when nothing has come from it for so many ms"}
   :members-timeout-ms {:check pos-int?, :accepts "a positive integer", :default "30000"
                        :doc "how many ms a call waits where no member takes it"}
   :drain-timeout-ms {:check nat-int?, :accepts "an integer, not negative", :default "10000"
                      :doc "how many ms close! waits for what runs here"}
   :engine {:check ifn?, :accepts "a function of the settings", :default "Infinispan's"
            :doc "what starts the engine, see thrum.cluster.spi"}})

(defn- loopback? [host]
  (try
    (.isLoopbackAddress (InetAddress/getByName host))
    (catch UnknownHostException _
      (throw (spi/invalid (str "The host " (spi/text host) " is unknown")
               {:option :host, :value host})))))

(defn- check-exposure! [{:keys [host tls secret]}]
  (when-not (or (loopback? host) (and tls secret))
    (throw (spi/invalid
             (str "The host " host " is not loopback: any process that reaches a member can have"
                  " it run functions. There :tls and a :secret are needed")
             {:option :host, :value host, :accepts "a loopback address, or :tls and a :secret"}))))

(defn- unusable [k path why]
  (spi/invalid (str "The " k " " path " of :tls cannot be used: " why)
    {:option :tls, :accepts "PKCS12 files, with their passwords"}))

(defn- check-store!
  "Throws :thrum/invalid unless the store can be read, and has an entry for which holds? is true."
  [tls k password-key holds? what]
  (let [path (k tls)
        password (.toCharArray ^String (password-key tls))
        store (KeyStore/getInstance "PKCS12")
        found (try
                (with-open [in (FileInputStream. ^String path)] (.load store in password))
                (some #(holds? store % password) (enumeration-seq (.aliases store)))
                (catch Exception e (throw (unusable k path (ex-message e)))))]
    (when-not found (throw (unusable k path (str "it holds no " what))))))

;; Without its stores an engine would start, reach no other node, and say nothing.
(defn- check-tls! [{:keys [tls]}]
  (when tls
    (check-store! tls :key-store :key-password
      (fn [^KeyStore store alias password] (.getKey store alias password))
      "key")
    (check-store! tls :trust-store :trust-password
      (fn [^KeyStore store alias _] (.getCertificate store alias))
      "certificate")))

(defn- process-name []
  (str (try (.getHostName (InetAddress/getLocalHost)) (catch UnknownHostException _ "host"))
       "-"
       (.pid (ProcessHandle/current))))

(defn- defaults [{:keys [allow host] :or {host "127.0.0.1"}}]
  {:cluster "thrum"
   :name (process-name)
   :allow #{}
   :host "127.0.0.1"
   :port (when (seq allow) 7800)
   :seeds [(str host ":7800")]
   :lease-ms 10000
   :heartbeat-ms 10000
   :members-timeout-ms 30000
   :drain-timeout-ms 10000
   :engine (fn [settings] ((requiring-resolve 'thrum.cluster.engine.infinispan/start) settings))})

(defn checked
  "Returns the options with their defaults. Throws :thrum/invalid."
  [options]
  (let [options (options/check rows options (keys rows))]
    (doto (merge (defaults options) options)
      (check-exposure!)
      (check-tls!))))

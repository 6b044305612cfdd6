(ns thrum.server.tck.start
  "Chapter: misuse is answered when the server starts."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.net InetAddress ServerSocket)))

(set! *warn-on-reflection* true)

(defn- thrown-by-start
  "Returns what starting throws; fails where it starts."
  [env handler options]
  (let [e (try (scene/serve env handler options) nil (catch Exception e e))]
    (expect e (str "that " (pr-str options) " throws") :started)))

(defn- expect-invalid [env options]
  (let [e (thrown-by-start env scene/ok options)]
    (expect= :thrum/invalid (:type (ex-data e)) (ex-message e))
    e))

(defcase unknown-options-throw "4.10"
  "An unknown option throws, and the nearest known one is named."
  [env]
  (let [message (ex-message (expect-invalid env {:max-concurent 5}))]
    (expect (str/includes? message ":max-concurrent") "the nearest option's name" message)
    (expect (str/includes? message ":max-concurent") "the option's name" message)))

(defcase unknown-engine-options-throw "4.10"
  "An unknown key of :engine-options throws."
  [env]
  (expect-invalid env {:engine-options {:no-such-thing 1}}))

(defn- names-option [env k value]
  (let [message (ex-message (expect-invalid env {k value}))]
    (expect (str/includes? message (str k)) (str "a message that names " k) message)))

(defcase max-concurrent-zero-throws "4.10"
  ":max-concurrent 0 throws, and the message names it."
  [env]
  (names-option env :max-concurrent 0))

(defcase wrong-values-throw "4.10"
  "An option of a wrong type or range throws, and the message names it."
  [env]
  (doseq [[k v] {:port -1
                 :host 7
                 :backlog 0
                 :max-queued -1
                 :max-concurrent "5"
                 :request-timeout-ms 0
                 :max-body-bytes -1
                 :on-overload 200
                 :async? :yes
                 :observer {:begin identity}
                 :shutdown-timeout-ms nil?
                 :error-handler 7}]
    (names-option env k v)))

(defcase port-out-of-range-throws "4.10"
  "A port above 65535 throws."
  [env]
  (names-option env :port 65536))

(defcase unknown-engine-throws "4.10"
  "An engine that does not exist throws, and the message says which do."
  [env]
  (let [message (ex-message (expect-invalid env {:engine :no-such-engine}))]
    (expect (str/includes? message ":jdk") "the engines that exist" message)))

(defcase handler-must-be-callable "4.10"
  "A handler that cannot be called throws."
  [env]
  (doseq [handler [nil 7 "handler"]]
    (expect= :thrum/invalid (:type (ex-data (thrown-by-start env handler {}))))))

(defcase options-must-be-a-map "4.10"
  "Options that are no map throw."
  [env]
  (let [e (try ((:run-server env) scene/ok [:port 0]) nil (catch Exception e e))]
    (expect= :thrum/invalid (:type (ex-data e)))))

(defcase port-in-use-throws "4.10"
  "A port that is in use throws :thrum/start-failed, with the cause."
  [env]
  (with-open [taken (ServerSocket. 0 5 (InetAddress/getByName "127.0.0.1"))]
    (let [e (thrown-by-start env scene/ok {:port (.getLocalPort taken)})]
      (expect= :thrum/start-failed (:type (ex-data e)))
      (expect (ex-cause e) "a cause" e)
      (expect (str/includes? (ex-message e) (str (.getLocalPort taken)))
              "the port in the message"
              (ex-message e)))))

(defcase two-servers-do-not-share-a-port "4.10"
  "A second server on the port of the first throws, and the first serves on."
  [env]
  (let [server (scene/serve env scene/ok {})]
    (thrown-by-start env scene/ok {:port (scene/port-of env server)})
    (expect-status 200 (scene/ask env server (wire/get "/")))))

(defcase unknown-host-throws "4.10"
  "A host that cannot be listened on throws :thrum/start-failed, with the cause."
  [env]
  (let [e (thrown-by-start env scene/ok {:host "192.0.2.1"})]
    (expect= :thrum/start-failed (:type (ex-data e)))
    (expect (ex-cause e) "a cause" e)))

(defcase port-zero-picks-one "4.10"
  "Port 0 picks a free port, which the server reports."
  [env]
  (let [server (scene/serve env scene/ok {:port 0})]
    (expect (pos-int? (scene/port-of env server)) "a port" (scene/port-of env server))
    (expect-status 200 (scene/ask env server (wire/get "/")))))

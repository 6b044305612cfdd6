(ns thrum.server.tck.reuse
  "Chapter: which responses keep the connection, and which close it."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.scene :as scene :refer [defcase expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- many-bodies [env]
  {"/string" (scene/answering {:body "a"})
   "/seq" (fn [_] {:status 200, :headers {}, :body (map str [1 2])})
   "/stream" (fn [_] {:status 200, :headers {}, :body (bodies/stream (atom []) "b")})
   "/file" (let [file (bodies/file-of env "c")] (scene/answering {:body ^File file}))
   "/nil" (scene/answering {:body nil})})

(defcase connection-is-kept "4.2"
  "The connection serves on after every kind of body."
  [env]
  (let [c (scene/client env (scene/serve env (scene/routes (many-bodies env)) {}))
        bodies (mapv #(:body (wire/ask! c (wire/get %)))
                     ["/string" "/seq" "/stream" "/file" "/nil" "/string"])]
    (expect= ["a" "12" "b" "c" "" "a"] bodies)))

(defcase client-may-close "4.2"
  "A client's Connection: close is obeyed."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {}))]
    (expect-status 200 (wire/ask! c (wire/get "/" "Connection: close")))
    (scene/expect-closed c)))

(defcase handler-may-close "4.2"
  "A handler's Connection: close is sent, and obeyed."
  [env]
  (let [c (scene/client
            env
            (scene/serve env (scene/answering {:headers {"Connection" "close"}, :body "x"}) {}))]
    (expect= "close"
             (some-> (wire/header (wire/ask! c (wire/get "/")) "connection")
                     str/lower-case))
    (scene/expect-closed c)))

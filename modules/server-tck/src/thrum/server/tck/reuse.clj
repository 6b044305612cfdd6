(ns thrum.server.tck.reuse
  "Chapter: which responses keep the connection, and which close it."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.refusal :refer [hidden]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io File InputStream)))

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

(defcase close-may-stand-among-others "4.2"
  "A client's close is obeyed among other options of Connection too, in any case and in several
  headers: the connection is closed, and nothing behind it is served."
  [env]
  (doseq [connection [["keep-alive, close"] ["foo,CLOSE"] ["close , keep-alive"]
                      ["foo" "close"]]]
    (let [[c uris] (scene/noting-uris env scene/ok)]
      (expect-status 200
                     (wire/ask! c
                       (apply wire/get "/" (map #(str "Connection: " %) connection))
                       (wire/get "/next")))
      (scene/expect-closed c)
      (expect= ["/"] @uris connection))))

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

;; Behind an error

(def ^:private errors
  "Ways to fail with a body unread, half read and read: uri -> handler."
  (let [boom (fn [& _] (throw (ex-info "boom" {})))]
    {"/throws" boom
     "/nil" (constantly nil)
     "/status" (scene/answering {:status 404, :body "none"})
     "/bad-status" (scene/answering {:status 4711})
     "/body" (fn [_] {:status 200, :headers {}, :body (lazy-seq (boom))})
     "/half-read" (fn [{:keys [^InputStream body]}] (.read body) (boom))
     "/read" (fn [{:keys [^InputStream body]}] (.readAllBytes body) (boom))}))

(defn- expect-next
  "Fails unless what comes behind an error with this body is the answer to the next request, or the
  end of the connection."
  [env server uris [uri raw]]
  (let [c (scene/client env server)
        answer (wire/ask! c raw)]
    (expect (<= 400 (or (:status answer) 0) 500) "an error" [uri answer])
    (wire/try-send! c (wire/get "/next"))
    (let [{:keys [body ended] :as following} (wire/response c)]
      (expect (or (= "next" body) (#{:eof :reset} ended))
              "the next answer, or none"
              [uri following]))
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" uri)))

(defcase errors-leave-the-framing-alone "4.8"
  "Behind an error of any kind, with its request's body read, half read or unread, the connection
  ends, or serves the next request and nothing that the body holds."
  [env]
  (let [uris (atom [])
        answer (scene/routes (assoc errors "/next" (scene/answering {:body "next"})))
        handler (fn [r] (swap! uris conj (:uri r)) (answer r))
        server (scene/serve env handler {:max-body-bytes 1000})]
    (doseq [uri (keys errors)
            raw [(wire/post uri hidden) (wire/chunked uri hidden) (wire/get uri)]]
      (expect-next env server uris [uri raw]))
    (expect-next env server uris ["413" (wire/post "/large" (str/join (repeat 30 hidden)))])))

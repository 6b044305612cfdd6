(ns thrum.server.tck.request
  "Chapter: what a handler is called with."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)
   (java.util Locale)))

(set! *warn-on-reflection* true)

(defcase method-is-a-keyword "4.2"
  "The method reaches the handler as a lower-case keyword."
  [env]
  (expect= :get (:request-method (scene/received env (wire/get "/")))))

(defcase method-of-ones-own "4.2"
  "A method that HTTP does not name reaches the handler too."
  [env]
  (expect= :propfind (:request-method (scene/received env (wire/head-of "PROPFIND" "/")))))

(defn- uri [env target]
  (:uri (scene/received env (wire/get target))))

(defcase uri-is-not-decoded "4.2"
  "Percent signs reach the handler as they were sent."
  [env]
  (expect= "/a%2Fb%20c%c3%BC" (uri env "/a%2Fb%20c%c3%BC")))

(defn- as-received
  "Returns [status targets] of a request for the target; targets: those that the handler got."
  [env target]
  (let [targets (atom [])
        note (fn [{:keys [uri query-string] :as request}]
               (swap! targets conj (cond-> uri query-string (str "?" query-string)))
               (scene/ok request))
        {:keys [status]} (scene/ask env (scene/serve env note {}) (wire/get target))]
    [status @targets]))

(defcase uri-keeps-bytes-beyond-ascii "4.2"
  "Bytes beyond ASCII reach the handler as they were sent, a character for each, or the request is
  refused."
  [env]
  (doseq [target ["/\u00c3\u00a9" "/\u00ff" "/?q=\u00fe" "/\u00ef\u00bf\u00bd"]]
    (let [found (as-received env target)]
      (expect (contains? #{[200 [target]] [400 []]} found)
              (str "the bytes of " (pr-str target) ", or 400")
              found))))

(defcase uri-keeps-double-slashes "4.2"
  "A path of two slashes is neither merged nor taken for a host."
  [env]
  (expect= "//foo//bar" (uri env "//foo//bar")))

(defcase uri-keeps-dots "4.2"
  "Dot segments and parameters are not resolved."
  [env]
  (expect= "/a/../b/./c;x=1/..;/d" (uri env "/a/../b/./c;x=1/..;/d")))

(defcase uri-of-an-absolute-form "4.2"
  "An absolute-form target is reduced to its path and query."
  [env]
  (doseq [[target path query] [["http://localhost/x/y?q=1" "/x/y" "q=1"]
                               ["http://localhost//x?a=http://b" "//x" "a=http://b"]]]
    (expect= [path query]
             ((juxt :uri :query-string) (scene/received env (wire/get target))))))

(defcase absolute-form-without-a-path "4.2"
  "An absolute-form target without a path has the path /."
  [env]
  (doseq [[target query] [["http://localhost" nil] ["http://localhost?q=1" "q=1"]]]
    (expect= ["/" query]
             ((juxt :uri :query-string) (scene/received env (wire/get target))))))

(defcase absolute-form-must-equal-host "4.2"
  "An absolute-form target whose authority is not the Host's is refused."
  [env]
  (let [entered (promise)
        server (scene/serve env (fn [r] (deliver entered r) (scene/ok r)) {})]
    (expect-status 400 (scene/ask env server (wire/get "http://elsewhere/x")))
    (expect (not (realized? entered)) "that the handler is not called" :called)))

(defcase query-is-not-decoded "4.2"
  "The query reaches the handler as it was sent, without the question mark."
  [env]
  (expect= "a=%20b+c&&d=?" (:query-string (scene/received env (wire/get "/?a=%20b+c&&d=?")))))

(defcase query-may-be-absent "4.2"
  "Without a question mark there is no query."
  [env]
  (expect= nil (:query-string (scene/received env (wire/get "/")))))

(defn- header-of [env name & lines]
  (get-in (apply scene/received env [(apply wire/get "/" lines)]) [:headers name]))

(defcase header-names-are-lower-case "4.2"
  "Header names are lower-case."
  [env]
  (expect= "1" (header-of env "x-some-name" "X-SOME-Name: 1")))

(defcase header-names-know-no-locale "4.2"
  "Header names are lower-cased alike in every locale, the Turkish too."
  {:alone? true}
  [env]
  (let [locale (Locale/getDefault)]
    (try
      (Locale/setDefault (Locale/of "tr" "TR"))
      (expect= "1" (header-of env "x-title-i" "X-TITLE-I: 1"))
      (finally (Locale/setDefault locale)))))

(defn- without-blanks [s]
  (some-> s (str/replace " " "")))

(defcase repeated-headers-are-joined "4.2"
  "A header that is sent three times reaches the handler as one value, joined with commas."
  [env]
  (expect= "a,b,c" (without-blanks (header-of env "x-many" "X-Many: a" "x-many: b" "X-MANY: c"))))

(defcase repeated-headers-among-many-are-joined "4.2"
  "Among a hundred headers too those of one name reach the handler as one value, in their order."
  [env]
  (let [others (map #(str "X-Other-" % ": " %) (range 100))
        lines (concat ["X-Many: a"] others ["x-many: b"])
        {:keys [headers]} (scene/received env (apply wire/get "/" lines))]
    (expect= "a,b" (without-blanks (get headers "x-many")))
    (expect= (map str (range 100)) (map #(get headers (str "x-other-" %)) (range 100)))))

(defcase cookies-are-joined-with-semicolons "4.2"
  "Cookie headers are joined with semicolons."
  [env]
  (expect= "a=1;b=2" (without-blanks (header-of env "cookie" "Cookie: a=1" "Cookie: b=2"))))

(defcase header-values-keep-their-case "4.2"
  "A value reaches the handler in the case that it was sent in, also where an earlier request of the
  connection had it in another."
  [env]
  (let [seen (atom [])
        note (fn [{:keys [headers] :as request}]
               (swap! seen conj (map headers ["user-agent" "cookie"]))
               (scene/ok request))
        c (scene/client env (scene/serve env note {}))
        values ["k=value" "K=Value" "k=VALUE"]]
    (doseq [value values]
      (expect-status 200
        (wire/ask! c (wire/get "/" (str "User-Agent: " value) (str "Cookie: " value)))))
    (expect= (map #(list % %) values) @seen)))

(defcase header-values-are-trimmed "4.2"
  "Blanks and tabs around a header's value do not belong to it; those inside do."
  [env]
  (expect= "a  b" (header-of env "x-blank" "X-Blank: \t a  b \t ")))

(defcase header-values-may-be-empty "4.2"
  "A header without a value is an empty string."
  [env]
  (expect= "" (header-of env "x-empty" "X-Empty:")))

(defcase many-headers-arrive "4.2"
  "Eighty headers arrive, each with its own value."
  [env]
  (let [names (map #(str "x-h" %) (range 80))
        {:keys [headers]} (scene/received env (apply wire/get "/" (map #(str % ": v-" %) names)))]
    (expect= (zipmap names (map #(str "v-" %) names)) (select-keys headers names))))

(defcase remote-addr-is-the-peers "4.2"
  "The remote address is the socket's peer, an address and nothing else."
  [env]
  (expect= "127.0.0.1" (:remote-addr (scene/received env (wire/get "/")))))

(defcase remote-addr-is-not-claimed "4.2"
  "A client cannot say where it comes from."
  [env]
  (let [request (scene/received
                  env
                  (wire/get "/" "X-Forwarded-For: 10.1.2.3" "Forwarded: for=10.1.2.3"))]
    (expect= "127.0.0.1" (:remote-addr request))))

(defcase server-name-is-hosts "4.2"
  "The server's name is that of the Host header, without its port."
  [env]
  (let [text "GET / HTTP/1.1\r\nHost: example.org:8099\r\n\r\n"]
    (expect= "example.org" (:server-name (scene/received env text)))))

(defcase server-port-is-a-number "4.2"
  "The server's port is an integer."
  [env]
  (expect (pos-int? (:server-port (scene/received env (wire/get "/"))))
          "a positive integer"
          :another))

(defcase scheme-is-http "4.2"
  "The scheme of a plain connection is :http, also where a header says otherwise."
  [env]
  (expect= :http (:scheme (scene/received env (wire/get "/" "X-Forwarded-Proto: https")))))

(defcase protocol-is-told "4.2"
  "The protocol is the one on the request's line."
  [env]
  (expect= "HTTP/1.1" (:protocol (scene/received env (wire/get "/")))))

(defcase plain-connections-have-no-certificate "4.2"
  "There is no client certificate on a plain connection."
  [env]
  (expect= nil (:ssl-client-cert (scene/received env (wire/get "/")))))

(defcase body-is-always-a-stream "4.2"
  "The body is an InputStream, an empty one where none was sent."
  [env]
  (let [request (scene/received env (wire/get "/"))]
    (expect (instance? InputStream (:body request)) "an InputStream" (:body request))
    (expect= "" (:text request))))

(def ^:private every-byte
  (wire/text-of (byte-array (map unchecked-byte (range 256)))))

(defcase body-of-a-length-arrives "4.2"
  "A body of a stated length arrives byte by byte."
  [env]
  (expect= every-byte (:text (scene/received env (wire/post "/" every-byte)))))

(defcase body-of-chunks-arrives "4.2"
  "A chunked body arrives without its framing."
  [env]
  (expect= (str every-byte "middle" every-byte)
           (:text (scene/received env (wire/chunked "/" every-byte "middle" every-byte)))))

(defcase large-body-arrives "4.2"
  "A body of a megabyte arrives whole."
  [env]
  (let [text (str/join (repeat 4096 every-byte))]
    (expect (= text (:text (scene/received env (wire/post "/" text))))
            "the body that was sent"
            :another)))

(defcase content-keys-are-there "4.2"
  "Content type, length and character encoding stand beside the headers."
  [env]
  (doseq [content-type ["text/x; charset=utf-16" "text/x;charset=\"utf-16\""]
          :let [raw (wire/post "/" "{}" (str "Content-Type: " content-type))]]
    (expect= [content-type 2 "utf-16"]
             ((juxt :content-type :content-length :character-encoding)
              (scene/received env raw)))))

(defcase length-may-exceed-an-int "4.2"
  "An announced length above 2 GiB reaches the handler as a number."
  [env]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen (:content-length r)) (scene/ok r)) {})]
    (wire/send! (scene/client env server) (wire/head-of "POST" "/" "Content-Length: 3000000000"))
    (expect= 3000000000 (scene/within seen "a call of the handler"))))

(defcase a-var-is-looked-up-at-each-request "4.9"
  "A Var as handler is looked up at each request, so that redefining it is seen."
  [env]
  (let [handler (doto (clojure.lang.Var/create) (.bindRoot (scene/answering {:body "old"})))
        server (scene/serve env handler {})]
    (expect= "old" (:body (scene/ask env server (wire/get "/"))))
    (.bindRoot handler (scene/answering {:body "new"}))
    (expect= "new" (:body (scene/ask env server (wire/get "/"))))))

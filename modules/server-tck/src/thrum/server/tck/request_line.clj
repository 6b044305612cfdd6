(ns thrum.server.tck.request-line
  "Chapter: the request line. A method, target or version that two servers could read differently
  is refused."
  (:require
   [thrum.server.tck.refusal :refer [expect-refused lines]]
   [thrum.server.tck.scene :as scene :refer [defcase expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defcase versions-are-1-0-or-1-1 "4.8"
  "On a connection of HTTP/1 any version but 1.0 and 1.1 is refused."
  [env]
  (doseq [version ["HTTP/2.0" "HTTP/2" "HTTP/1.2" "HTTP/3.0" "HTTP/0.9" "HTTP/11" "HTTP/01.1"]]
    (expect-refused env #{400 426 505} (lines (str "GET / " version) "Host: localhost"))
    (expect-refused env #{400 426 505} (lines (str "GET /admin " version) "X-Other: 1"))))

(defcase connect-is-refused "4.8"
  "CONNECT is refused with every target: a success would open a tunnel."
  [env]
  (doseq [method ["CONNECT" "connect"]
          target ["localhost:80" "/" "http://localhost/" "localhost" "*"]]
    (expect-refused env
      #{400 404 405 501 :eof}
      (lines (str method " " target " HTTP/1.1") "Host: localhost"))))

(defcase foreign-targets-are-refused "4.8"
  "An absolute target that is not http, or names a user, is refused; so is a fragment."
  [env]
  (doseq [target ["ftp://localhost/" "file://localhost/x" "http://user@localhost/"
                  "http://user:pw@localhost/" "http:///x" "http:localhost/"
                  "/a#b" "/a?b#c" "http://localhost/a#b"]]
    (expect-refused env #{400 :eof} (lines (str "GET " target " HTTP/1.1") "Host: localhost"))))

(defcase garbled-request-lines-are-refused "4.8"
  "A request's line that is not method, target and version is refused."
  [env]
  (doseq [line ["GET /" "GET / a HTTP/1.1" "GET / HTTP/1.x" "G(T / HTTP/1.1"
                "GET /\u0001 HTTP/1.1" "GET /\u007f HTTP/1.1" "GET x HTTP/1.1" "GET * HTTP/1.1"]]
    (expect-refused env #{400 404 405 501 505} (lines line "Host: localhost"))))

(defcase request-lines-without-a-method-are-refused "4.8"
  "A request's line that begins with a blank, and so has no method, is refused."
  [env]
  (doseq [line [" / HTTP/1.1" "\t/ HTTP/1.1" "\r\n / HTTP/1.1" " http://localhost/ HTTP/1.1"]]
    (expect-refused env #{400 404 501} (lines line "Host: localhost"))))

(defcase tabs-in-the-request-line-are-refused "4.8"
  "A tab in the request's line is refused."
  [env]
  (doseq [line ["GET\t/ HTTP/1.1" "GET /\tHTTP/1.1" "GET /a\tb HTTP/1.1"]]
    (expect-refused env #{400 404} (lines line "Host: localhost"))))

(defcase user-names-in-targets-are-refused "4.8"
  "A target in absolute form that names a user is refused; an @ in a path or a query is none."
  [env]
  (doseq [target ["http://user@localhost/" "http://user@localhost" "http://user:word@localhost/a"
                  "http://user@localhost?a"]]
    (expect-refused env #{400 404} (lines (str "GET " target " HTTP/1.1") "Host: localhost")))
  (let [server (scene/serve env
                            (fn [{:keys [uri query-string]}]
                              {:status 200, :headers {}, :body (str uri " " query-string)})
                            {})]
    (doseq [[target seen] {"/@a?b@c" "/@a b@c", "http://localhost/@a?@" "/@a @", "/?@" "/ @"}]
      (expect= seen (:body (scene/ask env server (wire/get target)))))))

(ns thrum.server.tck.hosts
  "Chapter: the Host header. A request without exactly one valid Host is refused."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [expect-refused lines]]
   [thrum.server.tck.scene :as scene :refer [defcase expect=]]))

(set! *warn-on-reflection* true)

(defcase missing-host-is-refused "4.8"
  "HTTP/1.1 without a Host is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "X-Other: 1")))

(defcase two-hosts-are-refused "4.8"
  "Two Hosts are refused, equal ones too."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "Host: elsewhere"))
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "Host: localhost")))

(defcase hosts-that-are-none-are-refused "4.8"
  "A Host that is empty, or no host with or without a port, is refused."
  [env]
  (doseq [host ["" "[::1" "::1" "[localhost]" "a:b" "a:80:80" "localhost:es" "localhost:()"
                "localhost:65536" "localhost:000080" "[80]" "a%4" "%zz"
                "a\"><script>" "a b" "a,b" "u@a" "a/b" "\u00e4"]]
    (expect-refused env #{400} (lines "GET / HTTP/1.1" (str "Host: " host)))))

(defcase endless-hosts-are-refused "4.8"
  "A Host of thousands of characters is refused, a valid one too."
  [env]
  (doseq [part ["a" "_" "%41" "~"]]
    (expect-refused env
      #{400 431}
      (lines "GET / HTTP/1.1"
        (str "Host: "
             (str/join (repeat (quot 16000 (count part)) part)))))))

(defcase hosts-that-are-some-are-served "4.8"
  "A Host that is a name, an address in brackets, with or without a port, is served, and is the
  server's name."
  [env]
  (doseq [[host server-name] {"a-b.c" "a-b.c"
                              "localhost:1" "localhost"
                              "[::1]:8080" "[::1]"
                              "[::ffff:1.2.3.4]" "[::ffff:1.2.3.4]"
                              "127.0.0.1:65535" "127.0.0.1"}]
    (expect= server-name
             (:server-name (scene/received env (lines "GET / HTTP/1.1" (str "Host: " host))))
             host)))

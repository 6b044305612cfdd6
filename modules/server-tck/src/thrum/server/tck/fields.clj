(ns thrum.server.tck.fields
  "Chapter: the lines of a request's headers. A line that two servers could read differently is
  refused."
  (:require
   [thrum.server.tck.refusal :refer [expect-refused hidden lines refused-post]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defcase nul-in-a-value-is-refused "4.8"
  "A NUL in a header's value is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "X-Nul: a\u0000b")))

(defcase bare-cr-in-a-value-is-refused "4.8"
  "A CR without its LF in a header's value is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "X-Cr: a\rX-Evil: b")))

(defn- expect-refused-value [env value]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" (str "X-Ctl: " value))))

(defcase control-chars-in-a-value-are-refused "4.8"
  "Other control characters in a header's value are refused."
  [env]
  (doseq [c (concat (range 1 9) [11 12] (range 14 32) [127])]
    (expect-refused-value env (str "a" (char c) "b")))
  ;; Where they are many, they may go another way.
  (let [many (map #(str "X-" % ": a") (range 60))]
    (expect-refused env #{400} (apply lines "GET / HTTP/1.1" "Host: localhost" "X-Ctl: a\u0001b"
                                 many))))

(defcase control-chars-around-a-value-are-refused "4.8"
  "A header's value that begins or ends with a control character is refused."
  [env]
  (doseq [c [1 11 127]]
    (expect-refused-value env (str (char c) "a"))
    (expect-refused-value env (str "a" (char c)))))

(defcase folded-lines-hide-nothing "4.8"
  "A header that goes on in the next line is refused, or is one value."
  [env]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen (:headers r)) (scene/ok r)) {})
        answer (scene/ask env
                          server
                          (lines "GET / HTTP/1.1" "Host: localhost"
                            "X-Fold: a" " Transfer-Encoding: b"))]
    (when (not= 400 (:status answer))
      (expect= 200 (:status answer) answer)
      (expect= nil (get @seen "transfer-encoding")))))

(defcase blank-before-the-colon-is-refused "4.8"
  "A blank between a header's name and its colon is refused."
  [env]
  (refused-post env #{400 501} "Content-Length : 3")
  (refused-post env #{400 501} "Transfer-Encoding : chunked"))

(defcase header-without-a-name-is-refused "4.8"
  "A header without a name, or without a colon, is refused."
  [env]
  (doseq [header [": value" "no-colon" "na me: x" "na\u0000me: x"]]
    (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" header))))

(defcase bare-lf-does-not-end-a-header "4.8"
  "LF alone, in the middle of a header, does not begin another."
  [env]
  (doseq [end ["X-A: b\nX-C: d\r\n\r\n" "X-A: b\n\r\n" "X-A: b\n\n" "X-A: b\r\n\n"]]
    (expect-refused env #{400} (str "GET / HTTP/1.1\r\nHost: localhost\r\n" end)))
  (expect-refused env #{400} "GET / HTTP/1.1\nHost: localhost\r\n\r\n"))

(defcase bare-lf-does-not-end-the-headers "4.8"
  "Headers whose lines end in LF alone hide nothing: one request is read, or it is refused."
  [env]
  (let [[c uris] (scene/noting-uris env scene/ok)]
    (wire/ask! c
               "POST /first HTTP/1.1\r\nHost: localhost\r\n"
               (str "X-A: b\nContent-Length: " (count hidden) "\r\n\r\n" hidden))
    (wire/after c wire/quiet-ms)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

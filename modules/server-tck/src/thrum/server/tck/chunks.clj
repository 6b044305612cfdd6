(ns thrum.server.tck.chunks
  "Chapter: the chunks of a request's body. Garbled, endless or truncated chunks are no whole body."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [chunks expect-throwing-body hidden read-all swallow]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defn- expect-bad-chunks
  [env text]
  (let [[c uris] (scene/noting-uris env read-all)
        answer (wire/ask! c (str (chunks text) hidden))]
    (scene/expect-refusal #{400 413} answer)
    (expect-closed c)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defcase garbled-chunk-sizes-are-refused "4.8"
  "A chunk whose size is no hexadecimal number is refused, and never a success."
  [env]
  (run! #(expect-bad-chunks env (str % "\r\nabc\r\n0\r\n\r\n"))
        ["x" "-3" "+3" "0x3" "" "3 3" " 3"]))

(defcase overflowing-chunk-sizes-are-refused "4.8"
  "A chunk size that no long can hold is refused."
  [env]
  (run! #(expect-bad-chunks env (str % "\r\nabc\r\n0\r\n\r\n"))
        ["ffffffffffffffff" "10000000000000003" "8000000000000003" "ffffffff00000003"
         "fffffffffffffffff"]))

(defcase swallowed-bad-chunks-end-the-connection "4.8"
  "A body with bad chunks is never resumed behind what is bad, where the handler swallows the
  exception too: what follows is no request."
  [env]
  (doseq [bad ["1e;\u0001\r\n" "zz\r\n" (str "1;" (str/join (repeat 20000 "a")) "\r\n")
               "1\r\nab\r\n"]]
    (let [[c uris] (scene/noting-uris env swallow)]
      (wire/try-send! c (chunks (str bad "0\r\n\r\n")) hidden)
      (wire/response c)
      (expect-closed c)
      (expect (not-any? #{"/hidden"} @uris) "no hidden request" [bad @uris]))))

(defn- expect-not-whole
  "A chunk of this size, of which three bytes come, is no whole body, and what follows is no
  request."
  [env size]
  (let [[c uris] (scene/noting-uris env read-all)]
    (wire/try-send! c (chunks (str size "\r\nabc\r\n0\r\n\r\n")) hidden)
    (wire/finish! c)
    (scene/expect-refusal #{400 413} (wire/response c) size)
    (expect-closed c)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" [size @uris])))

(defcase chunk-sizes-may-exceed-an-int "4.8"
  "A chunk of more than 2 GiB, of which less comes, is no whole body."
  [env]
  (run! #(expect-not-whole env %) ["80000003" "80000000" "ffffffff"]))

(defcase chunk-sizes-may-exceed-32-bits "4.8"
  "A chunk of 4 GiB and more, of which less comes, is no whole body."
  [env]
  (run! #(expect-not-whole env %) ["100000003" "100000000" "7fffffff00000003" "00100000003"]))

(defcase chunk-sizes-may-begin-with-zeros "4.8"
  "Zeros before a chunk's size change nothing, or are refused where they are many."
  [env]
  (let [server (scene/serve env read-all {})]
    (expect= "abc"
             (->> (chunks "0003\r\nabc\r\n00\r\n\r\n")
                  (scene/ask env server)
                  (expect-status 200)
                  :body))
    (let [answer
          (scene/ask env server (chunks (str (str/join (repeat 20 "0")) "3\r\nabc\r\n0\r\n\r\n")))]
      (expect (or (= "abc" (:body answer))
                  (#{400 :eof :reset} (or (:status answer) (:ended answer))))
              "the body, or a refusal"
              answer))))

(defcase chunks-end-with-a-line "4.8"
  "A chunk that is longer than its size says is refused."
  [env]
  (expect-bad-chunks env "3\r\nabcd\r\n0\r\n\r\n"))

(defcase truncated-chunks-are-no-body "4.8"
  "A chunked body that breaks off throws where it is read; the handler never takes it for whole."
  [env]
  (expect-throwing-body env (chunks "3\r\nabc\r\n")))

(defn- expect-400
  "Fails unless a handler that reads this body is answered for with 400, and the observer is given
  that status."
  [env text]
  (let [ended (promise)
        server (scene/serve env read-all {:observer {:end #(deliver ended (:status %))}})
        c (wire/send! (scene/client env server) text)]
    (wire/finish! c)
    (let [answer (wire/response c)]
      (expect= 400 (:status answer) [text answer]))
    (expect-closed c)
    (expect= 400 (scene/within ended "a call of :end"))))

(defcase broken-bodies-are-400 "4.8"
  "Where a read of the body throws because that is broken, or cut off by a FIN, the answer is 400,
  also for the observer, and the connection is closed."
  [env]
  (expect-400 env (str (wire/head-of "POST" "/" "Content-Length: 10") "abc"))
  (run! #(expect-400 env (chunks %)) ["3\r\nabc\r\n" "zz\r\nabc\r\n0\r\n\r\n"]))

(defcase chunk-extensions-are-ignored "4.8"
  "Chunk extensions are skipped."
  [env]
  (let [answer (scene/ask env
                          (scene/serve env read-all {})
                          (chunks "3;a=b\r\nabc\r\n0;last\r\n\r\n"))]
    (expect= "abc" (:body (expect-status 200 answer)))))

(ns thrum.server.impl.authority
  "Hosts with or without a port, as text (RFC 3986, 3.2)."
  {:no-doc true})

(set! *warn-on-reflection* true)

(defn host-name
  "Returns the host of an authority, without its port."
  [^String authority]
  (let [colon (.indexOf authority ":" (max 0 (.indexOf authority "]")))]
    (if (neg? colon) authority (subs authority 0 colon))))

(def ^:private host-form
  "A name, or an address in brackets (RFC 3986, 3.2.2; no comma)."
  #"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|(?:[-A-Za-z0-9._~!$&'()*+;=]|%[0-9A-Fa-f]{2})++")

(def ^:private ^:const longest-authority
  "How many characters an authority may have: a name in DNS has 253."
  300)

(def ^:private name-char
  "Which of the first 128 characters the names of most hosts are made of."
  (boolean-array (map #(let [c (char %)]
                         (or (<= 48 % 57) (<= 65 % 90) (<= 97 % 122) (= \- c) (= \. c)))
                      (range 128))))

(defn- plain-name?
  "True if s is made of letters, digits, dots and hyphens up to end: such a name needs no
  second look."
  [^String s ^long end]
  (let [^booleans name-char name-char]
    (loop [i 0]
      (or (= i end)
          (let [c (int (.charAt s i))]
            (and (< c 128) (aget name-char c) (recur (inc i))))))))

(defn- port?
  "True if s is a port from i on: nothing, or at most five digits of no more than 65535."
  [^String s ^long i]
  (let [n (.length s)]
    (and (<= (- n i) 5)
         (loop [i i, port 0]
           (if (= i n)
             (<= port 65535)
             (let [digit (- (int (.charAt s i)) 48)]
               (and (<= 0 digit) (<= digit 9) (recur (inc i) (+ (* 10 port) digit)))))))))

(defn authority?
  "True if s is a host, with or without a port."
  [^String s]
  (let [bracket (.indexOf s "]")
        colon (.indexOf s ":" (max 0 bracket))
        end (if (neg? colon) (.length s) colon)]
    (and (pos? end)
         (<= (.length s) longest-authority)
         (or (neg? colon) (port? s (inc colon)))
         (or (plain-name? s end) (some? (re-matches host-form (subs s 0 end)))))))

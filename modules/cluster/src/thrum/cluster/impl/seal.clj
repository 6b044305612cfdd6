(ns thrum.cluster.impl.seal
  "Messages sealed with the secret that all nodes share: HMAC-SHA256 before the bytes. Without a
  secret there is a byte that says so."
  {:no-doc true}
  (:import
   (java.nio.charset StandardCharsets)
   (java.security MessageDigest)
   (java.util Arrays)
   (javax.crypto Mac)
   (javax.crypto.spec SecretKeySpec)))

(set! *warn-on-reflection* true)

(def ^:private ^:const algorithm "HmacSHA256")

(def ^:private ^:const tag-length 32)

(defn- mac ^Mac [^String secret]
  (doto (Mac/getInstance algorithm)
    (.init (SecretKeySpec. (.getBytes secret StandardCharsets/UTF_8) algorithm))))

(defn- tag ^bytes [secret ^bytes bs offset length]
  (let [mac (mac secret)]
    (.update mac bs (int offset) (int length))
    (.doFinal mac)))

(defn seal
  "Returns the message with its seal; secret: nil for none."
  ^bytes [secret ^bytes message]
  (let [head (if secret (inc (long tag-length)) 1)
        sealed (byte-array (+ head (alength message)))]
    (System/arraycopy message 0 sealed head (alength message))
    (when secret
      (aset sealed 0 (byte 1))
      (System/arraycopy (tag secret message 0 (alength message)) 0 sealed 1 tag-length))
    sealed))

(defn- genuine? [secret ^bytes sealed]
  (let [head (inc (long tag-length)), length (- (alength sealed) head)]
    (and (<= 0 length)
         (MessageDigest/isEqual (tag secret sealed head length)
                                (Arrays/copyOfRange sealed 1 head)))))

(defn open
  "Returns the message, or nil where its seal is none of this secret's."
  ^bytes [secret ^bytes sealed]
  (let [sealed? (= 1 (aget sealed 0))]
    (cond
      (and secret sealed? (genuine? secret sealed))
      (Arrays/copyOfRange sealed (int (inc (long tag-length))) (alength sealed))
      (not (or secret sealed?)) (Arrays/copyOfRange sealed 1 (alength sealed)))))

(ns thrum.cluster.impl.wire
  "Requests and answers as bytes. A request is :run, :cancel, :alive, :status or :waits; an answer
  :done, :failed, :draining, :stopped or :refused."
  {:no-doc true}
  (:require
   [thrum.cluster.impl.codec :as codec])
  (:import
   (java.io ByteArrayInputStream ByteArrayOutputStream DataInputStream DataOutputStream)))

(set! *warn-on-reflection* true)

(def ^:const version "Of the protocol: the first byte of every request." 1)

(def ^:private ops [:run :cancel :alive :status :waits])

(def ^:private statuses [:done :failed :draining :stopped :refused])

;; Requests

(defn- request-bytes
  "Returns a request as bytes; write-rest!: writes what follows its head to a DataOutputStream."
  ^bytes [op from write-rest!]
  (let [bytes (ByteArrayOutputStream. 256)]
    (doto (DataOutputStream. bytes)
      (.writeByte version)
      (.writeByte (.indexOf ^java.util.List ops op))
      (.writeUTF from)
      (write-rest!))
    (.toByteArray bytes)))

(defn run
  "Returns the request to call the function on each of the items, vectors of arguments, one after
  the other. remaining-ms: until the deadline, or nil; drop?: the results are not wanted. Throws
  :thrum/invalid where an argument cannot be carried."
  [{:keys [from run function code items remaining-ms drop?]}]
  (request-bytes :run from
    (fn [^DataOutputStream out]
      (doto out
        (.writeLong run)
        (.writeLong (or remaining-ms -1))
        (.writeBoolean (boolean drop?))
        (.writeUTF function)
        (.writeUTF code)
        (codec/write! (str "the arguments of " function) items)))))

(defn cancel
  "Returns the request to stop a run."
  [from run]
  (request-bytes :cancel from #(.writeLong ^DataOutputStream % run)))

(defn plain
  "Returns the request :alive, which extends the caller's lease and asks which of its runs are under
  way, :status, or :waits, which asks a caller whether it waits for an answer of this node."
  [op from]
  (request-bytes op from identity))

(defn- rest-of-run [^DataInputStream in]
  (let [run (.readLong in), remaining-ms (.readLong in)]
    {:run run
     :remaining-ms (when-not (neg? remaining-ms) remaining-ms)
     :drop? (.readBoolean in)
     :function (.readUTF in)
     :code (.readUTF in)
     :items in}))

(defn request
  "Returns the request that the bytes are, as {:op op, :from node, ...}; of a :run the :items are a
  stream for `items`. Of another version it returns {:op :version, :theirs n}."
  [^bytes bs]
  (let [in (DataInputStream. (ByteArrayInputStream. bs))
        theirs (.readByte in)]
    (if (not= version theirs)
      {:op :version, :theirs theirs}
      (let [op (nth ops (.readByte in))]
        (merge {:op op, :from (.readUTF in)}
               (case op
                 :run (rest-of-run in)
                 :cancel {:run (.readLong in)}
                 nil))))))

(defn items
  "Returns the items of a :run."
  [request]
  (codec/read! (:items request)))

;; Answers

(defn result
  "Returns the result of a call of the function as bytes, a part of an answer. Throws :thrum/invalid
  where it cannot be carried, and what its realisation throws."
  ^bytes [function x]
  (codec/->bytes (str "the result of " function) x))

(defn results
  "Returns the results whose bytes an answer has; nil for one that was not wanted."
  [parts]
  (mapv #(some-> % codec/<-bytes) parts))

(defn answer
  "Returns the answer as bytes; x: what belongs to it. Throws :thrum/invalid where it cannot be
  carried; what: a name for it."
  ^bytes [status what x]
  (let [out (ByteArrayOutputStream. 256)]
    (.write out (int (.indexOf ^java.util.List statuses status)))
    (codec/write! out what x)
    (.toByteArray out)))

;; The only records of an answer are those of a failure, which must not hide it; results are bytes.
(defn answered
  "Returns [status x] for the bytes of an answer."
  [^bytes bs]
  (let [in (ByteArrayInputStream. bs)]
    [(nth statuses (.read in)) (codec/read-leniently! in)]))

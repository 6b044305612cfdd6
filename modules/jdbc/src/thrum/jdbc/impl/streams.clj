(ns thrum.jdbc.impl.streams
  "Streams of large objects, each call of which may block."
  {:no-doc true}
  (:import
   (java.io FilterInputStream FilterOutputStream FilterReader FilterWriter InputStream OutputStream Reader Writer)
   (java.nio CharBuffer)))

(set! *warn-on-reflection* true)

(defn- input [^InputStream in run clean-up]
  (proxy [FilterInputStream] [in]
    (read
      ([] (run #(.read in)))
      ([bytes] (run #(.read in ^bytes bytes)))
      ([bytes start n] (run #(.read in ^bytes bytes (int start) (int n)))))
    (skip [n] (run #(.skip in (long n))))
    (available [] (run #(.available in)))
    (mark [n] (run #(.mark in (int n))))
    (reset [] (run #(.reset in)))
    (close [] (clean-up #(.close in)))))

(defn- output [^OutputStream out run clean-up]
  (proxy [FilterOutputStream] [out]
    (write
      ([x] (run #(if (bytes? x) (.write out ^bytes x) (.write out (int x)))))
      ([bytes start n] (run #(.write out ^bytes bytes (int start) (int n)))))
    (flush [] (run #(.flush out)))
    (close [] (clean-up #(.close out)))))

(defn- reader [^Reader in run clean-up]
  (proxy [FilterReader] [in]
    (read
      ([] (run #(.read in)))
      ([x] (run #(if (instance? CharBuffer x)
                   (.read in ^CharBuffer x)
                   (.read in ^chars x))))
      ([chars start n] (run #(.read in ^chars chars (int start) (int n)))))
    (skip [n] (run #(.skip in (long n))))
    (ready [] (run #(.ready in)))
    (mark [n] (run #(.mark in (int n))))
    (reset [] (run #(.reset in)))
    (close [] (clean-up #(.close in)))))

(defn- writer [^Writer out run clean-up]
  (proxy [FilterWriter] [out]
    (write
      ([x] (run #(cond
                   (string? x) (.write out ^String x)
                   (int? x) (.write out (int x))
                   :else (.write out ^chars x))))
      ([x start n] (run #(if (string? x)
                           (.write out ^String x (int start) (int n))
                           (.write out ^chars x (int start) (int n))))))
    (flush [] (run #(.flush out)))
    (close [] (clean-up #(.close out)))))

(def classes "Streams, readers and writers." [InputStream OutputStream Reader Writer])

(defn guarded
  "Returns the stream with every call made by (run f), and its close by (clean-up f)."
  [x run clean-up]
  (condp instance? x
    InputStream (input x run clean-up)
    OutputStream (output x run clean-up)
    Reader (reader x run clean-up)
    Writer (writer x run clean-up)))

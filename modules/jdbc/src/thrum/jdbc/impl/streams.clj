(ns thrum.jdbc.impl.streams
  "Streams of large objects, each call of which may block."
  {:no-doc true}
  (:import
   (java.io FilterInputStream FilterOutputStream FilterReader FilterWriter InputStream OutputStream Reader Writer)))

(set! *warn-on-reflection* true)

(defn- input [^InputStream in run]
  (proxy [FilterInputStream] [in]
    (read
      ([] (run #(.read in)))
      ([bytes] (run #(.read in ^bytes bytes)))
      ([bytes start n] (run #(.read in ^bytes bytes (int start) (int n)))))
    (skip [n] (run #(.skip in (long n))))
    (close [] (run #(.close in)))))

(defn- output [^OutputStream out run]
  (proxy [FilterOutputStream] [out]
    (write
      ([x] (run #(if (bytes? x) (.write out ^bytes x) (.write out (int x)))))
      ([bytes start n] (run #(.write out ^bytes bytes (int start) (int n)))))
    (flush [] (run #(.flush out)))
    (close [] (run #(.close out)))))

(defn- reader [^Reader in run]
  (proxy [FilterReader] [in]
    (read
      ([] (run #(.read in)))
      ([chars] (run #(.read in ^chars chars)))
      ([chars start n] (run #(.read in ^chars chars (int start) (int n)))))
    (skip [n] (run #(.skip in (long n))))
    (close [] (run #(.close in)))))

(defn- writer [^Writer out run]
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
    (close [] (run #(.close out)))))

(def classes "Streams, readers and writers." [InputStream OutputStream Reader Writer])

(defn guarded
  "Returns the stream with every call made by (run f)."
  [x run]
  (condp instance? x
    InputStream (input x run)
    OutputStream (output x run)
    Reader (reader x run)
    Writer (writer x run)))

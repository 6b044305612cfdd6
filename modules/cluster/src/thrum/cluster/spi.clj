(ns thrum.cluster.spi
  "What a cluster asks of its engine: the members that are there, and bytes to one of them and back.

  An engine is started by a function of one map: {:node name, :handler f, ...} and the options of
  join! that say where. handler: a function from a request to its answer, both bytes. It blocks; the
  engine calls it on a virtual thread of its own for every request. Where it throws, the invoke that
  waits for the answer fails. What the function returns satisfies Engine. It throws, with nothing
  left behind, where it cannot start. It is called on a thread of its own, with the bindings of the
  one that calls join!, but neither in its scope nor in its deadline. An interrupt of that one is
  passed on; an engine that is returned after it is closed."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(defprotocol Engine
  (workers [engine]
    "Returns the names of the members that run work, this node's too if it is one. Asked before
    every run: it must be cheap.")
  (invoke [engine node request]
    "Sends the request, bytes, to another node. Returns a CompletableFuture of the answer, bytes. It
    fails when no answer can come any more: the node has died, has left or does not take it. Does
    not wait for the node, and leaves the calling thread's interrupt as it is.")
  (lost? [engine node]
    "Returns whether the node, a member or a caller, is not, or no longer, in the cluster.")
  (close! [engine]
    "Leaves the cluster. Answers that are waited for fail. Called once."))

(def ^:private caller-mark "~")

(defn caller-name
  "Returns the name of a node that runs no work."
  [name]
  (str caller-mark name))

(defn worker?
  "Returns whether a node runs work, by its name."
  [node]
  (not (str/starts-with? node caller-mark)))

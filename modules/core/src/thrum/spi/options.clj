(ns thrum.spi.options
  "Checks options and arguments. An option is a row, and the row that checks it also documents it.
  Tables of rows are maps by key. A row is a map:

    :check   - a predicate of the value
    :accepts - what it accepts, as text
    :doc     - what it means, as text
    :default - as text; in a table from which it is filled in, as run-server's, the value itself
    :secret? - true if messages and ex-data must not show the value
    :needs   - in run-server's table, the capability that the engine must have for it"
  (:require
   [thrum.impl.options :as options]
   [thrum.impl.spelling :as spelling]))

(set! *warn-on-reflection* true)

(def rows
  "The rows of thrum.core's options by key."
  options/rows)

(def rows-at
  "By the :at of forms, :fork for instance: the rows in the words of those forms."
  options/rows-at)

(def forms
  "What takes options in thrum.core: maps of :form, a keyword of its name; :written - as it is
  written; :as - the others that take the same in the same position; :options - the keys; :at -
  their key in rows-at, or nil."
  options/forms)

(defn check
  "Returns the options, a map, when each key is one of ks (default: all of rows) and each value is
  accepted. Throws :thrum/invalid otherwise; an unknown key's message names the known ones."
  ([rows options] (options/check rows options (keys rows)))
  ([rows options ks] (options/check rows options ks)))

(defn nearest
  "Returns the key among ks that is spelled most like k."
  [k ks]
  (spelling/nearest k ks))

(defn function
  "Returns f if it can be called; throws :thrum/invalid otherwise."
  [f]
  (options/function f))

(defn instance
  "Returns x if it is of the class; throws :thrum/invalid otherwise. expected: what x should be, for
  the message."
  [class expected x]
  (options/instance class expected x))

(defn reducible
  "Returns x if it can be reduced or be a seq, or is nil; throws :thrum/invalid otherwise."
  [x]
  (first (options/reducibles [x])))

(defn fan-out
  "Returns the options of thrum.core/pmap for its first argument, a limit or a map, with a :window.
  Throws :thrum/invalid."
  [limit-or-options]
  (options/fan-out limit-or-options (options/keys-of :pmap)))

(defn leading
  "Returns [options body] for a macro's forms. Options are a map or a symbol that stands before the
  body; a keyword there is taken for them too, so that check refuses it."
  [forms]
  (options/leading forms))

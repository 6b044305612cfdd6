(ns thrum.cluster
  "Core's bounded map over the members of a cluster: the same window, order, laziness, errors and
  cancellation, with each call of the function on one member. Use it as
  (require '[thrum.cluster :as cluster])."
  (:refer-clojure :exclude [pmap])
  (:require
   [thrum.cluster.impl.batch :as batch]
   [thrum.cluster.impl.function :as function]
   [thrum.cluster.impl.node :as node]
   [thrum.core :as t]))

(set! *warn-on-reflection* true)

(defn join!
  "Joins a cluster and returns this node of it, a java.lang.AutoCloseable.

      (join! {:allow #{'my.ns}})       ; a member: runs the functions of these namespaces
      (join! {})                       ; a caller: runs nothing

  Options:
    :cluster - the name of the cluster; nodes of another name are not seen (a string that is
      not blank; default thrum)
    :name - the name of this node (letters, digits, dots and dashes; default the host's with
      the process's id)
    :allow - the namespaces whose functions this node runs; they are loaded here. Without them
      the node is a caller (a set of symbols that name namespaces; default none)
    :host - the address to bind. Any that is not loopback needs :tls and a :secret (an
      address; default 127.0.0.1)
    :port - the port to bind; the one 10000 above it is for the detection of failures (an
      integer from 1 to 55535; default 7800 for a member, the first free one from 7900 for a
      caller)
    :seeds - where members are (a vector of addresses, [\"host:port\" ...]; default this
      host's port 7800)
    :dns - a name whose addresses are the members' (a host name)
    :secret - what all nodes share: it seals each request and answer (a string that is not
      blank)
    :tls - the keys of this node, and the certificates that it trusts (a map with :key-store,
      :key-password, :trust-store and :trust-password)
    :wrap - on a member: as thrum.core/*wrap*, around each request that it runs (a function
      from thunk to thunk, or nil; default none)
    :lease-ms - what a member runs for a caller is stopped when nothing has come from the
      caller for so many ms (an integer from 1000; default 10000)
    :heartbeat-ms - a node is lost when nothing has come from it for so many ms (an integer
      from 200; default 10000)
    :members-timeout-ms - how many ms a call waits where no member takes it (a positive
      integer; default 30000)
    :drain-timeout-ms - how many ms close! waits for what runs here (an integer, not negative;
      default 10000)
    :engine - what starts the engine, see thrum.cluster.spi (a function of the settings;
      default Infinispan's)

  The stores of :tls are paths of PKCS12 files, which are read at the join. Both sides are asked for
  a certificate.

  Throws :thrum/invalid, :thrum/refused where a member has another secret or version,
  InterruptedException, and what the engine throws, Infinispan's :thrum/not-joined; nothing is left
  behind then."
  [options]
  (node/join! options))

(defn close!
  "Leaves the cluster: takes no new work, waits up to :drain-timeout-ms until what runs here has
  ended and its callers have the answers, and stops the rest. Then calls of this node fail with
  :thrum/closed; until then what runs here may call the cluster through it. An interrupt does not
  cut it short. Idempotent: any call returns when the node has left. .close does the same."
  [cluster]
  (node/close! cluster))

(defn drain!
  "Takes no new work from now on, and stays in the cluster. Returns whether all that ran here has
  ended within timeout-ms, an integer, not negative. Throws :thrum/invalid."
  [cluster timeout-ms]
  (node/drain! cluster timeout-ms))

(defn status
  "Returns {:node name, :members [{:member name, :in-flight n, :running n, ...} ...], :re-runs n}.
  in-flight: of this node's calls; :running, :finished and :draining? as the member says, absent
  where it does not answer within a second. Throws :thrum/closed, and :thrum/refused where a member
  has another secret or version."
  [cluster]
  (node/status cluster))

;; The map family

(defn- checked
  "Returns {:options of core's, :batch n or nil, :caller, :function} for the arguments of a form."
  [form cluster limit v]
  (assoc (batch/options form limit) :caller (node/caller cluster) :function (function/reference v)))

(defn- lazily [core-form form cluster limit v colls]
  (let [{:keys [options batch caller function]} (checked form cluster limit v)]
    (if batch
      (batch/expanded
        (core-form options (batch/of-batch caller function) (batch/batches batch colls)))
      (apply core-form options (batch/of-one caller function) colls))))

(defn- transducer [core-form form cluster limit v]
  (let [{:keys [options batch caller function]} (checked form cluster limit v)]
    (if batch
      (comp (map vector)
            (partition-all batch)
            (core-form options (batch/of-whole-batch caller function))
            cat)
      (core-form options (batch/of-one caller function)))))

(defn pmap
  "As thrum.core/pmap, over the cluster: calls the function that the var holds on the members, at
  most `limit` calls at once.

      (with-open [c (cluster/join! {})]
        (run! store (cluster/pmap c 512 #'my.ns/download urls)))

  v: a public var of a namespace that the members allow. Its arguments and results are data. The
  members have the same source. Dynamic bindings do not travel; what is left of the caller's
  deadline does, and a cancel does.

  limit: as in thrum.core/pmap, a positive integer or the map of its options, which are those of
  the caller's tasks: each waits for a member. With :batch n, n items travel together, and the
  member calls the function on one after the other; :item-timeout-ms goes without it.

  Each input has exactly one result. The function is called at least once for it: where a member is
  lost, what it ran is run again on another, so it must be idempotent; at most 3 times, then
  :thrum/lost is thrown. An item with which two members were lost runs alone; if the third is lost
  too, the item fails with :thrum/poison. Where no member takes work for :members-timeout-ms,
  :thrum/no-members is thrown. A refusal of a member is :thrum/refused. A throwable of the function
  arrives as the same class, with its message, data, causes and trace; where such a one cannot be
  made here, as an ex-info of type :thrum/remote, with the :class. One of that type with the :member
  is suppressed on it."
  ([cluster limit v] (transducer t/pmap :pmap cluster limit v))
  ([cluster limit v coll & colls]
   (lazily t/pmap :pmap cluster limit v (cons coll colls))))

(defn upmap
  "As pmap, in the order of completion."
  ([cluster limit v] (transducer t/upmap :upmap cluster limit v))
  ([cluster limit v coll & colls]
   (lazily t/upmap :upmap cluster limit v (cons coll colls))))

(defn pmap-tasks
  "As thrum.core/pmap-tasks over the cluster: the elements are tasks, each of which waits for its
  call; see pmap. Without :batch."
  ([cluster limit v]
   (t/pmap-tasks (batch/named :pmap-tasks limit)
                 (batch/of-one (node/caller cluster) (function/reference v))))
  ([cluster limit v coll & colls]
   (apply t/pmap-tasks
          (batch/named :pmap-tasks limit)
          (batch/of-one (node/caller cluster) (function/reference v))
          coll
          colls)))

(defn pmapv
  "As thrum.core/pmapv over the cluster; limit as there. When it returns or throws, nothing of its
  own is running on any member that can be reached."
  [cluster limit v coll & colls]
  (let [{:keys [options batch caller function]} (checked :pmapv cluster limit v)
        colls (cons coll colls)]
    (if batch
      (into []
            cat
            (t/pmapv options
                     (batch/of-whole-batch caller function)
                     (batch/eager-batches batch colls)))
      (apply t/pmapv options (batch/of-one caller function) colls))))

(defn prun!
  "As thrum.core/prun! over the cluster; limit as there. The results stay on the members."
  [cluster limit v coll]
  (let [{:keys [options batch caller function]} (checked :prun! cluster limit v)]
    (t/prun! options
             (batch/of-whole-batch caller (assoc function :drop? true))
             (batch/eager-batches (or batch 1) [coll]))))

(ns thrum.scope-model
  "A pure model of scopes, for thrum.program. It knows no threads: it evaluates the tree for given
  cuts, {scope {:at ms, :reason r, :order n}}, the moments from which the work of a scope is
  cancelled; the earliest cut that this calls for is added, until nothing calls for another.

  A step is {:at ms, :value v} or {:at ms, :thrown x}; with :by, the order of the cut that ended it
  at that instant, if one did, :behind, after how many ends of tasks at that instant it came, if
  after any, and :events, what happened meanwhile. env: {:cuts, :chain - the
  scopes whose cancel reaches the work, the nearest first, :moment - its deadline; by scope :chains,
  :moments and :on-error; by id :tasks}.")

(set! *warn-on-reflection* true)

;; Cuts

(defn- cut-of
  "Returns the first cut that reaches the chain, not after the moment at, or nil."
  ([env chain] (cut-of env chain Long/MAX_VALUE))
  ([{:keys [cuts]} chain at]
   (first (sort-by (juxt :at :order) (filter #(<= (:at %) at) (keep cuts chain))))))

(defn- cancelled [{:keys [reason]}]
  {:kind :cancelled, :reason reason, :casualty true})

(def ^:private closed {:kind :closed, :casualty true})

(defn- cut! [scope at reason]
  {:event :cut, :scope scope, :at at, :reason reason})

(defn- met
  "Returns the first cut of the chain that came before the step's end; of those at the same instant,
  one that caused it."
  [{:keys [cuts]} chain {:keys [at by]}]
  (->> (keep cuts chain)
       (filter #(or (< (:at %) at)
                    (and (= (:at %) at) by (<= (:order %) by))))
       (sort-by (juxt :at :order))
       first))

;; Steps

(defn- wait-until
  "A wait for the moment end, or for what comes then; cause: the order of the cut that makes it end
  then, or nil."
  ([env at end] (wait-until env at end -1))
  ([env at end cause]
   (let [{:keys [order] :as cut} (cut-of env (:chain env))]
     (if (and cut (neg? (compare [(:at cut) order] [end cause])))
       {:at (max at (:at cut)), :thrown (cancelled cut), :by order}
       {:at end}))))

(defn- caused
  "Returns the step with the last :by and :behind of those of the steps that end when it does."
  [{:keys [at], :as step} steps]
  (let [last-of #(some->> (seq (keep % (filter (comp #{at} :at) steps))) (apply max))]
    (assoc step :by (last-of :by) :behind (last-of :behind))))

(defn- after
  "Returns the step, which came after another."
  [step before]
  (-> (caused step [before step])
      (assoc :events (concat (:events before) (:events step)))))

(defn- and-then
  "Goes on with f of the time, unless the step threw."
  [step f]
  (if (:thrown step)
    step
    (after (f (:at step)) step)))

(defmulti ^:private op (fn [node _env _at] (:op node)))

(defn- step [node env at]
  (if-some [pause (:pause node)]
    (and-then (wait-until env at (+ at pause)) #(op node env %))
    (op node env at)))

(defmethod op :sleep [{:keys [id]} _ at]
  {:at at, :value id})

(defmethod op :throw [{:keys [id]} _ at]
  {:at at, :thrown {:kind :failure, :id id}})

(defmethod op :cancel [{:keys [id scope]} {:keys [cuts]} at]
  {:at at, :value id, :by (:order (cuts scope)), :events [(cut! scope at id)]})

(defmethod op :do [{:keys [nodes]} env at]
  (reduce (fn [before node] (and-then before #(step node env %))) {:at at} nodes))

(defmethod op :finally
  [{:keys [body cleanup]} env at]
  (let [before (step body env at)
        cleaned (step cleanup env (:at before))]
    (-> (if (:thrown cleaned)
            cleaned
            (assoc before
              :at (:at cleaned)
              :by (:by cleaned)
              :behind (:behind cleaned)
              :events (:events cleaned)))
        (after before))))

(defmethod op :use [{:keys [id scope] :as node} {:keys [chains] :as env} at]
  (let [too-late (cut-of env (chains scope) (dec at))]
    (merge {:at at, :events [(assoc node :event :use, :at at, :too-late too-late)]}
           (if too-late {:thrown closed} {:value id}))))

(defn- cause
  "Returns the order of the cut that settled the task, or nil."
  [{:keys [cancelled by]}]
  (if cancelled (:order cancelled) by))

(defn- outcome-of [{:keys [thrown cancelled value]}]
  (if thrown
    {:thrown (assoc thrown :wrapped (not cancelled))}
    {:value value}))

(defmethod op :join [{:keys [joins]} env at]
  (let [{:keys [settled behind] :as task} (get-in env [:tasks joins])]
    (cond
      (nil? task) {:at at}
      (<= settled at) (assoc (outcome-of task) :at at)
      :else (and-then (wait-until env at settled (or (cause task) -1))
                      #(assoc (outcome-of task)
                              :at %
                              :by (cause task)
                              :behind (inc (or behind 0)))))))

;; Forks

(defn- in-time
  "A fork keeps the deadline of its caller."
  [node {:keys [moment]} inherited]
  (if (and moment (or (nil? inherited) (< moment inherited)))
    {:op :deadline, :id [:deadline (:id node)], :moment moment, :body (:task node)}
    (:task node)))

(defn- ended
  "Returns how a task ended: {:settled ms, :at ms, :value v | :thrown x, :cancelled cut, :failed
  x}."
  [env chain {:keys [thrown], :as run}]
  (let [cut (met env chain run)]
    (cond-> (assoc (select-keys run [:at :by :behind :value :thrown]) :settled (:at run))
      cut (assoc :settled (:at cut) :cancelled cut :thrown (cancelled cut))
      (and thrown (not (and cut (:casualty thrown)))) (assoc :failed thrown))))

(defn- start
  [{:keys [id scope daemon?], :as node} {:keys [chains moments on-error], :as env} start-at]
  (let [chain (chains scope)
        run (step (in-time node env (moments scope))
                  (assoc env :chain chain :moment (moments scope))
                  start-at)
        {:keys [at failed cancelled], :as task} (ended env chain run)]
    [task
     (cond-> (conj (:events run)
                   (merge task
                          {:event :fork, :id id, :scope scope, :daemon? daemon?, :start start-at}))
       (and failed (not cancelled) (not (#{:collect :keep} (on-error scope))))
       (conj (cut! scope at :sibling-failed)))]))

(defmethod op :fork [{:keys [id scope] :as node} env at]
  (if (cut-of env ((:chains env) scope) (dec at))
    {:at at, :thrown closed}
    (let [[task events] (start node env at)]
      (and-then {:at at, :events events}
                #(step (:then node) (assoc-in env [:tasks id] task) %)))))

;; Forms

(defn- quiet-from
  "Returns the first moment from at on when none of the forks runs."
  [forks at]
  (if-some [running (seq (filter #(and (<= (:start %) at) (< at (:at %))) forks))]
    (recur forks (apply max (map :at running)))
    at))

(defn- own-cut
  "Returns the cut that the step in the form met, if it was the form's own."
  [env id step]
  (let [cut (met env [id] step)]
    (when (not= :ended (:reason cut)) cut)))

(defn- await-forks
  "Returns the body's step, later: when its forks have ended or the outer work was cancelled."
  [{:keys [at thrown casualty] :as body} env id outer awaited]
  (if (or thrown casualty (own-cut env id body))
    body
    (let [quiet (quiet-from awaited at), cut (cut-of env outer (dec quiet))]
      (if (and cut (< at quiet))
        {:at (max at (:at cut)), :casualty (cancelled cut), :by (:order cut)}
        (caused (assoc body :at quiet) (cons body awaited))))))

(defn- classified
  "Returns the step with a :casualty instead of what was :thrown because of a cancel."
  [{:keys [thrown] :as body} env id outer]
  (if (and (:casualty thrown) (or (own-cut env id body) (met env outer body)))
    (-> body (dissoc :thrown) (assoc :casualty thrown))
    body))

(defn- as-cancelled [casualty cut]
  (if (and (= :cancelled (:kind casualty)) (not (:wrapped casualty)))
    casualty
    (cancelled cut)))

(defn- in-time-order [steps]
  (sort-by (juxt :at #(or (:by %) -1) #(or (:behind %) 0)) steps))

(defn- verdict
  "Returns what the form answers, {:value v} or {:thrown x}."
  [{:keys [id fallback? deadline on-error]} {:keys [thrown casualty value], :as body}
   {:keys [forks own-cut outer-cut fired?]}]
  (let [harmed (some #(and (:cancelled %) (not (:daemon? %))) forks)
        failures (map :failed
                      (in-time-order (concat (when (not= :keep on-error) (filter :failed forks))
                                             (when thrown [(assoc body :failed thrown)]))))]
    (cond (seq failures) {:thrown (first failures)}
          (and fired? (or casualty harmed))
          (if fallback?
            {:value [:fallback id]}
            {:thrown {:kind :timeout, :ms deadline, :casualty (some? casualty)}})
          casualty {:thrown (as-cancelled casualty (or own-cut outer-cut))}
          (and outer-cut harmed) {:thrown (cancelled outer-cut)}
          :else {:value value})))

(defn- closing
  "Returns what the form answers after its closes, which are the uses, the last first."
  [answer uses]
  (let [failed (first (filter :fails? uses))]
    (if (and failed (not (:thrown answer)))
      {:thrown {:kind :failure, :id (:id failed)}}
      answer)))

(defn- of-scope [event id events]
  (filter #(and (= event (:event %)) (= id (:scope %))) events))

(defn- within
  "Returns env for the body of the form, with the form's own moment only if it comes before the
  inherited."
  [{:keys [id on-error]} env outer own inherited]
  (let [chain (cons id outer), moment (or own inherited)]
    (-> env
        (assoc :chain chain, :moment moment)
        (update :chains assoc id chain)
        (update :moments assoc id moment)
        (update :on-error assoc id on-error))))

(defn- form
  "The step of a form whose deadline is the moment, or nil."
  [{:keys [id op] :as node} env at moment]
  (let [shield? (= :shield op)
        outer (when-not shield? (:chain env))
        inherited (when-not shield? (:moment env))
        own (when (and moment (or (nil? inherited) (< moment inherited))) moment)
        {:keys [events] :as body} (step (:body node) (within node env outer own inherited) at)
        forks (of-scope :fork id events)
        {over :at :as body} (-> (classified body env id outer)
                                (await-forks env id outer (remove :daemon? forks)))
        cut (own-cut env id body)
        end (apply max over (map :at forks))
        uses (sort-by (comp - :at) (remove :too-late (of-scope :use id events)))]
    (-> (verdict node body {:forks forks, :own-cut cut, :outer-cut (met env outer body)
                            :fired? (and own (= :thrum/timeout (:reason cut)))})
        (closing uses)
        (assoc :at end)
        (caused (cons body forks))
        (assoc :events (concat events
                               (map #(assoc % :event :close, :at end) uses)
                               [(cut! id over :ended)]
                               (when own [(cut! id own :thrum/timeout)]))))))

(defn- enter [node env at moment]
  (if-some [cut (cut-of env (:chain env) at)]
    {:at at, :thrown (cancelled cut), :by (:order cut)}
    (form node env at moment)))

(defmethod op :scope [{:keys [deadline] :as node} env at]
  (enter node env at (some-> deadline (+ at))))

(defmethod op :timeout [{:keys [deadline] :as node} env at]
  (enter node env at (+ at deadline)))

(defmethod op :deadline [{:keys [moment] :as node} env at]
  (enter node env at moment))

(defmethod op :shield [{:keys [deadline] :as node} env at]
  (form node env at (+ at deadline)))

;; The whole

(defn- causality
  "Of what happens at one instant, failures follow from cancels, outer ones from inner ones, and
  ends from failures."
  [{:keys [at reason scope]}]
  [at ({:sibling-failed 1, :ended 2} reason 0) (if (int? scope) (- scope) 0)])

(defn- first-cut
  "Returns the earliest cut that the step calls for, or nil."
  [{:keys [events]} cuts]
  (->> events
       (filter #(and (= :cut (:event %)) (not (cuts (:scope %)))))
       (sort-by causality)
       first))

(defn outcome
  "Returns the step of the program."
  [program]
  (loop [cuts {}]
    (let [step (step program {:cuts cuts} 0)]
      (if-some [{:keys [scope] :as cut} (first-cut step cuts)]
        (recur (assoc cuts scope (assoc cut :order (count cuts))))
        step))))

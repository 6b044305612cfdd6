(ns thrum.throwing
  "Catching what a form throws, for tests that look at it.")

(defmacro thrown
  "Returns what the body throws; a test's failure if it returns."
  [& body]
  `(try
     (let [value# (do ~@body)]
       (ex-info "returned instead of throwing" {:type ::returned, :value value#}))
     (catch Throwable t#
       t#)))

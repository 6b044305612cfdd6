(ns thrum.lab.checkout
  "The checkout of Thrum that the lab runs in, and the class paths that its ./cljw resolves: of what
  only one experiment needs, and some machines cannot have."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.trouble :as trouble])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- checkout?
  [^File folder]
  (let [[cljw deps] (map #(io/file folder %) ["cljw" "deps.edn"])]
    (and (.canExecute ^File cljw)
         (.isFile ^File deps)
         (str/includes? (slurp deps) "thrum.lab.main"))))

(defn folder
  "Returns the path of the checkout that the folder is in in which this JVM was started; nil where
  it is in none."
  []
  (->> (iterate File/.getParentFile (.getCanonicalFile (io/file (System/getProperty "user.dir"))))
       (take-while some?)
       (some #(when (checkout? %) (str %)))))

(defn class-path!
  "Returns {:class-path text}, of the checkout in folder under an alias of its deps.edn, as -A:alias
  or, without what the checkout itself depends on, as -T:alias; {:problem words} where that cannot
  be resolved within so many ms. What is missing is downloaded."
  [folder alias timeout-ms]
  (try
    (let [{:keys [exit output]} (child/run-to-end! ["./cljw" "-Spath" alias]
                                                   {:folder folder, :errors-apart? true}
                                                   timeout-ms)]
      (if (and (zero? exit) (not (str/blank? output)))
        {:class-path (str/trim output)}
        {:problem "no repository that can be reached has it"}))
    (catch InterruptedException e (throw e))
    (catch Exception e
      {:problem (case (:type (ex-data e))
                  :thrum/lab-silent
                  (str "no repository had answered after " (quot timeout-ms 1000) " s")
                  (trouble/sentence e))})))

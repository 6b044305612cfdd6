(ns thrum.watch.impl.flight
  "Events of the JDK's Flight Recorder: thrum.Task and thrum.Scope, and what thrum.Request is made
  of. They are off unless a recording enables them. Loaded only where the JDK has the recorder.

  An event is made when the recorder is first used: to make one begins its use, which costs some
  hundred ms and some MB."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.spi :as spi]
   [thrum.spi.watch :as watch]
   [thrum.watch.impl.snapshot :as snapshot])
  (:import
   (jdk.jfr AnnotationElement Category Description Enabled Event EventFactory EventType FlightRecorder FlightRecorderListener Label Name StackTrace ValueDescriptor)))

(set! *warn-on-reflection* true)

(defn- annotation [^Class type ^Object value]
  (AnnotationElement. type value))

(defn- field [[name type]]
  (ValueDescriptor. type name [(annotation Label (str/capitalize name))]))

;; Looking the type up costs more than asking it whether it is enabled.
(deftype Kind [^EventFactory factory ^EventType type])

(defn kind
  "Registers the event of that name, with fields, a vector of [name type]. Returns what begin!
  takes."
  [name description fields]
  (let [factory (EventFactory/create
                  [(annotation Name (str "thrum." name))
                   (annotation Label name)
                   (annotation Description description)
                   (annotation Category (into-array String ["Thrum"]))
                   (annotation Enabled false)
                   (annotation StackTrace false)]
                  (mapv field fields))]
    (Kind. factory (.getEventType factory))))

(defn begin!
  "Returns an event that begins now; nil unless a recording has enabled its kind."
  ^Event [^Kind kind]
  (when (.isEnabled ^EventType (.-type kind))
    (doto (.newEvent ^EventFactory (.-factory kind)) .begin)))

(defn end!
  "The event ends now: it is recorded with what (values) returns, in the order of its fields."
  [^Event event values]
  (.end event)
  (when (.shouldCommit event)
    (dorun (map-indexed #(.set event (int %1) %2) (values)))
    (.commit event)))

;; Tasks and scopes

(defn- task []
  (kind "Task" "A task of Thrum's, from its first line to its end, on its thread"
        [["name" String] ["scope" String] ["state" String]]))

(defn- scope []
  (kind "Scope" "A scope of Thrum's, from its begin until all its tasks have ended"
        [["name" String] ["parent" String] ["state" String] ["reason" String]
         ["started" Long/TYPE]]))

(defn- word [x]
  (some-> x name))

;; The facts of a parent take as long as it has children, which come here each.
(defn- parent-name [{:keys [parent]}]
  (some-> parent watch/title :name))

(defn- task-values [thing]
  (let [{:keys [name state] :as facts} (watch/facts thing)]
    [name (parent-name facts) (word state)]))

(defn- scope-values [thing]
  (let [{:keys [name state reason started] :as facts} (watch/facts thing)]
    [name (parent-name facts) (word state) (word (snapshot/reason-shown reason)) (long started)]))

(defn- at-end [event values]
  (fn [thing]
    (try (end! event #(values thing)) (catch Throwable t (spi/uncaught! t)))))

(defn- observer
  "Returns what thrum.spi.watch/observe! takes."
  []
  (let [task (task), scope (scope)]
    (fn [k _]
      (try
        (if (identical? :task k)
          (some-> (begin! task) (at-end task-values))
          (some-> (begin! scope) (at-end scope-values)))
        (catch Throwable t (spi/uncaught! t))))))

(defn on-first-use!
  "Records tasks and scopes once the recorder has been used in this process, where a recording has
  enabled their events; and calls then!, a function of no arguments."
  [then!]
  (FlightRecorder/addListener
    (reify FlightRecorderListener
      (recorderInitialized [_ _]
        (try
          (watch/observe! (observer))
          (then!)
          (catch Throwable t (spi/uncaught! t))))
      (recordingStateChanged [_ _]))))

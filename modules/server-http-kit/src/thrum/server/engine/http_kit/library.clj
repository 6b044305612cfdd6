(ns thrum.server.engine.http-kit.library
  "All that is known of http-kit: public names of its decoder of websockets, looked up when a server
  starts, so that nothing here needs http-kit on the classpath."
  (:import
   (java.lang ReflectiveOperationException)
   (java.lang.reflect Constructor Field InvocationTargetException Method)
   (java.nio ByteBuffer)))

(set! *warn-on-reflection* true)

(def ^:private coordinate "http-kit/http-kit {:mvn/version \"2.9.0\"}")

(defn- class-named ^Class [n]
  (Class/forName (str "org.httpkit.server." n) true (clojure.lang.RT/baseLoader)))

(defn- method ^Method [class n & parameters]
  (.getMethod (class-named class) n (into-array Class parameters)))

(defn- handles
  "Returns what this engine uses of http-kit, by name. Throws ReflectiveOperationException where
  something is not there."
  []
  {:new (.getConstructor (class-named "WSDecoder") (into-array Class [Integer/TYPE]))
   :decode (method "WSDecoder" "decode" ByteBuffer)
   :reset (method "WSDecoder" "reset")
   :data (.getField (class-named "Frame") "data")
   :close-status (method "WebSocketException" "getCloseStatus")})

(defn- absent []
  (ex-info (str "The engine :http-kit needs http-kit on the classpath: add " coordinate)
           {:type :thrum/invalid, :option :engine, :value :http-kit, :needs coordinate}))

(defn- unknown [^Throwable cause]
  (ex-info (str "The engine :http-kit needs http-kit 2.9.0 or a release like it; the one on the"
                " classpath has no " (ex-message cause))
           {:type :thrum/invalid, :option :engine, :value :http-kit, :needs coordinate}
           cause))

(defn on-classpath?
  "True if there is an http-kit of any release."
  []
  (try
    (some? (class-named "HttpServer"))
    (catch ClassNotFoundException _ false)))

(defn library
  "Returns what is used of http-kit, by name. Throws :thrum/invalid where it is not on the
  classpath, or older than 2.9."
  []
  (when-not (on-classpath?) (throw (absent)))
  (try
    (handles)
    (catch ReflectiveOperationException e (throw (unknown e)))))

;; Frames

(def ^:private kinds
  {"TextFrame" :text, "BinaryFrame" :binary, "PingFrame" :ping, "PongFrame" :pong
   "CloseFrame" :close})

(defn- flaw
  "Returns the code for what http-kit's decoder has thrown, [:flaw code]: 1002 where it names none."
  [library ^Throwable t]
  (let [^Method status (:close-status library)
        stated? (instance? (.getDeclaringClass status) t)]
    [:flaw (if stated? (.invoke status t (object-array 0)) 1002)]))

(defn decoder
  "Returns a function of a ByteBuffer that takes a frame, or the beginning of one, from it, and
  returns [kind bytes], kind being :text, :binary, :ping, :pong or :close, [:flaw code] for what is
  no frame, or nil where more is to come."
  [library most-bytes]
  (let [decoder (.newInstance ^Constructor (:new library) (object-array [(int most-bytes)]))]
    (fn [^ByteBuffer bytes]
      (try
        (when-some [frame (.invoke ^Method (:decode library) decoder (object-array [bytes]))]
          (.invoke ^Method (:reset library) decoder (object-array 0))
          [(kinds (.getSimpleName (class frame))) (.get ^Field (:data library) frame)])
        (catch InvocationTargetException e (flaw library (.getCause e)))))))

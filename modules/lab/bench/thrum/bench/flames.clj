(ns thrum.bench.flames
  "Where a server's CPU time goes, as a picture: ./cljw -M:flames ENGINE FILE.svg. The samples are
  the Flight Recorder's, of CPU time, which needs JDK 25 on Linux; what the kernel does counts for
  the method that called it."
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.load :as load]
   [thrum.lab.server-sample :as server-sample]
   [thrum.lab.subject :as subject])
  (:import
   (clojure.lang Compiler)
   (java.io File)
   (java.util List)
   (jdk.jfr.consumer RecordedEvent RecordedFrame RecordingFile)))

(set! *warn-on-reflection* true)

(def ^:private plan
  {:connections 64, :warm-up-seconds 20, :seconds 20, :headers load/browser-headers})

;; The recording

(def ^:private settings
  (str "<configuration version='2.0'><event name='jdk.CPUTimeSample'>"
       "<setting name='enabled'>true</setting><setting name='throttle'>10000/s</setting>"
       "</event></configuration>"))

(defn- jcmd! [{:keys [^Process process]} & words]
  (let [command (into [(str (System/getProperty "java.home") "/bin/jcmd") (str (.pid process))]
                      words)
        jcmd (.start (.inheritIO (ProcessBuilder. ^List command)))]
    (when-not (zero? (.waitFor jcmd))
      (throw (ex-info "The server cannot be recorded" {:command command})))))

(defn- record!
  "Writes what a warm server of the engine does under load into the file."
  [engine ^File settings-file ^File recording]
  (let [server (subject/start! {:engine engine, :way :thrum})]
    (try
      (server-sample/warm-up! server plan)
      (jcmd! server "JFR.start" (str "settings=" settings-file))
      (prn (server-sample/costs server plan))
      (jcmd! server "JFR.dump" "name=1" (str "filename=" recording))
      (finally (child/stop! server)))))

;; The tree: by frame, [samples, tree of those that it called]

(defn- frame-name
  "Returns server.impl.serve/serve! for a function of Thrum's, Socket.read for a method."
  [^RecordedFrame frame]
  (let [method (.getMethod frame), class (.getName (.getType method))]
    (if (str/includes? class "$")
      (str/replace (Compiler/demunge class) #"^thrum\.|--\d+|/fn$" "")
      (str (last (str/split class #"\.")) "." (Compiler/demunge (.getName method))))))

(defn- owner [^RecordedFrame frame]
  (let [class (.getName (.getType (.getMethod frame)))]
    (condp #(str/starts-with? %2 %1) class
      "thrum.lab." :handler
      "thrum." :thrum
      "clojure." :clojure
      "java" :jdk
      "jdk" :jdk
      "sun" :jdk
      :engine)))

(defn- stack
  "Returns the frames of a sample, the outermost first, without what only calls another of the same
  name."
  [^RecordedEvent event]
  (when-some [trace (.getStackTrace event)]
    (->> (.getFrames trace)
         reverse
         (map (juxt frame-name owner))
         dedupe)))

(defn- add [[n callees] [frame & more]]
  [(inc n) (if frame (update callees frame (fnil add [0 {}]) more) callees)])

(defn- tree [^File recording]
  (reduce add [0 {}] (keep stack (RecordingFile/readAllEvents (.toPath recording)))))

;; The picture

(def ^:private colours
  {:thrum "#e8743b", :engine "#5899da", :clojure "#19a979", :jdk "#c8cdd3", :handler "#ed4a7b"})

(def ^:private width 1200.0)
(def ^:private row 17)

(defn- escaped [s]
  (str/escape s {\< "&lt;", \> "&gt;", \& "&amp;"}))

(defn- fitting [s w]
  (let [most (long (/ (- w 4) 6.2))]
    (cond
      (< most 4) ""
      (< most (count s)) (str (subs s 0 (dec most)) "…")
      :else s)))

(defn- boxes
  "Returns [depth x n frame] of each frame that is wide enough to be seen, below a node."
  [total depth x callees]
  (loop [x x, [[frame [n below]] & more] (sort-by key callees), drawn []]
    (cond
      (nil? frame) drawn
      (< (/ n total) 0.002) (recur (+ x n) more drawn)
      :else (recur (+ x n) more (-> (conj drawn [depth x n frame])
                                    (into (boxes total (inc depth) x below)))))))

(defn- drawn [total deepest [depth x n [frame owner]]]
  (let [scale (/ width total), w (* n scale), y (* row (+ 2 (- deepest depth)))]
    (format (str "<g><title>%s, %.1f %%</title><rect x='%.1f' y='%d' width='%.1f' height='%d' "
                 "fill='%s'/><text x='%.1f' y='%d'>%s</text></g>\n")
            (escaped frame) (/ (* 100.0 n) total) (* x scale) y (max 0.5 (- w 0.5)) (dec row)
            (colours owner) (+ 3 (* x scale)) (+ y 12) (escaped (fitting frame w)))))

(defn- legend [i [owner colour]]
  (let [x (+ 4 (* 110 (long i)))]
    (format "<rect x='%d' y='6' width='12' height='12' fill='%s'/><text x='%d' y='16'>%s</text>\n"
            x colour (+ 16 x) (name owner))))

(defn- svg [[total callees]]
  (let [all (boxes total 0 0 callees), deepest (apply max 0 (map first all))]
    (str "<svg xmlns='http://www.w3.org/2000/svg' width='1200' height='" (* row (+ 4 deepest))
         "' font-family='monospace' font-size='10.5'>\n"
         "<rect width='100%' height='100%' fill='white'/>\n"
         (apply str (map-indexed legend colours))
         (apply str (map #(drawn total deepest %) all))
         "</svg>\n")))

(defn -main
  "Draws the flame graph of an engine under load into the file."
  [engine file]
  (let [settings-file (File/createTempFile "thrum" ".jfc")
        recording (File/createTempFile "thrum" ".jfr")]
    (try
      (spit settings-file settings)
      (record! (keyword engine) settings-file recording)
      (spit file (svg (tree recording)))
      (finally (run! File/.delete [settings-file recording])))))

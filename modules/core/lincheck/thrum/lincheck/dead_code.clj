(ns thrum.lincheck.dead-code
  "Takes instructions that nothing reaches out of class files. Clojure's compiler leaves some
  behind, in a method with `locking` above all, and Lincheck 3.7 gives up on a class with one,
  silently as far as its verdict goes: it sees no lock and no field of it (\"Jump edge must be
  produced by the last opcode of the source block\")."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.io File)
   (java.net JarURLConnection)
   (java.nio.file Files)
   (java.util.jar JarEntry)
   (org.objectweb.asm ClassReader ClassWriter)
   (org.objectweb.asm.tree AbstractInsnNode ClassNode InsnList LabelNode MethodNode TryCatchBlockNode)
   (org.objectweb.asm.tree.analysis Analyzer BasicInterpreter)))

(set! *warn-on-reflection* true)

(defn- unreached
  "Returns the instructions of a method that nothing reaches."
  [^String owner ^MethodNode method]
  (let [frames (.analyze (Analyzer. (BasicInterpreter.)) owner method)]
    (filterv some? (map (fn [^AbstractInsnNode instruction frame]
                          (when-not (or frame (instance? LabelNode instruction)) instruction))
                        (.toArray (.instructions method))
                        frames))))

(defn- covers-nothing? [^TryCatchBlockNode block]
  (loop [^AbstractInsnNode node (.start block)]
    (cond
      (identical? node (.end block)) true
      (nat-int? (.getOpcode node)) false
      :else (recur (.getNext node)))))

(defn- tidy-method!
  [owner ^MethodNode method]
  (let [^InsnList instructions (.instructions method)]
    (run! #(.remove instructions ^AbstractInsnNode %) (unreached owner method))
    (.removeIf (.tryCatchBlocks method)
               (reify
                 java.util.function.Predicate
                 (test [_ block] (covers-nothing? block))))))

(defn- tidied ^bytes [^bytes class-file]
  (let [node (ClassNode.), writer (ClassWriter. 0)]
    (.accept (ClassReader. class-file) node ClassReader/EXPAND_FRAMES)
    (run! #(tidy-method! (.name node) %) (.methods node))
    (.accept node writer)
    (.toByteArray writer)))

(defn- write! [file ^bytes content]
  (io/make-parents file)
  (io/copy content (io/file file)))

(defn remove!
  "Rewrites all class files under the folder."
  [folder]
  (doseq [^File file (file-seq (io/file folder)) :when (str/ends-with? (.getName file) ".class")]
    (write! file (tidied (Files/readAllBytes (.toPath file))))))

(defn copy-without!
  "Writes the classes of Clojure's own namespaces to the folder, which is to stand before Clojure's
  jar."
  [folder]
  (with-open [jar (.getJarFile ^JarURLConnection
                               (.openConnection (io/resource "clojure/core__init.class")))]
    (doseq [^JarEntry entry (enumeration-seq (.entries jar))
            :when (re-matches #"clojure/(?!lang/|asm/).*\.class" (.getName entry))]
      (with-open [in (.getInputStream jar entry)]
        (write! (io/file folder (.getName entry)) (tidied (.readAllBytes in)))))))

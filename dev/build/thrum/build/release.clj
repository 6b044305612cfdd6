(ns thrum.build.release
  "Signs the files of a release, and hands them over to a Maven repository."
  (:require
   [clojure.java.io :as io]
   [clojure.tools.build.api :as b]
   [clojure.tools.deps.util.maven :as mvn]
   [thrum.build.artifacts :as artifacts]
   [thrum.build.assemble :as assemble])
  (:import
   (org.eclipse.aether DefaultRepositorySystemSession)
   (org.eclipse.aether.artifact DefaultArtifact)
   (org.eclipse.aether.deployment DeployRequest)
   (org.eclipse.aether.repository RemoteRepository RemoteRepository$Builder)
   (org.eclipse.aether.util.repository AuthenticationBuilder)))

(set! *warn-on-reflection* true)

(defn- sign
  "Returns the detached signature of a file, made by gpg with its default key or with the one that
  is named. Throws where gpg fails."
  [key {:keys [file] :as row}]
  (let [signature (str file ".asc")
        args (concat ["gpg" "--batch" "--yes" "--armor"] (when key ["--local-user" (str key)])
                     ["--output" signature "--detach-sign" file])]
    (when-not (zero? (:exit (b/process {:command-args args})))
      (throw (ex-info (str "gpg does not sign " file) {:file file})))
    (-> row (assoc :file signature) (update :extension str ".asc"))))

(defn files
  "Builds and signs every file of every artifact. Returns a seq of {:lib symbol, :classifier string,
  :extension string, :file path}."
  [target key]
  (for [{:keys [lib] :as artifact} artifacts/published
        row (assemble/all target artifact)
        row [row (sign key row)]]
    (assoc row :lib lib)))

(defn- artifact [{:keys [lib classifier extension file]}]
  (.setFile (DefaultArtifact. (namespace lib) (name lib) classifier extension artifacts/version)
            (io/file file)))

(defn- repository
  ^RemoteRepository [url {:keys [user password]}]
  (let [builder (RemoteRepository$Builder. "release" "default" url)]
    (when user
      (.setAuthentication builder
                          (.build (doto (AuthenticationBuilder.)
                                    (.addUsername user)
                                    (.addPassword ^String password)))))
    (.build builder)))

(defn deploy
  "Hands the files over to the repository at url, file: or https:, all in one request."
  [url credentials files]
  (let [context (mvn/make-context)
        session (doto (DefaultRepositorySystemSession. (mvn/make-system-session context))
                  (.setConfigProperty "aether.checksums.algorithms" "SHA-512,SHA-256,SHA-1,MD5"))]
    (.deploy (mvn/make-system context)
             session
             (doto (DeployRequest.)
               (.setRepository (repository url credentials))
               (.setArtifacts (mapv artifact files))))))

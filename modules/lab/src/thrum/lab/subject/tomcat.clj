(ns thrum.lab.subject.tomcat
  "Tomcat, without Thrum: a servlet as one writes it in Java, on the threads that are asked for."
  (:require
   [thrum.lab.subject.work :as work]
   [thrum.lab.temporary :as temporary])
  (:import
   (jakarta.servlet Servlet)
   (jakarta.servlet.http HttpServlet HttpServletRequest HttpServletResponse)
   (java.util.concurrent Executor Executors)
   (java.util.logging Level Logger)
   (org.apache.catalina.connector Connector)
   (org.apache.catalina.startup Tomcat)
   (org.apache.coyote.http11 Http11NioProtocol)))

(set! *warn-on-reflection* true)

(def ^:private ^Logger logger
  "The logger, with its level set to warnings. Held, since java.util.logging forgets the level
  otherwise."
  (Logger/getLogger "org.apache"))

(defn- servlet ^Servlet []
  (proxy [HttpServlet] []
    (service [^HttpServletRequest request ^HttpServletResponse response]
      (work/do-it! (.getRequestURI request))
      (.setContentType response work/content-type)
      (.setContentLength response (alength ^bytes work/greeting-bytes))
      (.write (.getOutputStream response) ^bytes work/greeting-bytes))))

(defn- bound!
  "Lets a connection send as many requests as it likes, and as many connections be open as are
  wanted here."
  [^Http11NioProtocol protocol pool backlog]
  (doto protocol
    (.setMaxKeepAliveRequests -1)
    (.setMaxConnections -1)
    (.setAcceptCount (int backlog)))
  (if pool
    (doto protocol (.setMaxThreads (int pool)) (.setMinSpareThreads (int pool)))
    (doto protocol (.setExecutor ^Executor (Executors/newVirtualThreadPerTaskExecutor)))))

(defn- connector ^Connector [pool backlog]
  (let [connector (Connector.)]
    (bound! (.getProtocolHandler connector) pool backlog)
    (doto connector
      (.setProperty "address" "127.0.0.1")
      (.setPort 0))))

(defn start!
  "Starts the server on a free port and returns that. Handlers run on a pool of platform threads,
  or, :pool nil, on virtual threads."
  [{:keys [pool backlog]}]
  (.setLevel logger Level/WARNING)
  (let [connector (connector pool backlog)
        folder (temporary/folder! "thrum-lab-tomcat")
        tomcat (doto (Tomcat.) (.setBaseDir folder) (.setConnector connector))
        context (.addContext tomcat "" nil)]
    (Tomcat/addServlet context "lab" (servlet))
    (.addServletMappingDecoded context "/*" "lab")
    (.start tomcat)
    ;; Tomcat wants one to start, and this process is killed rather than stopped.
    (temporary/delete! folder)
    (.getLocalPort connector)))

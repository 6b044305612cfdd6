(ns thrum.interrupts-test
  "The table of doc/guides/interrupts.md, row by row: a task blocks, it is cancelled, and what the
  row says must be so."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.error :as error]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.place :as place]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.io Closeable File FileInputStream RandomAccessFile)
   (java.net DatagramPacket DatagramSocket InetAddress InetSocketAddress ServerSocket Socket SocketTimeoutException URI)
   (java.net.http HttpClient HttpRequest HttpResponse$BodyHandlers)
   (java.nio ByteBuffer)
   (java.nio.channels Channel FileChannel Pipe Pipe$SourceChannel Selector ServerSocketChannel SocketChannel)
   (java.nio.file Files OpenOption StandardOpenOption)
   (java.nio.file.attribute FileAttribute)
   (java.util.concurrent ArrayBlockingQueue BlockingQueue CancellationException CompletableFuture CountDownLatch Future LinkedBlockingQueue Semaphore SynchronousQueue TimeUnit)
   (java.util.concurrent.locks LockSupport ReentrantLock)
   (thrum.impl.interrupt InterruptFlag)
   (thrum.impl.place Place)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

;; A case: :open makes what is waited for, on the test's thread; :wait, called in a task, blocks;
;; :in is a part of its stack while it does, or :there? waits until it does; :closed? is what has
;; become of what was opened; :free ends the wait where the interrupt did not, and leaves nothing
;; behind. :linux - it runs there alone. :holds-up - the JDK from which on a cancel waits, too.

(defn- nothing [& _])

(def ^:private loopback (InetAddress/getLoopbackAddress))

(defn- delete [^File file]
  (.delete file))

(defn- temp-file ^File []
  (.toFile (Files/createTempFile "thrum" "" (make-array FileAttribute 0))))

;; Locks: another thread holds them

(defn- held-by-another
  "Returns [gate thread]: f is called on another thread with a function that it must call, which
  waits for the gate."
  [f]
  (let [gate (promise), held (promise)
        [thread] (gate/start "holder" #(f (fn [] (deliver held true) (deref gate 20000 nil))))]
    (deref held 5000 nil)
    [gate thread]))

(defn- let-go [[gate ^Thread thread]]
  (deliver gate true)
  (.join thread 5000))

(def ^:private waits
  {"`Thread/sleep`" [{:wait (fn [_] (Thread/sleep 20000)), :in "Thread.sleep"}]
   "`Thread.join`" [{:open #(held-by-another (fn [hold] (hold)))
                     :wait (fn [[_ ^Thread thread]] (.join thread))
                     :in "Thread.join"
                     :free let-go}]
   "`Object.wait`" [{:open #(Object.)
                     :wait (fn [^Object o] (locking o (.wait o 20000)))
                     :in "Object.wait"
                     :free (fn [^Object o] (locking o (.notifyAll o)))}]
   "`LockSupport/park`" [{:wait (fn [_] (LockSupport/parkNanos 20000000000))
                          :in "LockSupport.park"}]
   "`BlockingQueue` `take`, `put`" [{:open #(LinkedBlockingQueue.)
                                     :wait #(.take ^BlockingQueue %)
                                     :in "Queue.take"
                                     :free #(.put ^BlockingQueue % 1)}
                                    {:open #(doto (ArrayBlockingQueue. 1) (.put 1))
                                     :wait #(.put ^BlockingQueue % 2)
                                     :in "Queue.put"
                                     :free #(.clear ^BlockingQueue %)}
                                    {:open #(SynchronousQueue.)
                                     :wait #(.put ^BlockingQueue % 2)
                                     :in "Queue.put"
                                     :free #(.poll ^BlockingQueue %)}]
   "`PipedInputStream`, `PipedReader`"
   [{:open #(java.io.PipedInputStream. (java.io.PipedOutputStream.))
     :wait #(.read ^java.io.PipedInputStream %)
     :in "PipedInputStream.read"}
    {:open #(java.io.PipedReader. (java.io.PipedWriter.))
     :wait #(.read ^java.io.PipedReader %)
     :in "PipedReader.read"}]
   "`CountDownLatch`, `Semaphore`" [{:open #(CountDownLatch. 1)
                                     :wait #(.await ^CountDownLatch %)
                                     :in "CountDownLatch.await"
                                     :free #(.countDown ^CountDownLatch %)}
                                    {:open #(Semaphore. 0)
                                     :wait #(.acquire ^Semaphore %)
                                     :in "Semaphore.acquire"
                                     :free #(.release ^Semaphore %)}]
   "`ReentrantLock.lockInterruptibly`" [{:open #(doto (ReentrantLock.) .lock)
                                         :wait #(.lockInterruptibly ^ReentrantLock %)
                                         :in "lockInterruptibly"
                                         :free #(.unlock ^ReentrantLock %)}]
   "`ReentrantLock.lock`" [{:open #(doto (ReentrantLock.) .lock)
                            :wait (fn [^ReentrantLock l] (.lock l) (.unlock l))
                            :in "ReentrantLock.lock"
                            :free #(.unlock ^ReentrantLock %)}]
   "`locking`, `synchronized`" [{:open #(let [o (Object.)]
                                          [o (held-by-another (fn [hold] (locking o (hold))))])
                                 :wait (fn [[o]] (locking o 1))
                                 :in "interrupts_test"
                                 :free (fn [[_ holder]] (let-go holder))}]
   "a `delay` or lazy seq that another thread realises"
   [{:open
     #(let [hold (promise) d (delay (@hold))] [d (held-by-another (fn [f] (deliver hold f) @d))])
     :wait (fn [[d]] @d)
     :in "Delay."
     :free (fn [[_ holder]] (let-go holder))}
    {:open #(let [hold (promise)
                  s (lazy-seq (@hold) nil)]
              [s (held-by-another (fn [f] (deliver hold f) (seq s)))])
     :wait (fn [[s]] (seq s))
     :in "LazySeq."
     :free (fn [[_ holder]] (let-go holder))}]
   "`deref` of a promise or `clojure.core/future`; `Future.get`"
   [{:open promise, :wait deref, :in "CountDownLatch.await", :free #(deliver % 1)}
    {:open #(let [p (promise)] [p (future @p)])
     :wait (fn [[_ f]] @f)
     :in "FutureTask.get"
     :free (fn [[p]] (deliver p 1))}
    {:open #(CompletableFuture.)
     :wait #(.get ^Future %)
     :in "CompletableFuture.get"
     :free #(.complete ^CompletableFuture % 1)}]
   "`CompletableFuture.join`" [{:open #(CompletableFuture.)
                                :wait #(.join ^CompletableFuture %)
                                :in "CompletableFuture.join"
                                :free #(.complete ^CompletableFuture % 1)}]
   "`deref` of a task of Thrum's" [{:open #(let [p (promise)] [p (t/future @p)])
                                    :wait (fn [[_ f]] @f)
                                    :in "thrum.impl.wait"
                                    :free (fn [[p]] (deliver p 1))}]})

;; Sockets

(defn- server ^ServerSocket [] (ServerSocket. 0 1 loopback))

(defn- address [^ServerSocket server]
  (InetSocketAddress. ^InetAddress loopback (.getLocalPort server)))

(defn- close-all [closeables]
  (run! #(.close ^Closeable %) closeables))

(defn- connection
  "Returns [socket server]; the other end is neither read nor written."
  []
  (let [server (server)] [(Socket. ^InetAddress loopback (.getLocalPort server)) server]))

(defn- fill-backlog
  "Connects until the server's backlog is full. Returns the sockets."
  [server]
  (loop [sockets []]
    (let [socket (Socket.)
          connected (try
                      (.connect socket (address server) 100)
                      true
                      (catch SocketTimeoutException _ false))]
      (if (and connected (< (count sockets) 20))
        (recur (conj sockets socket))
        (conj sockets socket)))))

(defn- first-closed? [[^Socket socket]]
  (.isClosed socket))

(defn- endlessly [f]
  (while true (f)))

(defn- hear-request!
  "Waits until a request has come in."
  [{:keys [^ServerSocket server peer]}]
  (.setSoTimeout server 5000)
  (let [socket (.accept server)]
    (deliver peer socket)
    (.setSoTimeout socket 5000)
    (.read (.getInputStream socket))))

(defn- hung-up? [{:keys [peer]}]
  (let [in (.getInputStream ^Socket @peer)]
    (try
      (while (not= -1 (.read in)))
      true
      (catch SocketTimeoutException _ false))))

(defn- silent-server []
  {:server (server), :peer (promise)})

(defn- close-server [{:keys [server peer]}]
  (close-all (cond-> [server] (realized? peer) (conj @peer))))

(defn- uri ^URI [{:keys [^ServerSocket server]}]
  (URI. (str "http://" (.getHostAddress ^InetAddress loopback) ":" (.getLocalPort server) "/")))

(defn- send-request
  [{:keys [client], :as server}]
  (.send ^HttpClient client
         (.build (HttpRequest/newBuilder (uri server)))
         (HttpResponse$BodyHandlers/ofString)))

(def ^:private sockets
  {"`Socket.connect`" [{:open #(let [server (server)]
                                 (into [(Socket.) server] (fill-backlog server)))
                        :wait (fn [[^Socket socket server]] (.connect socket (address server)))
                        :in "Socket.connect"
                        :closed? first-closed?
                        :free close-all
                        :linux true}]
   "`ServerSocket.accept`" [{:open server
                             :wait #(.accept ^ServerSocket %)
                             :in "ServerSocket.accept"
                             :closed? #(.isClosed ^ServerSocket %)
                             :free #(.close ^ServerSocket %)}]
   "`Socket` read, write" [{:open connection
                            :wait (fn [[^Socket socket]] (.read (.getInputStream socket)))
                            :in "SocketInputStream.read"
                            :closed? first-closed?
                            :free close-all}
                           {:open connection
                            :wait (fn [[^Socket socket]]
                                    (endlessly #(.write (.getOutputStream socket)
                                                        (byte-array 65536))))
                            :in "SocketOutputStream.write"
                            :closed? first-closed?
                            :free close-all}]
   "`DatagramSocket.receive`" [{:open #(DatagramSocket. 0 loopback)
                                :in "DatagramSocket.receive"
                                :wait #(.receive ^DatagramSocket %
                                                 (DatagramPacket. (byte-array 9) 9))
                                :closed? #(.isClosed ^DatagramSocket %)
                                :free #(.close ^DatagramSocket %)}]
   "`SocketChannel`, `ServerSocketChannel`, `Pipe`"
   [{:open #(let [server (server)]
              [(SocketChannel/open ^InetSocketAddress (address server)) server])
     :wait (fn [[^SocketChannel channel]] (.read channel (ByteBuffer/allocate 9)))
     :in "SocketChannelImpl.read"
     :closed? (fn [[^SocketChannel channel]] (not (.isOpen channel)))
     :free close-all}
    {:open #(doto (ServerSocketChannel/open) (.bind (InetSocketAddress. ^InetAddress loopback 0)))
     :wait #(.accept ^ServerSocketChannel %)
     :in "ServerSocketChannelImpl.accept"
     :closed? #(not (.isOpen ^ServerSocketChannel %))
     :free #(.close ^ServerSocketChannel %)}
    {:open #(let [pipe (Pipe/open)] [(.source pipe) (.sink pipe)])
     :wait (fn [[source]] (.read ^Pipe$SourceChannel source (ByteBuffer/allocate 9)))
     :in "SourceChannelImpl.read"
     :closed? (fn [[source]] (not (.isOpen ^Channel source)))
     :free close-all}]
   "`Selector.select`" [{:open #(Selector/open)
                         :wait #(.select ^Selector %)
                         :in "SelectorImpl.select"
                         :closed? #(not (.isOpen ^Selector %))
                         :free #(.close ^Selector %)}]
   "`HttpClient.send`" [{:open #(assoc (silent-server) :client (HttpClient/newHttpClient))
                         :wait send-request
                         :there? hear-request!
                         :closed? hung-up?
                         :free #(do
                                  (close-server %)
                                  (.shutdownNow ^HttpClient (:client %)))}]
   "`slurp` of a URL, `HttpURLConnection`" [{:open silent-server
                                             :wait #(slurp (.toURL (uri %)))
                                             :there? hear-request!
                                             :closed? hung-up?
                                             :free close-server}]})

;; Files and processes

(defn- start-process ^Process [& command]
  (.start (ProcessBuilder. ^"[Ljava.lang.String;" (into-array String command))))

(defn- fifo
  "Returns [file keeper]; the keeper holds the FIFO open for writing, so that a reader opens it at
  once and then waits."
  []
  (let [file (temp-file)]
    (delete file)
    (.waitFor (start-process "mkfifo" (str file)))
    [file (RandomAccessFile. file "rw")]))

(defn- free-fifo [[file ^RandomAccessFile keeper reader]]
  (.write keeper 1)
  (.close ^Closeable reader)
  (.close keeper)
  (delete file))

(defn- with-reader [open]
  (let [[^File file :as fifo] (fifo)] (conj fifo (open file))))

(defn- channel ^FileChannel [^File file]
  (FileChannel/open (.toPath file) (into-array OpenOption [StandardOpenOption/READ])))

(defn- reader-closed? [[_ _ ^FileChannel channel]]
  (not (.isOpen channel)))

(defn- echo
  "Returns a process that ends when its input does."
  ^Process []
  (start-process "cat"))

(defn- end-process [^Process process]
  (.close (.getOutputStream process))
  (.waitFor process 5 TimeUnit/SECONDS)
  (.destroyForcibly process))

(def ^:private files
  {"`FileInputStream`, `slurp`: a file that does not answer"
   [{:open #(with-reader (fn [^File file] (FileInputStream. file)))
     :linux true
     :wait (fn [[_ _ ^FileInputStream in]] (.read in))
     :in "FileInputStream.read"
     :closed? (fn [[_ _ ^FileInputStream in]] (not (.isOpen (.getChannel in))))
     :free free-fifo}]
   "`FileChannel`: between two reads or writes"
   [{:open #(let [file (temp-file)]
              (spit file "text")
              [file nil (channel file)])
     :wait (fn [[_ _ ^FileChannel channel]] (endlessly #(.read channel (ByteBuffer/allocate 9) 0)))
     :in "FileChannelImpl.read"
     :closed? reader-closed?
     :free (fn [[file _ ^FileChannel channel]] (.close channel) (delete file))}]
   "`FileChannel`: a file that does not answer" [{:open #(with-reader channel)
                                                  :linux true
                                                  :holds-up 25
                                                  :wait (fn [[_ _ ^FileChannel channel]]
                                                          (.read channel (ByteBuffer/allocate 9)))
                                                  :in "FileChannelImpl.read"
                                                  :closed? reader-closed?
                                                  :free free-fifo}]
   "`Process.waitFor`" [{:open echo
                         :wait #(.waitFor ^Process %)
                         :in "waitFor"
                         :closed? #(not (.isAlive ^Process %))
                         :free end-process
                         :linux true}]
   "a process's output" [{:open echo
                          :wait #(.read (.getInputStream ^Process %))
                          :in "FileInputStream.read"
                          :closed? #(not (.isAlive ^Process %))
                          :free end-process
                          :linux true}]})

;; Computing

(defn- compute-until [stop]
  (while (not (realized? stop))
    (reduce + (range 1000))))

(def ^:private computing
  {"a loop that computes"
   [{:open promise, :wait compute-until, :in "compute_until", :free #(deliver % true)}]
   "a loop that computes and calls `t/checkpoint`"
   [{:open promise
     :wait (fn [stop] (while (not (realized? stop)) (t/checkpoint)))
     :in "interrupts_test"
     :free #(deliver % true)}]})

(def ^:private cases
  (merge waits sockets files computing))

(def ^:private not-tested
  #{"`System.in`" "a name lookup, `InetAddress`" "JDBC"})

;; The table

(def ^:private page
  (delay (slurp (first (filter #(.exists (io/file %))
                               ["doc/guides/interrupts.md" "../../doc/guides/interrupts.md"])))))

(defn- cells [line]
  (mapv str/trim (rest (str/split line #"\|"))))

(defn- rows
  "Returns the rows of the page's table as maps."
  []
  (let [[head _ & more] (drop-while #(not (str/starts-with? % "| waiting in"))
                                    (str/split-lines @page))]
    (map #(zipmap (map keyword (cells head)) (cells %))
         (take-while #(str/starts-with? % "|") more))))

(defn- name-of [row]
  ((keyword "waiting in") row))

(def ^:private release
  (.feature (Runtime/version)))

(defn- interruptible
  "Returns what the cell says of this JDK: it is yes or no, or says from which release on, as in
  `21: yes, 25: no`."
  [{cell :interrupted}]
  (or (->> (re-seq #"(\d+): (\w+)" cell)
           (take-while (fn [[_ from]] (<= (parse-long from) release)))
           last
           peek)
      cell))

;; Running a case

(defn- attempt [f x]
  (let [outcome (try {:value (f x)} (catch Throwable t {:failure t}))]
    (assoc outcome :flag (Thread/interrupted))))

(defn- inside? [^Thread thread part]
  (some #(str/includes? (str %) part) (.getStackTrace thread)))

(defn- start!
  "Starts the case on what it has opened, and waits until it blocks. Returns the task and a promise
  of how its wait ended."
  [{:keys [wait in there?]} opened]
  (let [thread (promise)
        outcome (promise)
        task (t/future (deliver thread (Thread/currentThread))
                       (deliver outcome (attempt wait opened)))]
    (is (if there? (there? opened) (gate/eventually 5000 #(inside? @thread in))) "it blocks")
    [task outcome]))

(defn- cancel!
  "Cancels the task, in a thread of its own. Returns a promise."
  [task]
  (second (gate/start "canceller" #(t/cancel! task))))

(defn- holds-up?
  "True if the interrupt itself does not return here before the wait ends."
  [{:keys [holds-up]}]
  (boolean (and holds-up (<= holds-up release))))

(defn- observe!
  "Runs a case up to its cancel, and then frees it. Returns what was seen."
  [{:keys [open closed? free], :or {open nothing, free nothing}, :as a-case} expected]
  (let [opened (open)
        [task outcome] (start! a-case opened)
        cancelled (cancel! task)]
    (try
      {:interrupted (if (deref outcome (if (= "no" expected) 50 5000) nil) "yes" "no")
       :cancelled (deref cancelled (if (holds-up? a-case) 50 5000) nil)
       :closed (when closed? (closed? opened))
       :outcome outcome}
      (finally (free opened)))))

;; What must be so

(defn- clears-the-flag? [t]
  (or (instance? InterruptedException t) (instance? java.io.InterruptedIOException t)))

(defn- check-throws [cell {:keys [failure flag]}]
  (is (= (second (re-find #"^`(\w+)`" cell))
         (second (re-find #"^[\w.]*?(\w+)(?::|$)" (str failure)))))
  (when-some [[_ message] (re-find #"“(.+)”" cell)]
    (is (= message (ex-message failure))))
  (when failure
    (is (error/casualty? failure)))
  ;; A wait of Thrum's may have seen the state before the interrupt came.
  (when-not (instance? CancellationException failure)
    (is (= flag (not (clears-the-flag? failure))) "the thread's interrupt status")))

(defn- check-row
  [{:keys [throws then], :as row} a-case]
  (let [expected (interruptible row)
        {:keys [interrupted cancelled closed outcome]} (observe! a-case expected)]
    (is (= expected interrupted))
    (check-throws throws (deref outcome 5000 {:failure (ex-info "It hangs" {})}))
    (is (= ({true "closed", false "open", nil "–"} closed) then))
    (is (= (not (holds-up? a-case)) (some? cancelled))
        "the cancel has returned")))

(defn- here? [a-case]
  (or (not (:linux a-case)) (= "Linux" (System/getProperty "os.name"))))

(deftest every-row-is-so
  (doseq [row (rows), a-case (filter here? (cases (name-of row)))]
    (testing (str (name-of row) " in " (or (:in a-case) "a request"))
      (check-row row a-case))))

(deftest every-row-has-its-case
  (let [{tested false, untested true} (group-by #(str/starts-with? (:interrupted %) "not tested: ")
                                                (rows))]
    (is (= (set (keys cases)) (set (map name-of tested))))
    (is (= not-tested (set (map name-of untested))))
    (is (apply distinct? (map name-of (rows))))))

(deftest a-deadline-whose-interrupt-does-not-return-delays-no-other
  (when-not (here? {:linux true}) (runner/skip! "no such files on this system"))
  (let [[_ _ ^FileChannel channel :as opened] (with-reader channel)
        reader (t/future (t/with-timeout 200 (.read channel (ByteBuffer/allocate 9))))]
    (try
      (is (gate/eventually 5000 #(not (.isOpen channel))) "it is being interrupted")
      (is (= :late (gate/in-time 5000 #(t/with-timeout [20 :late] (Thread/sleep 20000)))))
      (finally (free-fifo opened)))
    (is (= :thrum/timeout (:type (ex-data (ex-cause (thrown @reader))))))))

(deftest a-cancel-that-comes-while-a-wait-looks-is-no-interrupt
  (testing "its state is set, and the interrupt sent, just after the first look at the state"
    (let [answers (atom [nil :stop])
          ^InterruptFlag flag (interrupt/interrupt-flag (Thread/currentThread))
          place (reify Place
                  (cancelReason [_] (ffirst (swap-vals! answers rest)))
                  (isOver [_] false)
                  (outer [_])
                  (interruptFlag [_] flag)
                  (acknowledge [_]))]
      (try
        (place/enter! place)
        (.send flag)
        (is (= {:type :thrum/cancelled, :reason :stop}
               (select-keys (ex-data (thrown (t/checkpoint))) [:type :reason])))
        (is (not (Thread/interrupted)))
        (finally
          (place/enter! nil)
          (Thread/interrupted))))))

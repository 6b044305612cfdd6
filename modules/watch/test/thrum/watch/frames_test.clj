(ns thrum.watch.frames-test
  "What a reader sees of a stack."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.watch.impl.frames :as frames]))

(set! *warn-on-reflection* true)

(deftest a-frame-is-named-as-its-source-names-it
  (are [line expected] (= expected (frames/text (frames/of-text line)))
    "my.app$fetch.invokeStatic(app.clj:12)" "my.app/fetch (app.clj:12)"
    "my.app$fetch_all_BANG_$fn__12$fn__14.invoke(app.clj:3)" "my.app/fetch-all! (app.clj:3)"
    "java.base/java.lang.Thread.sleep(Thread.java:540)" "Thread.sleep (Thread.java:540)"
    "java.base/jdk.internal.misc.Unsafe.park(Native Method)" "Unsafe.park (Native Method)"
    "app//org.x.Outer$Inner.call(Outer.java:7)" "Outer$Inner.call (Outer.java:7)"
    "java.base@21.0.8/java.lang.Thread.run(Unknown Source)" "Thread.run (Unknown Source)"
    "" nil
    "no frame" nil))

(defn- stack [& lines] (mapv frames/of-text lines))

(deftest a-stack-is-named-by-the-readers-own-line-and-the-call-it-waits-in
  (are [lines expected] (= expected (frames/waits-at (apply stack lines)))
    ["java.lang.VirtualThread.park(VirtualThread.java:1)"
     "sun.nio.ch.Poller.poll(Poller.java:1)"
     "sun.nio.ch.NioSocketImpl.park(NioSocketImpl.java:1)"
     "java.net.Socket$SocketInputStream.read(Socket.java:1)"
     "my.app$fetch.invoke(app.clj:1)"]
    "my.app/fetch -> Socket$SocketInputStream.read"

    ["java.util.concurrent.locks.LockSupport.park(LockSupport.java:1)"
     "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionNode.block(A.java:1)"
     "java.util.concurrent.ForkJoinPool.unmanagedBlock(ForkJoinPool.java:1)"
     "java.util.concurrent.ForkJoinPool.managedBlock(ForkJoinPool.java:1)"
     "java.util.concurrent.LinkedBlockingQueue.take(LinkedBlockingQueue.java:1)"
     "my.app$fetch.invoke(app.clj:1)"]
    "my.app/fetch -> LinkedBlockingQueue.take"

    ["java.net.Socket$SocketInputStream.read(Socket.java:1)"
     "org.postgresql.core.PGStream.receiveChar(PGStream.java:1)"
     "com.zaxxer.hikari.pool.ProxyPreparedStatement.executeQuery(ProxyPreparedStatement.java:1)"
     "thrum.jdbc.impl.guard$statement$reify__1.executeQuery(guard.clj:1)"
     "next.jdbc.result_set$stmt__GT_result_set.invoke(result_set.clj:1)"
     "my.app$query.invoke(app.clj:1)"]
    "my.app/query -> Socket$SocketInputStream.read"

    ["java.util.concurrent.LinkedTransferQueue.poll(LinkedTransferQueue.java:1)"
     "com.zaxxer.hikari.util.ConcurrentBag.borrow(ConcurrentBag.java:1)"
     "thrum.jdbc.impl.checkout$outcome.invoke(checkout.clj:1)"]
    "ConcurrentBag.borrow -> LinkedTransferQueue.poll"

    ["my.app$spin.invoke(app.clj:1)"] "my.app/spin"
    ["java.lang.Thread.sleep(Thread.java:1)"] "Thread.sleep"
    [] "(no frames)")
  (is (= "my.app/fetch (app.clj:1)"
         (frames/line (stack "java.lang.Thread.sleep(Thread.java:1)"
                             "my.app$fetch.invoke(app.clj:1)"))))
  (is (nil? (frames/line []))))

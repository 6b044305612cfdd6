(ns thrum.server.tck.controls-test
  "Every case of the suite is seen to fail against a server that breaks what it asks for."
  (:require
   [clojure.set :as set]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.server.tck :as tck]
   [thrum.server.tck.controls :as controls]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(def breaks
  "Control -> the cases that must fail against it. Each case stands with the control that breaks the
  least beside it."
  {:allows-one [:max-concurrent-zero-throws]
   :always-interrupts [:disconnects-do-not-interrupt-unasked]
   :always-ready [:ready-until-stop]
   :answers-twice [:async-late-respond-is-ignored :errors-leave-the-framing-alone
                   :shed-requests-keep-the-framing]
   :async-mends [:async-nil-is-500 :async-throw-is-500]
   :believes-forwarded-for [:hops-without-an-address-end-the-walk :remote-addr-is-not-claimed
                            :untrusted-peers-tell-nothing]
   :believes-forwarded-proto [:scheme-is-http]
   :bodies-elsewhere [:seq-is-realised-on-a-virtual-thread :stream-is-read-on-a-virtual-thread]
   :bound-handlers [:bindings-do-not-leak-in]
   :bytes-are-seven-bit [:bytes-are-sent]
   :callbacks-elsewhere [:error-handler-runs-on-a-virtual-thread
                         :observers-run-on-virtual-threads]
   :certificates-everywhere [:plain-connections-have-no-certificate]
   :continues-only [:continue-may-not-be-waited-for]
   :continues-what-it-refuses [:refused-expectations-are-not-continued]
   :continues-within-responses [:continue-is-not-sent-within-a-response]
   :counts-failures [:failures-return-their-permits :permits-come-back]
   :counts-nothing [:observers-exceptions-are-counted :overdue-handlers-are-counted
                    :served-and-failed-are-counted :state-is-told :status-counts
                    :streams-that-are-shed-are-over]
   :cuts-long-responses [:steady-takers-are-served]
   :decodes-queries [:query-is-not-decoded]
   :decodes-uris [:uri-is-not-decoded]
   :drops-date-on-jetty [:handlers-date-is-sent]
   :drops-empty-headers [:header-values-may-be-empty]
   :drops-headers [:many-headers-arrive]
   :drops-long-headers [:long-response-heads-are-500]
   :drops-server [:handlers-server-header-is-sent]
   :drops-what-is-pipelined [:bodies-behind-watched-requests-arrive
                             :watched-requests-are-answered :watched-requests-may-be-echoed]
   :elsewhere [:async-handler-runs-on-a-virtual-thread :every-request-has-a-thread-of-its-own
               :handler-runs-on-a-virtual-thread :late-handler-is-interrupted
               :overdue-handler-keeps-its-permit :platform-threads-do-not-grow]
   :fails-when-observed [:observers-exception-is-not-seen]
   :fast-shutdown [:no-accepted-request-is-lost :streams-in-flight-are-finished]
   :files-are-cut [:file-is-sent :file-of-unknown-length-is-sent
                   :growing-files-are-sent-as-announced :shrinking-files-are-cut]
   :first-element-only [:eof-delimited-body-ends-cleanly :seq-is-concatenated]
   :first-value-only [:header-lists-repeat :header-vectors-repeat
                      :line-ends-in-repeated-values-are-refused]
   :forgets-connection-close [:handler-may-close]
   :forgets-lengths [:long-body-sends-no-extra-byte :short-body-is-cut
                     :tiny-short-body-is-no-success]
   :forgets-silent-bodies [:head-closes-the-body-unread :head-states-the-length
                           :no-content-closes-the-body]
   :h2-allows-one [:h2-runs-many-at-once]
   :h2-black-hole [:h2-endless-headers-are-cut :h2-websockets-are-refused]
   :h2-cancels [:h2-early-answers-arrive]
   :h2-cleartext-never [:h2-by-upgrade]
   :h2-cuts-at-a-flaw [:h2-refused-streams-harm-no-neighbour]
   :h2-cuts-connections [:h2-early-answers-harm-no-neighbour :h2-late-streams-harm-no-neighbour]
   :h2-dies [:h2-rapid-resets-are-survived]
   :h2-forgives [:h2-connect-is-refused :h2-connection-headers-are-refused
                 :h2-host-must-be-the-authority :h2-paths-have-no-blanks]
   :h2-never [:h2-serves]
   :h2-no-host [:h2-host-in-place-of-authority :h2-requests-have-a-host]
   :h2-no-max-concurrent [:h2-overload-is-503]
   :h2-no-request-timeout [:h2-deadline-is-503]
   :h2-short-bodies [:h2-body-arrives :h2-deadlines-race-with-answers
                     :h2-reset-bodies-are-no-bodies]
   :h2-stops-whole-bodies [:h2-bodies-that-have-come-are-not-stopped]
   :h2-swallows-body-failures [:h2-failing-body-is-cut]
   :hangs-up [:in-time-is-untouched :silent-handlers-are-not-slow-clients]
   :hangs-up-on-half-closed [:half-closed-clients-are-answered]
   :heads-are-of-nothing [:head-states-no-length-that-is-not-known]
   :ignores-raise [:async-respond-after-raise-is-ignored]
   :impatient-on-jetty [:handlers-may-be-slower-than-idle]
   :interrupted-again [:one-interrupt-a-request]
   :interrupted-first [:interrupts-never-reach-the-next-request]
   :interrupted-responses-fail [:handlers-own-interrupt-does-not-cut-a-stream]
   :invents-queries [:query-may-be-absent]
   :joins-cookies-with-commas [:cookies-are-joined-with-semicolons]
   :keeps-absolute-forms [:uri-of-an-absolute-form]
   :leaves-paths-empty [:absolute-form-without-a-path]
   :keeps-blanks [:header-names-are-lower-case :header-values-are-trimmed]
   :keeps-draining-connections [:draining-closes-connections :draining-closes-new-connections
                                :in-flight-is-finished]
   :keeps-permits-of-pipelines [:reset-pipelines-give-their-permits-back]
   :knows-few-spellings [:names-are-checked-in-any-spelling :names-are-known-in-any-spelling]
   :knows-no-capitals [:coding-is-chunked-in-any-case]
   :knows-no-deadline [:deadline-is-inherited]
   :knows-no-empty-lines [:empty-lines-before-a-request-are-skipped]
   :knows-no-extensions [:chunk-extensions-are-ignored]
   :knows-no-framing [:garbled-lengths-are-not-sent]
   :knows-no-zeros [:chunk-sizes-may-begin-with-zeros]
   :last-header-wins [:repeated-headers-among-many-are-joined :repeated-headers-are-joined]
   :last-wins [:async-connection-is-kept :async-raise-after-respond-is-ignored
               :async-responds-later]
   :leaks-from-overload [:on-overload-may-fail]
   :lengths-are-ints [:length-may-exceed-an-int]
   :lenient [:handler-must-be-callable :options-must-be-a-map :port-in-use-throws
             :port-out-of-range-throws :trusted-proxies-are-addresses
             :two-servers-do-not-share-a-port :unknown-engine-options-throw
             :unknown-engine-throws :unknown-host-throws :unknown-options-throw]
   :loses-a-place [:lost-connections-give-their-places-back
                   :tls-lost-connections-give-their-places-back]
   :lower-cases-by-locale [:header-names-know-no-locale]
   :lower-cases-values [:header-values-keep-their-case]
   :mends-responses [:missing-file-is-500 :missing-file-is-500-to-head-too :nil-response-is-500
                     :no-map-is-500 :no-status-is-500 :wrong-body-is-500 :wrong-header-value-is-500
                     :wrong-status-is-500]
   :mends-what-has-no-message [:treacherous-throwables-are-500]
   :merges-slashes [:uri-keeps-double-slashes]
   :naive [:bare-lf-does-not-end-a-header :bare-line-ends-end-no-trailers
           :bare-line-ends-in-values-are-refused :blank-lines-end-no-trailers
           :connection-headers-are-the-servers :connections-are-bounded
           :endless-headers-are-not-read :endless-trailers-are-refused
           :garbled-trailers-are-refused :handlers-own-interrupt-does-not-leak
           :header-names-are-tokens :http-1-0-is-not-asked-to-go-on :idle-connections-are-closed
           :line-ends-in-values-are-refused :lost-clients-of-http-1-0-end-long-bodies
           :no-content-has-no-length :reset-content-has-no-body :silent-bodies-are-given-up
           :silent-connections-are-closed :stated-length-is-kept :trickled-rests-are-given-up
           :unread-expected-bodies-close :upgrade-is-the-servers
           :wide-chars-in-values-are-no-line-ends]
   :naive-any-coding [:two-codings-are-refused]
   :naive-chunk-end [:chunks-end-with-a-line :swallowed-bad-chunks-end-the-connection]
   :naive-chunk-size [:garbled-chunk-sizes-are-refused :overflowing-chunk-sizes-are-refused]
   :naive-chunks-on-1-0 [:http-1-0-closes :http-1-0-is-kept-or-closed]
   :naive-closes [:client-may-close :close-may-stand-among-others
                  :http-1-0-without-keep-alive-closes :nothing-behind-a-close-is-served]
   :naive-coding-is-chunked [:coding-list-is-refused :empty-coding-is-refused
                             :unknown-coding-is-501]
   :naive-continue [:continue-is-sent-for-chunks :continue-is-sent-when-the-body-is-read]
   :naive-cut-body-throws [:broken-bodies-are-400 :truncated-chunks-are-no-body
                           :truncated-length-is-no-body]
   :naive-events [:events-are-sent-at-once :events-cannot-be-injected :events-have-fields
                  :events-have-their-type :events-reach-http-1-0 :failing-streams-are-cut
                  :streams-leave-max-concurrent :streams-outlive-the-deadline]
   :naive-folded-headers [:folded-lines-hide-nothing]
   :naive-has-colon [:header-without-a-name-is-refused]
   :naive-has-host [:missing-host-is-refused]
   :naive-head-is-silent [:head-has-no-body-of-any-kind :head-sends-no-body
                          :head-sends-no-streamed-body]
   :naive-host-is-a-host [:endless-hosts-are-refused :hosts-that-are-none-are-refused]
   :naive-host-is-authority [:absolute-form-must-equal-host :user-names-in-targets-are-refused]
   :naive-length-is-digits [:a-list-of-lengths-is-refused :empty-length-is-refused
                            :garbled-lengths-are-refused :overflowing-length-is-refused
                            :signed-lengths-are-refused]
   :naive-length-or-coding [:chunks-beside-length-are-refused :length-beside-chunks-is-refused]
   :naive-log [:access-log-has-the-common-format :access-log-keeps-secrets
               :access-log-may-be-combined :access-log-may-be-json :refused-requests-are-logged]
   :naive-log-on-jetty [:access-log-cannot-be-forged]
   :naive-no-blank-before-colon [:blank-before-the-colon-is-refused]
   :naive-no-coding-on-1-0 [:coding-on-1-0-is-refused]
   :naive-no-connect [:connect-is-refused]
   :naive-no-content-is-silent [:no-content-has-no-body :not-modified-has-no-body
                                :silent-statuses-have-no-body-of-any-kind]
   :naive-no-control [:control-chars-in-a-value-are-refused
                      :control-chars-around-a-value-are-refused :garbled-coding-is-refused]
   :naive-no-cr [:bare-cr-in-a-value-is-refused]
   :naive-no-nul [:nul-in-a-value-is-refused]
   :naive-one-at-a-time [:pipelined-requests-are-answered-in-order
                         :pipelined-requests-run-one-at-a-time]
   :naive-one-host [:two-hosts-are-refused]
   :naive-one-length [:nothing-follows-a-refusal :two-equal-lengths-are-refused
                      :two-lengths-are-refused]
   :naive-one-thread-each [:slow-headers-hold-nobody-up :within-max-concurrent-all-are-served]
   :naive-request-line [:foreign-targets-are-refused :garbled-request-lines-are-refused
                        :request-lines-without-a-method-are-refused
                        :tabs-in-the-request-line-are-refused :versions-are-1-0-or-1-1]
   :naive-skips-unread-body [:bare-lf-does-not-end-the-headers
                             :bodies-answered-early-are-no-requests :continue-keeps-the-framing
                             :unread-body-is-not-a-request]
   :naive-trailers [:trailers-are-not-headers :trailers-are-not-requests]
   :naive-wide-chunks [:chunk-sizes-may-exceed-32-bits :chunk-sizes-may-exceed-an-int]
   :names-its-product [:own-error-pages-tell-nothing]
   :names-itself [:product-is-not-told]
   :names-the-host-with-its-port [:hosts-that-are-some-are-served :server-name-is-hosts]
   :nil-is-a-word [:connection-is-kept :head-keeps-a-stated-length :nil-body-is-empty]
   :no-async? [:async-responds-at-once]
   :no-bodies-on-1-0 [:http-1-0-bodies-arrive]
   :no-content-keys [:content-keys-are-there]
   :no-drain-delay-ms [:draining-goes-on-serving]
   :no-drain-streams-ms [:streams-may-end-later]
   :no-empty-bodies [:body-is-always-a-stream]
   :no-empty-seqs [:empty-seq-is-empty :head-does-not-realise-a-seq]
   :no-forwarded-headers [:malformed-forwarded-is-refused]
   :no-grace [:steady-bodies-are-served]
   :no-header-timeout-ms [:slow-headers-are-given-up :trickled-empty-lines-are-given-up
                          :trickled-headers-are-given-up]
   :no-health [:a-draining-server-is-alive-on-kept-connections :other-methods-are-no-probes
               :probes-are-answered-when-the-server-is-full
               :readiness-ends-with-the-drain]
   :no-heartbeat [:silent-streams-have-a-heartbeat]
   :no-idle-timeout-ms [:watched-connections-may-be-idle-too-long]
   :no-interrupt-on-disconnect [:clients-that-go-behind-a-body-interrupt :disconnects-are-told
                                :fin-interrupts :rst-interrupts]
   :no-max-body-bytes [:announced-body-too-large-is-413 :chunked-body-too-large-is-413
                       :huge-announcement-is-413-unread :no-more-than-max-body-bytes-is-read
                       :swallowed-413-is-413 :unread-large-body-is-not-the-next-request]
   :no-max-concurrent [:async-requests-count-until-responded :beyond-max-concurrent-is-503
                       :never-more-than-max-concurrent]
   :no-max-header-bytes [:large-headers-are-431 :long-request-line-is-refused
                         :many-headers-are-431]
   :no-max-queued [:beyond-the-queue-is-503 :queued-requests-are-served]
   :no-max-streams [:streams-are-bounded]
   :no-min-bytes-per-second [:observers-hold-no-cut-up :slow-bodies-are-cut :slow-takers-are-cut
                             :slow-takers-of-bytes-are-cut]
   :no-port [:port-zero-picks-one]
   :no-request-id? [:requests-have-ids :trusted-proxies-give-ids]
   :no-request-timeout-ms [:async-late-is-503 :deadline-after-commit-cuts
                           :deadline-cuts-what-the-client-does-not-take
                           :deadline-does-not-wait-for-the-handler
                           :deadline-while-the-body-is-read
                           :error-handlers-are-inside-the-deadline :interrupted-io-is-no-success
                           :late-handler-is-503 :late-handlers-that-have-read-are-503
                           :late-result-is-dropped
                           :observers-are-inside-the-deadline
                           :observers-do-not-delay-the-deadline :queue-time-counts]
   :no-retry-after [:queue-time-is-bounded]
   :no-trusted-proxies [:forwarded-is-read-where-it-is-asked-for
                        :hops-before-an-untrusted-one-are-not-believed :observers-see-the-client
                        :trusted-proxies-tell-the-client]
   :observes-garbage [:end-tells-status-bytes-and-time :end-tells-that-a-body-failed
                      :end-tells-what-was-thrown :observer-hears-of-shedding
                      :observer-hears-of-start-and-end :observer-hears-of-timeouts]
   :observes-no-start [:observers-of-the-start-precede-the-handler]
   :observes-on-the-handlers-thread [:nothing-is-inherited-by-observers]
   :odd-statuses-are-200 [:status-is-sent]
   :overload-is-503 [:on-overload-may-be-a-function :on-overload-may-be-a-status
                     :on-overload-runs-on-a-virtual-thread :wrong-values-throw]
   :ports-are-strings [:server-port-is-a-number]
   :reads-before [:async-body-may-be-read-later]
   :reads-once [:requests-byte-by-byte-are-requests :split-requests-are-put-together]
   :replaces-bytes-beyond-ascii [:uri-keeps-bytes-beyond-ascii]
   :resolves-dots [:uri-keeps-dots]
   :respond-throws [:async-first-respond-wins]
   :respond-throws-on-garbage [:async-respond-does-not-throw]
   :reuses-a-thread [:nothing-is-inherited-from-the-starter :nothing-is-inherited-in-a-pipeline
                     :nothing-is-inherited-on-a-kept-connection
                     :nothing-is-inherited-with-a-deadline]
   :reuses-a-thread-on-jetty [:h2-requests-inherit-nothing :ws-callbacks-inherit-nothing]
   :ring-bodies-are-printed [:ring-bodies-end-with-their-response :ring-bodies-failing-are-cut
                             :ring-bodies-failing-at-once-are-500 :ring-bodies-may-be-written-later
                             :ring-bodies-write-themselves]
   :scopes-end-early [:a-lazy-body-may-be-computed-by-tasks]
   :send-swallows [:send-throws-when-the-client-has-gone]
   :sends-bodies-with-503 [:late-heads-have-no-body]
   :seqs-are-joined [:seq-failing-half-way-is-cut :seq-is-flushed-by-element]
   :seven-bit-bodies [:body-of-a-length-arrives :body-of-chunks-arrives]
   :short-bodies [:large-body-arrives]
   :short-protocols [:http-1-0-tells-its-protocol :protocol-is-told]
   :single-blanks [:headers-are-sent]
   :slow-shutdown [:streams-end-in-time :stubborn-handlers-do-not-stop-the-stop
                   :timeout-cuts-what-has-begun :timeout-interrupts :timeout-interrupts-callbacks]
   :starts-what-it-answered [:answered-requests-never-start :queued-too-long-never-starts]
   :stop-does-nothing [:idle-connections-end-with-the-server :kept-connections-get-503
                       :kept-connections-get-503-beside-streams
                       :listener-closes-after-the-delay :port-is-free-after-stop :stop-returns]
   :stop-joins [:stop-inside-a-handler :stop-inside-a-handlers-task]
   :stop-throws-twice [:stop-is-idempotent]
   :streams-hold-the-stop [:streams-end-with-the-server :stubborn-streams-are-cut
                           :stuck-streams-are-cut]
   :streams-end-early [:silent-takers-of-http-1-0-are-reset]
   :streams-stay-open [:body-is-closed-when-the-client-goes :failing-stream-is-closed
                       :stream-is-sent-and-closed]
   :strings-are-latin-1 [:string-is-utf-8]
   :strings-are-streamed [:transfer-encoding-is-the-servers :two-lengths-are-not-sent
                          :wrong-lengths-are-not-sent]
   :strings-are-utf-8 [:string-follows-its-charset]
   :swallows-body-failures [:body-failing-under-a-length-is-cut
                            :eof-delimited-body-failing-is-reset :nothing-follows-a-cut
                            :seq-failing-at-once-is-500 :stream-failing-at-once-is-500
                            :stream-failing-half-way-is-cut]
   :tasks-are-lazy [:tasks-end-with-their-exchange]
   :tells-the-peer-with-its-port [:remote-addr-is-the-peers]
   :tells-what-was-thrown [:error-handler-answers :error-handler-may-fail
                           :error-handler-may-return-garbage :error-is-500 :exception-is-500]
   :throwing-wins [:async-body-may-come-slowly :async-throw-after-respond-is-ignored]
   :tiny-bodies [:body-of-the-limit-is-served]
   :tiny-headers [:headers-within-the-bound-are-served]
   :tls-another-context [:tls-by-context]
   :tls-certificates-are-lists [:client-certificate-is-one]
   :tls-dies-of-garbage [:tls-garbage-is-survived]
   :tls-is-http [:tls-serves]
   :tls-knows-names [:tls-serves-any-host]
   :tls-lenient [:tls-missing-store :tls-wrong-password]
   :tls-needs-all [:client-certificate-is-wanted]
   :tls-no-header-timeout-ms [:tls-trickled-headers-are-given-up]
   :tls-needs-none [:client-certificate-is-needed]
   :tls-not-alone [:tls-alone]
   :tls-swallows-body-failures [:tls-failing-body-is-cut]
   :trailers-are-headers [:trailers-frame-nothing]
   :trailers-end-at-a-fold [:folded-trailers-hide-nothing]
   :unheard-streams [:streams-beyond-the-deadline-are-cancelled
                     :streams-of-clients-that-have-gone-are-cancelled]
   :unknown-methods-are-get [:method-of-ones-own]
   :upper-case-methods [:method-is-a-keyword]
   :vars-are-read-once [:a-var-is-looked-up-at-each-request]
   :waits-for-bodies [:a-part-of-a-body-is-read-as-it-comes :early-answers-arrive]
   :waits-for-respond [:async-raise-is-500 :async-raise-later-is-500]
   :ws-any-origin [:ws-foreign-origins-are-refused :ws-listed-origins-are-let-in]
   :ws-any-size [:ws-large-messages-are-refused]
   :ws-bytes-are-text [:ws-binary]
   :ws-calls-all-at-once [:ws-messages-come-one-at-a-time]
   :ws-calls-elsewhere [:ws-callbacks-run-on-virtual-threads]
   :ws-changes-text [:ws-text]
   :ws-checks-nothing [:ws-arguments-are-checked]
   :ws-closes-twice [:ws-close-is-answered :ws-lost-clients-are-closed]
   :ws-closes-with-1000 [:ws-server-may-close :ws-servers-close-is-told]
   :ws-forgets-the-protocol [:ws-subprotocol-is-offered :ws-subprotocol-is-told]
   :ws-hangs-up [:ws-outlives-the-deadline]
   :ws-holds-the-stop [:ws-silent-clients-do-not-stop-the-stop]
   :ws-late-pongs [:ws-pings-are-the-listeners]
   :ws-loses-messages [:ws-sends-wait-their-turn]
   :ws-masks-frames [:ws-unmasked-frames-are-refused]
   :ws-mends-responses [:ws-refused-by-the-handler]
   :ws-mends-text [:ws-bad-text-is-refused]
   :ws-needs-no-handshake [:ws-handshakes-are-strict :ws-needs-a-handshake]
   :ws-no-max-streams [:ws-leaves-max-concurrent]
   :ws-no-pongs [:ws-fragments-are-joined :ws-pings-are-answered]
   :ws-send-swallows [:ws-send-throws-when-closed]
   :ws-stop-does-nothing [:ws-closes-with-the-server]
   :ws-wrong-accept [:ws-handshake]})

(defn- loadable? [ns-sym]
  (try (require ns-sym) true (catch java.io.FileNotFoundException _ false)))

(defn- here?
  "Whether the control can run: those on Jetty need it on the classpath, those of Ring's bodies
  Ring."
  [control]
  (and (or (not= :jetty (:engine (:options (controls/all control))))
           (loadable? 'thrum.server.engine.jetty))
       (or (not= :ring-bodies-are-printed control) (loadable? 'ring.core.protocols))))

(defn- outcomes [control]
  (let [{:keys [run-server] :as given} (controls/all control)]
    ;; What fails for want of time has not failed by what it found.
    (tck/run run-server
      (assoc (dissoc given :run-server) :only (breaks control), :limit-ms 60000))))

(defn- by-expectation?
  "Whether a case has failed because of what it found, and not by an exception or for want of time:
  then it may be for another reason than the break."
  [{:keys [outcome detail]}]
  (and (= :failed outcome)
       (not (re-find #"^(no exception|an end within)" (str (:expected detail))))))

(defn- check [[control outcomes]]
  (doseq [{:keys [id] :as outcome} outcomes]
    (is (by-expectation? outcome) (str id " against " control " " (:detail outcome)))))

(def ^:private alone
  "The cases that others would disturb."
  (into #{} (comp (filter :alone?) (map :id)) (tck/cases)))

(defn- alone? [control]
  (boolean (some alone (breaks control))))

(def ^:private quiet
  (java.util.logging.Logger/getLogger "thrum.server"))

(.setLevel ^java.util.logging.Logger quiet java.util.logging.Level/OFF)

(deftest ^{:time-limit-ms 600000} every-control-makes-its-cases-fail
  ;; The first case on an engine takes seconds on a busy machine.
  (run! outcomes [:allows-one :tls-is-http])
  ;; What never comes need not be waited for as long as what should; what must not come does.
  (with-redefs [wire/patience-ms 1500, wire/quiet-ms 4000]
    (let [judged (juxt identity outcomes)
          {undisturbed true, others false} (group-by alone? (filter here? (sort (keys breaks))))]
      (run! check (t/pmapv 6 judged others))
      (run! (comp check judged) undisturbed))))

(deftest every-case-has-a-control
  (let [ids (set (map :id (tck/cases)))
        controlled (set (mapcat val breaks))]
    (is (= #{} (set/difference ids controlled)))
    (is (= #{} (set/difference controlled ids)))))

(deftest every-control-has-a-case
  (is (= (set (keys breaks)) (set (keys controls/all)))
      (str/join " " (set/difference (set (keys controls/all)) (set (keys breaks))))))

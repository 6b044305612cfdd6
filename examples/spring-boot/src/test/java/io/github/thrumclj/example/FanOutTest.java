package io.github.thrumclj.example;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.boot.test.context.TestConfiguration;
import org.springframework.boot.test.web.server.LocalServerPort;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.context.annotation.Primary;
import org.springframework.test.context.ActiveProfiles;
import org.springframework.test.web.servlet.client.RestTestClient;

/** What becomes of the other questions when one fails, and of all when the time is over. Nothing here waits for a time to pass. */
class FanOutTest {
    /** A backend that does what a test wants, and knows who is in it. */
    static class ScriptedBackend implements Backend {
        volatile Backend script;
        final AtomicInteger begun = new AtomicInteger();
        final AtomicInteger inside = new AtomicInteger();
        final AtomicInteger interrupted = new AtomicInteger();
        final CountDownLatch never = new CountDownLatch(1);

        @Override
        public String answer(int question, long ms) throws IOException, InterruptedException {
            begun.incrementAndGet();
            inside.incrementAndGet();
            try {
                return script.answer(question, ms);
            } catch (InterruptedException e) {
                interrupted.incrementAndGet();
                throw e;
            } finally {
                inside.decrementAndGet();
            }
        }

        void expectNobodyInside() {
            assertThat(inside).hasValue(0);
        }
    }

    static void await(CountDownLatch gate) throws InterruptedException {
        assertThat(gate.await(20, TimeUnit.SECONDS)).as("the gate opens").isTrue();
    }

    @TestConfiguration
    static class Scripted {
        @Bean
        @Primary
        ScriptedBackend scriptedBackend() {
            return new ScriptedBackend();
        }
    }

    abstract static class OnAFirstFailure {
        @Autowired
        ScriptedBackend backend;

        @Test
        void theOthersAreInterruptedAndHaveEnded(@LocalServerPort int port) {
            CountDownLatch allOthersWait = new CountDownLatch(4);
            backend.script = (question, ms) -> {
                if (question == 2) {
                    await(allOthersWait);
                    throw new IOException("connection refused");
                }
                allOthersWait.countDown();
                await(backend.never);
                return "late";
            };
            client(port).get().uri("/fan-out?n=5").exchange()
                    .expectStatus().isEqualTo(502)
                    .expectBody().jsonPath("$.detail").isEqualTo("The backend failed");
            backend.expectNobodyInside();
            assertThat(backend.begun).hasValue(5);
            assertThat(backend.interrupted).hasValue(4);
        }
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT, properties = {"fan-out.limit=5", "fan-out.timeout=60s"})
    @Import(Scripted.class)
    class OnAFirstFailureOnPlatformThreads extends OnAFirstFailure {
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT, properties = {"fan-out.limit=5", "fan-out.timeout=60s"})
    @ActiveProfiles("virtual-threads")
    @Import(Scripted.class)
    class OnAFirstFailureOnVirtualThreads extends OnAFirstFailure {
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT, properties = {"fan-out.limit=2", "fan-out.timeout=300ms"})
    @Import(Scripted.class)
    class AtTheDeadline {
        @Autowired
        ScriptedBackend backend;

        @Test
        void whatWaitsIsInterruptedAndNothingMoreBegins(@LocalServerPort int port) {
            backend.script = (question, ms) -> {
                await(backend.never);
                return "late";
            };
            client(port).get().uri("/fan-out?n=5").exchange()
                    .expectStatus().isEqualTo(504)
                    .expectBody().jsonPath("$.detail").isEqualTo("The backend did not answer in time");
            backend.expectNobodyInside();
            assertThat(backend.begun.get()).isBetween(1, 2);
            assertThat(backend.interrupted).hasValue(backend.begun.get());
        }
    }

    static RestTestClient client(int port) {
        return RestTestClient.bindToServer().baseUrl("http://127.0.0.1:" + port).build();
    }
}

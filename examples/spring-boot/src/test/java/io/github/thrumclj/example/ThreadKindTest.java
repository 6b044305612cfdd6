package io.github.thrumclj.example;

import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.boot.test.web.server.LocalServerPort;
import org.springframework.test.context.ActiveProfiles;
import org.springframework.test.web.servlet.client.RestTestClient;

/** On which kind of thread a request is answered, by profile. */
class ThreadKindTest {
    static void answersOn(String kind, int port) {
        RestTestClient.bindToServer().baseUrl("http://127.0.0.1:" + port).build()
                .get().uri("/hello?ms=1").exchange()
                .expectStatus().isOk()
                .expectBody(String.class).isEqualTo("Hello from a " + kind + " thread\n");
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
    class WithoutAProfile {
        @Test
        void aRequestIsAnsweredOnAPlatformThread(@LocalServerPort int port) {
            answersOn("platform", port);
        }
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
    @ActiveProfiles("virtual-threads")
    class WithTheCustomizer {
        @Test
        void aRequestIsAnsweredOnAVirtualThread(@LocalServerPort int port) {
            answersOn("virtual", port);
        }
    }

    @Nested
    @SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
    @ActiveProfiles("virtual-threads-property")
    class WithTheProperty {
        @Test
        void aRequestIsAnsweredOnAVirtualThread(@LocalServerPort int port) {
            answersOn("virtual", port);
        }
    }
}

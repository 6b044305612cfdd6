package io.github.thrumclj.example;

import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.boot.test.web.server.LocalServerPort;
import org.springframework.test.web.servlet.client.RestTestClient;

/** The endpoints, with the application's own backend. */
@SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
class AppTest {
    private RestTestClient client;

    @BeforeEach
    void connect(@LocalServerPort int port) {
        client = RestTestClient.bindToServer().baseUrl("http://127.0.0.1:" + port).build();
    }

    @Test
    void answersComeInTheOrderOfTheQuestions() {
        client.get().uri("/fan-out?n=3&ms=1").exchange()
                .expectStatus().isOk()
                .expectBody()
                .jsonPath("$.n").isEqualTo(3)
                .jsonPath("$.answers[0]").isEqualTo("answer 0")
                .jsonPath("$.answers[1]").isEqualTo("answer 1")
                .jsonPath("$.answers[2]").isEqualTo("answer 2");
    }

    @Test
    void noQuestionsHaveNoAnswers() {
        client.get().uri("/fan-out?n=0").exchange()
                .expectStatus().isOk()
                .expectBody().jsonPath("$.answers").isEmpty();
    }

    @Test
    void itIsHealthy() {
        client.get().uri("/actuator/health").exchange()
                .expectStatus().isOk()
                .expectBody().jsonPath("$.status").isEqualTo("UP");
    }

    @ParameterizedTest
    @ValueSource(strings = {"/hello?ms=-1", "/hello?ms=60001", "/hello?ms=soon", "/hello?ms=99999999999999999999",
        "/fan-out?n=-1", "/fan-out?n=1001", "/fan-out?n=many", "/fan-out?n=1&ms=-1", "/fan-out?n=1&ms=60001"})
    void whatIsOutOfBoundsIsRefused(String uri) {
        client.get().uri(uri).exchange().expectStatus().isBadRequest();
    }
}

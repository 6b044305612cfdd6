package io.github.thrumclj.example;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;

/** With wrong properties the application does not start, and says which is wrong. */
class FanOutPropertiesTest {
    @EnableConfigurationProperties(FanOutProperties.class)
    static class Configured {
    }

    private final ApplicationContextRunner application = new ApplicationContextRunner().withUserConfiguration(Configured.class);

    @ParameterizedTest
    @CsvSource(delimiter = '|', value = {
        "fan-out.limit=0     | fan-out.limit must be at least 1, not 0",
        "fan-out.timeout=-1s | fan-out.timeout must be positive, not PT-1S",
        "fan-out.timeout=0s  | fan-out.timeout must be positive, not PT0S"})
    void wrongPropertiesEndTheStart(String property, String message) {
        application.withPropertyValues(property)
                .run(started -> assertThat(started).getFailure().rootCause().hasMessage(message));
    }

    @ParameterizedTest
    @CsvSource({"fan-out.limit=1", "fan-out.timeout=1ms"})
    void smallOnesDoNot(String property) {
        application.withPropertyValues(property).run(started -> assertThat(started).hasSingleBean(FanOutProperties.class));
    }
}

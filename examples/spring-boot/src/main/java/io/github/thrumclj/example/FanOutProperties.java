package io.github.thrumclj.example;

import java.time.Duration;

import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * How much of the backend one request may use.
 *
 * @param limit   how many of its calls may run at once
 * @param timeout how long all of them may take
 */
@ConfigurationProperties("fan-out")
record FanOutProperties(@DefaultValue("20") int limit, @DefaultValue("2s") Duration timeout) {
    /** Wrong properties end the application's start; otherwise each request would fail. */
    FanOutProperties {
        if (limit < 1) {
            throw new IllegalArgumentException("fan-out.limit must be at least 1, not " + limit);
        }
        if (!timeout.isPositive()) {
            throw new IllegalArgumentException("fan-out.timeout must be positive, not " + timeout);
        }
    }
}

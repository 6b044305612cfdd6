package io.github.thrumclj.example;

import java.util.concurrent.Executors;

import org.springframework.boot.tomcat.TomcatProtocolHandlerCustomizer;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Profile;

/** Tomcat's requests on virtual threads, by hand; the profile virtual-threads-property does it with a property. */
@Configuration
@Profile("virtual-threads")
class VirtualThreads {
    @Bean
    TomcatProtocolHandlerCustomizer<?> requestsOnVirtualThreads() {
        return handler -> handler.setExecutor(Executors.newVirtualThreadPerTaskExecutor());
    }
}

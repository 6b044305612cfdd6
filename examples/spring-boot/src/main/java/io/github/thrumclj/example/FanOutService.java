package io.github.thrumclj.example;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;

import io.github.thrumclj.Thrum;
import org.springframework.stereotype.Service;

/** Asks the backend many questions at once, for one request. */
@Service
class FanOutService {
    private final Backend backend;
    private final FanOutProperties properties;

    FanOutService(Backend backend, FanOutProperties properties) {
        this.backend = backend;
        this.properties = properties;
        // A part of the application's start, and not of the first request.
        Thrum.load();
    }

    /** Returns the answers in the order of the questions. When it returns or throws, no call to the backend is running. */
    List<String> answers(int n, long ms) throws IOException, TimeoutException, InterruptedException {
        List<Integer> questions = IntStream.range(0, n).boxed().toList();
        return Thrum.withTimeout(properties.timeout(),
                () -> Thrum.pmap(properties.limit(), questions, question -> backend.answer(question, ms)));
    }
}

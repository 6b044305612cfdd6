package io.github.thrumclj.example;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.TimeoutException;

import org.springframework.http.HttpStatus;
import org.springframework.http.ProblemDetail;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

@RestController
class FanOutController {
    private final FanOutService service;

    FanOutController(FanOutService service) {
        this.service = service;
    }

    record Answers(int n, long ms, List<String> answers) {
    }

    /** Asks n questions of ms each, and says how many ms all of them took. */
    @GetMapping("/fan-out")
    Answers fanOut(@RequestParam(defaultValue = "20") int n, @RequestParam(defaultValue = "200") long ms)
            throws IOException, TimeoutException, InterruptedException {
        Bounds.check("n", n, 0, 1000);
        Bounds.check("ms", ms, 0, 60_000);
        long start = System.nanoTime();
        List<String> answers = service.answers(n, ms);
        return new Answers(n, (System.nanoTime() - start) / 1_000_000, answers);
    }

    @ExceptionHandler(TimeoutException.class)
    ProblemDetail late() {
        return ProblemDetail.forStatusAndDetail(HttpStatus.GATEWAY_TIMEOUT, "The backend did not answer in time");
    }

    @ExceptionHandler(IOException.class)
    ProblemDetail failed() {
        return ProblemDetail.forStatusAndDetail(HttpStatus.BAD_GATEWAY, "The backend failed");
    }
}

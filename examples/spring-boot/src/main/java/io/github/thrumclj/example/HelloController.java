package io.github.thrumclj.example;

import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

@RestController
class HelloController {
    /** Waits, and says on which kind of thread. */
    @GetMapping(path = "/hello", produces = "text/plain")
    String hello(@RequestParam(defaultValue = "1000") long ms) throws InterruptedException {
        Bounds.check("ms", ms, 0, 60_000);
        Thread.sleep(ms);
        return "Hello from a " + (Thread.currentThread().isVirtual() ? "virtual" : "platform") + " thread\n";
    }
}

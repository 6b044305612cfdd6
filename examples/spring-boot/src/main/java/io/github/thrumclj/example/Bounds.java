package io.github.thrumclj.example;

import org.springframework.http.HttpStatus;
import org.springframework.web.server.ResponseStatusException;

/** What a caller may ask for; anything else is answered with 400. */
final class Bounds {
    private Bounds() {
    }

    static void check(String name, long value, long min, long max) {
        if (value < min || value > max) {
            throw new ResponseStatusException(HttpStatus.BAD_REQUEST, name + " must be between " + min + " and " + max);
        }
    }
}

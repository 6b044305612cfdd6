package io.github.thrumclj.example;

import java.io.IOException;

/** What the application would call over the network, and waits for. */
interface Backend {
    String answer(int question, long ms) throws IOException, InterruptedException;
}

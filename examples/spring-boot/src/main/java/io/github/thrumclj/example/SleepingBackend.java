package io.github.thrumclj.example;

import org.springframework.stereotype.Component;

@Component
class SleepingBackend implements Backend {
    @Override
    public String answer(int question, long ms) throws InterruptedException {
        Thread.sleep(ms);
        return "answer " + question;
    }
}

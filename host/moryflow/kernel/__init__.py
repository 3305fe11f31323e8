"""One turn: the loop, the model call, the one door to tools, verdicts. What cannot be a plugin."""

"""One turn: the loop, the model call, the one door to tools, and the verdicts. This part cannot be a plugin."""

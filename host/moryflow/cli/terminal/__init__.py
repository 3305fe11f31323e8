"""What a terminal shows and takes: text, Markdown, questions, streams, signals, the end of the process."""

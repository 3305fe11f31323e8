"""The ground floor: where things are, the table of built-in plugins, writing a file whole. It imports nothing of the host."""

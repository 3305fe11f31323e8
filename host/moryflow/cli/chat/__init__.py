"""A conversation: its input, its slash commands, its turns."""

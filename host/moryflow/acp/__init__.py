"""The Agent Client Protocol, wire version 1: an editor at the other end of standard input and output."""

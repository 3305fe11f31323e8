"""Calling plugins: which there are, in which order, one isolated call, its deadline, its record, and who is left out."""

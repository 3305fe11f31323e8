"""Questions to a person and their answers: what is asked, what it is bound to, which words answer it."""

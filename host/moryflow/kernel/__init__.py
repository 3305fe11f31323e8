"""What cannot be a plugin: loading and calling plugins, the turn loop, the one door to tools, verdicts, approvals."""

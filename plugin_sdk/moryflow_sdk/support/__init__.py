"""Helpers that the host and its built-in plugins share: patterns, addresses, the sandbox, Markdown files.

Your plugin may use them, but they are not part of the contract: a release may change or remove them without a new ``API``. A
plugin that uses them should name the version of Moryflow that it was written for.
"""

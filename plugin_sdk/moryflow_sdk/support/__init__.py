"""Helpers that the host and its built-in plugins share, for plugins too: patterns, addresses, sandbox, files of Markdown.

They are no part of the contract: a release may change or remove them without a new ``API``. A plugin that uses one should name
the version of Moryflow that it was written for.
"""

"""What every plugin should pass: ``pytest --moryflow-plugin PATH``. Each module is a group of checks.

A check that fails says in one sentence what is wrong, where, and what to do about it.
"""

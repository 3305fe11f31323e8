"""Fixtures: see the package."""

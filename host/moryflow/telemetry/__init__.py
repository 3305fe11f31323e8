"""Traces for OpenTelemetry: spans made from a stored session, as OTLP/HTTP JSON, to a collector or into a file.

Everything is read through the store's protocol after a turn has ended; nothing happens while a step runs. So a session from
before telemetry was on can be exported as well, and an export made twice is the same.
"""

from .background import BackgroundExport

__all__ = ["BackgroundExport"]

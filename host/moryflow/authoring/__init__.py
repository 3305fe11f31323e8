"""Tools for plugin authors: scaffold, call one hook chain, trace a session and replay it."""

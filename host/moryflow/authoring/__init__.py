"""Tools for plugin authors: scaffold, call one hook chain, trace a session, replay and bisect it."""

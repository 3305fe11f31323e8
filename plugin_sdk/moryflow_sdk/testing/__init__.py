"""The pytest plugin for plugin authors."""

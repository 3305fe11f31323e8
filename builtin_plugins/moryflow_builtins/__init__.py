"""The built-in plugins: ordinary plugins, one package each, that use only the SDK."""

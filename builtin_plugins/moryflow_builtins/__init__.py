"""The built-in plugins: ordinary plugins, one room each, that use nothing but the SDK."""

"""The commands: one file each, imported when it is used."""

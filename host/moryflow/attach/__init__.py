"""The client side of ``--attach``: it imports nothing but a few modules of Python, so that the command starts at once."""

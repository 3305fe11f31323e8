"""``moryflow serve``: one host over HTTP on loopback, for the page and for every other client."""

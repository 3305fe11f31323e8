"""``moryflow permission``: predict, check, replay and change what is allowed."""

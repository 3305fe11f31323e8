"""The composition root: the host, its sessions and turns, their sub-agents, and the generation of plugins a turn uses."""

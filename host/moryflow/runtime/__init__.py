"""The composition root: a host, its sessions and turns, the sub-agents, the generation of plugins that they use."""

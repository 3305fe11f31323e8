"""The table of built-in plugins. Removing a line removes the feature."""

from __future__ import annotations

BUILTINS: tuple[str, ...] = (
    "moryflow_builtins.permission",
    "moryflow_builtins.doom_loop",
    "moryflow_builtins.budgets",
    "moryflow_builtins.audit",
    "moryflow_builtins.truncation",
    "moryflow_builtins.files",
    "moryflow_builtins.search",
    "moryflow_builtins.shell",
    "moryflow_builtins.web",
    "moryflow_builtins.mcp",
    "moryflow_builtins.titles",
    "moryflow_builtins.instructions",
    "moryflow_builtins.skills",
    "moryflow_builtins.snapshots",
    "moryflow_builtins.checkers",
    "moryflow_builtins.agents",
    "moryflow_builtins.tasks",
    "moryflow_builtins.ask_user",
    "moryflow_builtins.memory_bank",
    "moryflow_builtins.user_agents",
    "moryflow_builtins.user_commands",
    "moryflow_builtins.config_hooks",
    "moryflow_builtins.claude_hooks",
    "moryflow_builtins.external_tools",
    "moryflow_builtins.openai_compatible",
    "moryflow_builtins.local_model",
    "moryflow_builtins.script_model",
    "moryflow_builtins.litellm_models",
    "moryflow_builtins.llm_plugins",
)

# The only plugin that may use the final phase of `tool_after`.
FINAL_TOOL_AFTER = "truncation"

# Plugins that load what the user wrote. Their hooks are called with those of user plugins, after all others.
AMONG_USER = frozenset({"user_agents", "config_hooks", "claude_hooks", "external_tools", "llm_plugins"})

# The built-in plugins' commands with their help, so that `--help` can list them without loading a plugin.
CONTRIBUTED: tuple[tuple[str, str], ...] = (
    ("audit", "Show the decisions that were taken, with filters"),
    ("memory-bank", "Make and check the memory bank of a folder"),
    ("instructions", "Show which instruction files are read, in which order, and what they cost"),
    ("llm", "Offer what packages written for the tool llm bring"),
    ("mcp", "Add, review and test MCP servers"),
    ("output", "List, show and open stored tool outputs"),
    ("permission", "Explain, check, test and change what is allowed"),
    ("redo", "Do again what the last undo took back"),
    ("skill", "List skills, show one, and say what is wrong with one"),
    ("summary", "Have a model say in a few sentences what was done"),
    ("undo", "Take back the last turn: its messages and its changes to files"),
)

# The commands above that are verbs of `moryflow session`.
OF_SESSIONS = ("undo", "redo", "summary")

_HOST_COMMANDS = """
help run chat serve acp import dev new plugin tool hook agent model session trace replay eval approval config doctor completion
"""
_CHAT_WORDS = """
help label mode model agent children parent stop reply new resume sessions show switch tree branch tools plugins context
cost export share effort compact queue quit exit q plan build
"""
# The host's own names, which no plugin may use. `slash`: for commands in `chat`.
RESERVED = {
    "agents": frozenset({"default_compact_agent"}),
    "commands": frozenset(_HOST_COMMANDS.split()),
    "slash": frozenset(_CHAT_WORDS.split()),
}

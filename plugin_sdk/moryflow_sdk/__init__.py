"""The contract between Moryflow and its plugins. It imports nothing of the host."""

from ._frozen import Frozen, ValidationError
from .agents import Agent, ModelSettings
from .calls import ToolCall, ToolResult
from .commands import Command, CommandContext, SlashResult
from .compaction import CompactionPlan
from .context import PluginContext, ToolContext, Turn, config_of
from .diagnostics import Diagnostic
from .errors import ConfigError, Denied, ModelError, MoryflowError, PluginError, ServiceNotDeclared, ToolError
from .events import Event
from .field_types import MAX_LEVELS, FrozenDict, freeze, thaw
from .hookspecs import HOOKS, HookInfo
from .markers import HookOptions, hookimpl
from .messages import ChatParams, Image, Message, SystemBlock, SystemPrompt, ToolRequest, Usage
from .models import (
    BaseProvider,
    Finished,
    Installable,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    ReasoningDelta,
    Status,
    TextDelta,
    ToolInputDelta,
    ToolSchema,
)
from .redact import redact
from .services import Artifact, Entry, NodeView, SessionView, Spawned, SpawnResult, StoredCall
from .targets import (
    DOMAINS,
    Identity,
    Target,
    TargetRequest,
    file_target,
    mcp_target,
    query_target,
    shell_target,
    task_target,
    tool_target,
    url_target,
)
from .tools import Tool, tool
from .verdicts import Allow, Ask, Deny, Remember, Rule, Ruling, Stop, Verdict

API = 1
"""Version of this contract; ``plugin.toml`` names the one it was written for."""

__all__ = [
    "API",
    "DOMAINS",
    "HOOKS",
    "MAX_LEVELS",
    "Agent",
    "Allow",
    "Artifact",
    "Ask",
    "BaseProvider",
    "ChatParams",
    "Command",
    "CommandContext",
    "CompactionPlan",
    "ConfigError",
    "Denied",
    "Deny",
    "Diagnostic",
    "Entry",
    "Event",
    "Finished",
    "Frozen",
    "FrozenDict",
    "HookInfo",
    "HookOptions",
    "Identity",
    "Image",
    "Installable",
    "Message",
    "ModelError",
    "ModelEvent",
    "ModelInfo",
    "ModelProvider",
    "ModelRequest",
    "ModelSettings",
    "MoryflowError",
    "NodeView",
    "PluginContext",
    "PluginError",
    "ReasoningDelta",
    "Remember",
    "Rule",
    "Ruling",
    "ServiceNotDeclared",
    "SessionView",
    "SlashResult",
    "SpawnResult",
    "Spawned",
    "Status",
    "Stop",
    "StoredCall",
    "SystemBlock",
    "SystemPrompt",
    "Target",
    "TargetRequest",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolInputDelta",
    "ToolRequest",
    "ToolResult",
    "ToolSchema",
    "Turn",
    "Usage",
    "ValidationError",
    "Verdict",
    "config_of",
    "file_target",
    "freeze",
    "hookimpl",
    "mcp_target",
    "query_target",
    "redact",
    "shell_target",
    "task_target",
    "thaw",
    "tool",
    "tool_target",
    "url_target",
]

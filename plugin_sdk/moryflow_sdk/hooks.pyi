# Made by tests/packaging/refresh_docs.py from moryflow_sdk.hookspecs; do not edit.
# fmt: off
# ruff: noqa
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, overload

from .agents import Agent
from .calls import ToolCall, ToolResult
from .commands import Command
from .context import PluginContext, Turn
from .errors import Diagnostic
from .events import Event
from .hookspecs import CompactionPlan, OnFailure
from .models import ChatParams, Message, ModelProvider, SystemBlock, SystemPrompt
from .tools import Tool
from .verdicts import Ruling, Stop, Verdict

class _PluginStartCtx(Protocol):
    def __call__(self, *, ctx: PluginContext) -> Callable[[], Any] | None | Awaitable[Callable[[], Any] | None]: ...
_PluginStart = TypeVar("_PluginStart", bound=Callable[[], Callable[[], Any] | None | Awaitable[Callable[[], Any] | None]] | _PluginStartCtx)
@overload
def plugin_start(function: _PluginStart, /) -> _PluginStart:
    """Open what the plugin needs while it is loaded."""
@overload
def plugin_start(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_PluginStart], _PluginStart]: ...

class _ToolsCtx(Protocol):
    def __call__(self, *, ctx: PluginContext) -> Iterable[Tool | Diagnostic] | Awaitable[Iterable[Tool | Diagnostic]]: ...
_Tools = TypeVar("_Tools", bound=Callable[[], Iterable[Tool | Diagnostic] | Awaitable[Iterable[Tool | Diagnostic]]] | _ToolsCtx)
@overload
def tools(function: _Tools, /) -> _Tools:
    """Add tools."""
@overload
def tools(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Tools], _Tools]: ...

class _AgentsCtx(Protocol):
    def __call__(self, *, ctx: PluginContext) -> Iterable[Agent] | Awaitable[Iterable[Agent]]: ...
_Agents = TypeVar("_Agents", bound=Callable[[], Iterable[Agent] | Awaitable[Iterable[Agent]]] | _AgentsCtx)
@overload
def agents(function: _Agents, /) -> _Agents:
    """Add agents."""
@overload
def agents(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Agents], _Agents]: ...

class _ModelsCtx(Protocol):
    def __call__(self, *, ctx: PluginContext) -> Iterable[ModelProvider] | Awaitable[Iterable[ModelProvider]]: ...
_Models = TypeVar("_Models", bound=Callable[[], Iterable[ModelProvider] | Awaitable[Iterable[ModelProvider]]] | _ModelsCtx)
@overload
def models(function: _Models, /) -> _Models:
    """Add model providers."""
@overload
def models(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Models], _Models]: ...

class _CommandsCtx(Protocol):
    def __call__(self, *, ctx: PluginContext) -> Iterable[Command] | Awaitable[Iterable[Command]]: ...
_Commands = TypeVar("_Commands", bound=Callable[[], Iterable[Command] | Awaitable[Iterable[Command]]] | _CommandsCtx)
@overload
def commands(function: _Commands, /) -> _Commands:
    """Add commands to the command line or to ``chat``."""
@overload
def commands(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Commands], _Commands]: ...

class _SystemBlocksTurn(Protocol):
    def __call__(self, *, turn: Turn) -> Iterable[SystemBlock] | Awaitable[Iterable[SystemBlock]]: ...
_SystemBlocks = TypeVar("_SystemBlocks", bound=Callable[[], Iterable[SystemBlock] | Awaitable[Iterable[SystemBlock]]] | _SystemBlocksTurn)
@overload
def system_blocks(function: _SystemBlocks, /) -> _SystemBlocks:
    """Add blocks to the system prompt that no transform can remove."""
@overload
def system_blocks(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_SystemBlocks], _SystemBlocks]: ...

class _ChatMessagesMessages(Protocol):
    def __call__(self, *, messages: Sequence[Message]) -> Sequence[Message] | None | Awaitable[Sequence[Message] | None]: ...
class _ChatMessagesTurn(Protocol):
    def __call__(self, *, turn: Turn) -> Sequence[Message] | None | Awaitable[Sequence[Message] | None]: ...
class _ChatMessagesMessagesTurn(Protocol):
    def __call__(self, *, messages: Sequence[Message], turn: Turn) -> Sequence[Message] | None | Awaitable[Sequence[Message] | None]: ...
_ChatMessages = TypeVar("_ChatMessages", bound=Callable[[], Sequence[Message] | None | Awaitable[Sequence[Message] | None]] | _ChatMessagesMessages | _ChatMessagesTurn | _ChatMessagesMessagesTurn)
@overload
def chat_messages(function: _ChatMessages, /) -> _ChatMessages:
    """Change the messages of the next request."""
@overload
def chat_messages(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ChatMessages], _ChatMessages]: ...

class _ChatSystemSystem(Protocol):
    def __call__(self, *, system: SystemPrompt) -> SystemPrompt | None | Awaitable[SystemPrompt | None]: ...
class _ChatSystemTurn(Protocol):
    def __call__(self, *, turn: Turn) -> SystemPrompt | None | Awaitable[SystemPrompt | None]: ...
class _ChatSystemSystemTurn(Protocol):
    def __call__(self, *, system: SystemPrompt, turn: Turn) -> SystemPrompt | None | Awaitable[SystemPrompt | None]: ...
_ChatSystem = TypeVar("_ChatSystem", bound=Callable[[], SystemPrompt | None | Awaitable[SystemPrompt | None]] | _ChatSystemSystem | _ChatSystemTurn | _ChatSystemSystemTurn)
@overload
def chat_system(function: _ChatSystem, /) -> _ChatSystem:
    """Change the system prompt."""
@overload
def chat_system(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ChatSystem], _ChatSystem]: ...

class _ChatParamsParams(Protocol):
    def __call__(self, *, params: ChatParams) -> ChatParams | None | Awaitable[ChatParams | None]: ...
class _ChatParamsTurn(Protocol):
    def __call__(self, *, turn: Turn) -> ChatParams | None | Awaitable[ChatParams | None]: ...
class _ChatParamsParamsTurn(Protocol):
    def __call__(self, *, params: ChatParams, turn: Turn) -> ChatParams | None | Awaitable[ChatParams | None]: ...
_ChatParams = TypeVar("_ChatParams", bound=Callable[[], ChatParams | None | Awaitable[ChatParams | None]] | _ChatParamsParams | _ChatParamsTurn | _ChatParamsParamsTurn)
@overload
def chat_params(function: _ChatParams, /) -> _ChatParams:
    """Change temperature, top-p, output limit or extra fields of the next model call."""
@overload
def chat_params(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ChatParams], _ChatParams]: ...

class _ToolBeforeCall(Protocol):
    def __call__(self, *, call: ToolCall) -> ToolCall | Verdict | None | Awaitable[ToolCall | Verdict | None]: ...
class _ToolBeforeTurn(Protocol):
    def __call__(self, *, turn: Turn) -> ToolCall | Verdict | None | Awaitable[ToolCall | Verdict | None]: ...
class _ToolBeforeCallTurn(Protocol):
    def __call__(self, *, call: ToolCall, turn: Turn) -> ToolCall | Verdict | None | Awaitable[ToolCall | Verdict | None]: ...
_ToolBefore = TypeVar("_ToolBefore", bound=Callable[[], ToolCall | Verdict | None | Awaitable[ToolCall | Verdict | None]] | _ToolBeforeCall | _ToolBeforeTurn | _ToolBeforeCallTurn)
@overload
def tool_before(function: _ToolBefore, /) -> _ToolBefore:
    """Change the arguments of a call before anyone judges it."""
@overload
def tool_before(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ToolBefore], _ToolBefore]: ...

class _ToolGateCall(Protocol):
    def __call__(self, *, call: ToolCall) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolGateTurn(Protocol):
    def __call__(self, *, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolGateCallTurn(Protocol):
    def __call__(self, *, call: ToolCall, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
_ToolGate = TypeVar("_ToolGate", bound=Callable[[], Verdict | None | Awaitable[Verdict | None]] | _ToolGateCall | _ToolGateTurn | _ToolGateCallTurn)
@overload
def tool_gate(function: _ToolGate, /) -> _ToolGate:
    """Judge a call."""
@overload
def tool_gate(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ToolGate], _ToolGate]: ...

class _ToolDecidedCall(Protocol):
    def __call__(self, *, call: ToolCall) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedRuling(Protocol):
    def __call__(self, *, ruling: Ruling) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedTurn(Protocol):
    def __call__(self, *, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedCallRuling(Protocol):
    def __call__(self, *, call: ToolCall, ruling: Ruling) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedCallTurn(Protocol):
    def __call__(self, *, call: ToolCall, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedRulingTurn(Protocol):
    def __call__(self, *, ruling: Ruling, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
class _ToolDecidedCallRulingTurn(Protocol):
    def __call__(self, *, call: ToolCall, ruling: Ruling, turn: Turn) -> Verdict | None | Awaitable[Verdict | None]: ...
_ToolDecided = TypeVar("_ToolDecided", bound=Callable[[], Verdict | None | Awaitable[Verdict | None]] | _ToolDecidedCall | _ToolDecidedRuling | _ToolDecidedTurn | _ToolDecidedCallRuling | _ToolDecidedCallTurn | _ToolDecidedRulingTurn | _ToolDecidedCallRulingTurn)
@overload
def tool_decided(function: _ToolDecided, /) -> _ToolDecided:
    """Learn the final ruling before the tool runs, and make it stricter if necessary."""
@overload
def tool_decided(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ToolDecided], _ToolDecided]: ...

class _ToolAfterCall(Protocol):
    def __call__(self, *, call: ToolCall) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterResult(Protocol):
    def __call__(self, *, result: ToolResult) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterTurn(Protocol):
    def __call__(self, *, turn: Turn) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterCallResult(Protocol):
    def __call__(self, *, call: ToolCall, result: ToolResult) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterCallTurn(Protocol):
    def __call__(self, *, call: ToolCall, turn: Turn) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterResultTurn(Protocol):
    def __call__(self, *, result: ToolResult, turn: Turn) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
class _ToolAfterCallResultTurn(Protocol):
    def __call__(self, *, call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]: ...
_ToolAfter = TypeVar("_ToolAfter", bound=Callable[[], ToolResult | Stop | None | Awaitable[ToolResult | Stop | None]] | _ToolAfterCall | _ToolAfterResult | _ToolAfterTurn | _ToolAfterCallResult | _ToolAfterCallTurn | _ToolAfterResultTurn | _ToolAfterCallResultTurn)
@overload
def tool_after(function: _ToolAfter, /) -> _ToolAfter:
    """Change what a tool returned before the model sees it."""
@overload
def tool_after(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_ToolAfter], _ToolAfter]: ...

class _CompactionPlan(Protocol):
    def __call__(self, *, plan: CompactionPlan) -> CompactionPlan | None | Awaitable[CompactionPlan | None]: ...
class _CompactionTurn(Protocol):
    def __call__(self, *, turn: Turn) -> CompactionPlan | None | Awaitable[CompactionPlan | None]: ...
class _CompactionPlanTurn(Protocol):
    def __call__(self, *, plan: CompactionPlan, turn: Turn) -> CompactionPlan | None | Awaitable[CompactionPlan | None]: ...
_Compaction = TypeVar("_Compaction", bound=Callable[[], CompactionPlan | None | Awaitable[CompactionPlan | None]] | _CompactionPlan | _CompactionTurn | _CompactionPlanTurn)
@overload
def compaction(function: _Compaction, /) -> _Compaction:
    """Change a compaction before it runs: protect nodes, add context, change instructions, supply the summary, decline."""
@overload
def compaction(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Compaction], _Compaction]: ...

class _EventEvent(Protocol):
    def __call__(self, *, event: Event) -> None | Awaitable[None]: ...
class _EventTurn(Protocol):
    def __call__(self, *, turn: Turn | None) -> None | Awaitable[None]: ...
class _EventEventTurn(Protocol):
    def __call__(self, *, event: Event, turn: Turn | None) -> None | Awaitable[None]: ...
_Event = TypeVar("_Event", bound=Callable[[], None | Awaitable[None]] | _EventEvent | _EventTurn | _EventEventTurn)
@overload
def event(function: _Event, /) -> _Event:
    """Receive an event."""
@overload
def event(
    *,
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
) -> Callable[[_Event], _Event]: ...

"""One example for each value of the SDK. The reference on the site shows the bodies; the tests run them."""

from __future__ import annotations

import copy

from moryflow_sdk import (
    DOMAINS,
    MAX_LEVELS,
    Agent,
    Allow,
    Ask,
    ChatParams,
    CompactionPlan,
    ConfigError,
    Denied,
    Deny,
    Diagnostic,
    Event,
    Frozen,
    FrozenDict,
    Identity,
    Image,
    Message,
    ModelError,
    ModelSettings,
    MoryflowError,
    Offer,
    PluginError,
    Remember,
    Rule,
    Ruling,
    ServiceNotDeclared,
    Stop,
    SystemBlock,
    SystemPrompt,
    Target,
    TargetRequest,
    ToolCall,
    ToolError,
    ToolRequest,
    ToolResult,
    Usage,
    ValidationError,
    Verdict,
    file_target,
    freeze,
    mcp_target,
    query_target,
    redact,
    shell_target,
    task_target,
    thaw,
    tool_target,
    url_target,
)


# example of: Frozen
def example_frozen() -> None:
    class Note(Frozen):
        text: str
        tags: tuple[str, ...] = ()

    note = Note(text="buy milk")
    assert note.replace(tags=["home"]) == Note(text="buy milk", tags=("home",))
    assert note.model_dump() == {"text": "buy milk", "tags": ()}


# example of: ValidationError
def example_validation_error() -> None:
    try:
        ToolCall.model_validate({"id": "1", "tool": "read", "args": {}, "colour": "red"})
    except ValidationError as error:
        assert str(error) == "ToolCall.colour: there is no such field"


# example of: FrozenDict
def example_frozen_dict() -> None:
    args = FrozenDict(path="notes.md")
    changed = {**args, "limit": 10}  # a new, ordinary dict
    assert changed == {"path": "notes.md", "limit": 10}
    assert copy.deepcopy(args) is not args


# example of: freeze, thaw
def example_freeze() -> None:
    frozen = freeze({"tags": ["a", "b"]})
    assert frozen == {"tags": ("a", "b")}
    assert thaw(frozen) == {"tags": ["a", "b"]}


# example of: MAX_LEVELS
def example_max_levels() -> None:
    nested: list[object] = []
    for _ in range(MAX_LEVELS + 1):
        nested = [nested]
    try:
        freeze(nested)
    except ValueError as error:
        assert "100 levels deep" in str(error)


# example of: ToolCall
def example_tool_call() -> None:
    call = ToolCall(id="call_1", tool="write", args={"path": "a.md", "content": "Hello"})
    changed = call.replace(args={**call.args, "path": "b.md"})
    assert (call.args["path"], changed.args["path"]) == ("a.md", "b.md")


# example of: ToolResult
def example_tool_result() -> None:
    result = ToolResult(output="3 files", title="ls src (3 entries)", metadata={"entries": 3})
    assert result.status == "ok"
    failed = ToolResult(status="error", code="not_found", output="there is no such file")
    assert failed.replace(output="src: there is no such folder").code == "not_found"


# example of: Image
def example_image() -> None:
    picture = Image(media_type="image/png", data="iVBORw0KGgo=", width=640, height=480)
    message = Message(role="user", text="What is this?", images=(picture,))
    assert message.images[0].media_type == "image/png"


# example of: Message, ToolRequest
def example_message() -> None:
    asked = ToolRequest(id="call_1", name="read", arguments='{"path": "notes.md"}')
    conversation = (
        Message(role="user", text="What is in my notes?"),
        Message(role="assistant", tool_calls=(asked,)),
        Message(role="tool", text="# Notes", call_id="call_1"),
    )
    assert conversation[1].tool_calls[0].problem is None


# example of: Usage
def example_usage() -> None:
    total = Usage(input=1000, output=50, cached=800) + Usage(input=1100, output=20)
    assert (total.input, total.output, total.cached) == (2100, 70, 800)


# example of: SystemPrompt, SystemBlock
def example_system_prompt() -> None:
    prompt = SystemPrompt(blocks=(SystemBlock(id="base", text="You help."),))
    longer = prompt.append(SystemBlock(id="date", text="Today is Monday.", stable=False))
    assert longer.text == "You help.\n\nToday is Monday."


# example of: ChatParams
def example_chat_params() -> None:
    params = ChatParams(temperature=0.2, max_tokens=500)
    assert params.replace(temperature=None).max_tokens == 500


# example of: CompactionPlan
def example_compaction_plan() -> None:
    plan = CompactionPlan(covered=("n1", "n2"), first_kept="n3", tokens_before=90_000)
    kept = plan.replace(protect=(plan.covered[0],), context=("The goal is a green build.",))
    assert kept.protect == ("n1",)


# example of: Agent
def example_agent() -> None:
    reviewer = Agent(
        id="reviewer",
        description="Reads a change and says what is wrong with it.",
        mode="subagent",
        prompt="You review code. Never edit a file.",
        tools=("read", "grep", "glob"),
        rules=(Rule(domain="edit", pattern="*", decision="deny"),),
    )
    assert reviewer.tools is not None and "write" not in reviewer.tools


# example of: ModelSettings
def example_model_settings() -> None:
    careful = Agent(id="careful", settings=ModelSettings(temperature=0, max_tokens=2000))
    assert careful.settings.top_p is None  # the model's own default


# example of: Diagnostic
def example_diagnostic() -> None:
    wrong = Diagnostic(file="agents/reviewer.md", line=3, message="unknown key 'modle'", next_step="write model")
    assert str(wrong) == "agents/reviewer.md:3: unknown key 'modle'; next: write model"


# example of: redact
def example_redact() -> None:
    assert redact("curl -H 'Authorization: Bearer abcdef123456'") == "curl -H 'Authorization: [redacted]'"
    assert redact("the code is swordfish", "swordfish") == "the code is [redacted]"


# example of: Allow
def example_allow() -> None:
    verdict = Allow("reading is harmless")
    assert (verdict.decision, verdict.reason) == ("allow", "reading is harmless")


# example of: Ask
def example_ask() -> None:
    verdict = Ask(
        "this publishes the package",
        remember=(Remember(scope="session", domain="bash", pattern="uv publish"),),
    )
    assert (verdict.decision, verdict.bypass) == ("ask", "mode")  # full_access lifts it


# example of: Deny
def example_deny() -> None:
    verdict = Deny("lock files are generated", next_step="edit pyproject.toml instead")
    assert (verdict.decision, verdict.bypass) == ("deny", "never")  # full_access does not lift it


# example of: Stop
def example_stop() -> None:
    verdict = Stop("the daily budget is spent", end_reason="budget")
    assert verdict.decision == "stop"


# example of: Verdict
def example_verdict() -> None:
    def gate(path: str) -> Verdict | None:
        return Deny("generated") if path.endswith(".lock") else None

    assert isinstance(gate("uv.lock"), Deny)
    assert gate("notes.md") is None


# example of: Ruling
def example_ruling() -> None:
    ruling = Ruling(decision="allow", verdicts=(("permission", Allow()),), mode="agent", by="rule")
    assert [plugin for plugin, verdict in ruling.verdicts if verdict.decision == "allow"] == ["permission"]


# example of: Remember
def example_remember() -> None:
    offered = Remember(scope="user", domain="bash", pattern="make test", folder="vault:/sub")
    assert offered.sentence == "make test in vault:/sub"


# example of: Offer
def example_offer() -> None:
    look = Offer(name="look", says="run read-only commands without asking")
    assert Ask("no rule covers ls", offer=look).offer == look


# example of: Rule
def example_rule() -> None:
    rule = Rule(domain="bash", pattern="git push *", decision="ask")
    assert rule.source == "user"


# example of: DOMAINS
def example_domains() -> None:
    assert DOMAINS == ("read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool")


# example of: file_target
def example_file_target() -> None:
    request = file_target("notes.md", "edit")
    assert (request.kind, request.value, request.domain) == ("file", "notes.md", "edit")


# example of: shell_target
def example_shell_target() -> None:
    assert shell_target("make test", folder="sub").folder == "sub"


# example of: url_target
def example_url_target() -> None:
    assert url_target("https://example.org/").domain == "web_fetch"


# example of: query_target
def example_query_target() -> None:
    assert query_target("pluggy hook order").domain == "web_search"


# example of: mcp_target
def example_mcp_target() -> None:
    assert mcp_target("github", "create_issue").value == "github/create_issue"


# example of: task_target
def example_task_target() -> None:
    assert task_target("reviewer").kind == "task"


# example of: tool_target
def example_tool_target() -> None:
    assert tool_target("hello").value == "hello"


# example of: TargetRequest
def example_target_request() -> None:
    assert TargetRequest(kind="file", value="a.md", domain="read") == file_target("a.md")


# example of: Target, Identity
def example_target() -> None:
    target = Target(
        domain="read",
        kind="file",
        text="vault:/notes.md",
        given="./notes.md",
        identity=Identity(device=64769, inode=1048602),
    )
    assert target.error is None


# example of: Event
def example_event() -> None:
    event = Event(type="tool.result", session="s1", seq=7, data={"tool": "read", "status": "ok"})
    flat = event.as_json()
    assert (flat["type"], flat["tool"], flat["v"]) == ("tool.result", "read", 1)


# example of: MoryflowError
def example_moryflow_error() -> None:
    error = MoryflowError("the file is empty", where="notes.md", next_step="write something into it")
    assert str(error) == "notes.md: the file is empty. Next: write something into it"


# example of: ToolError
def example_tool_error() -> None:
    def divide(a: float, b: float) -> float:
        if b == 0:
            raise ToolError("cannot divide by zero", code="invalid_args", next_step="give another b")
        return a / b

    assert divide(6, 3) == 2


# example of: ModelError
def example_model_error() -> None:
    error = ModelError("too many requests", code="rate_limit", retry_after=2.5, status=429)
    assert error.retryable  # the host tries again after 2.5 seconds
    assert not ModelError("wrong key", code="auth", status=401).retryable


# example of: ConfigError
def example_config_error() -> None:
    error = ConfigError("maxLines must be positive", where="config.jsonc:5")
    assert (error.code, str(error)) == ("config", "config.jsonc:5: maxLines must be positive")


# example of: PluginError, ServiceNotDeclared
def example_plugin_error() -> None:
    error = ServiceNotDeclared("plugin notes uses the service 'history', which its manifest does not name")
    assert isinstance(error, PluginError) and error.code == "service_not_declared"


# example of: Denied
def example_denied() -> None:
    error = Denied("the user refused this call")
    assert (error.code, error.message) == ("denied", "the user refused this call")

"""Plugins and calls that several of these tests use."""

from __future__ import annotations

from typing import Any

SHOUT = '''
    """Shouts."""
    from moryflow_sdk import Deny, Message, SystemBlock, hookimpl, tool

    @tool(domain="read")
    def greet(name: str) -> str:
        """Greet NAME."""
        return f"hello {name}"

    @hookimpl
    def tools():
        return [greet]

    @hookimpl
    def tool_before(call):
        return call.replace(args={"name": call.args["name"].title()})

    @hookimpl
    def tool_gate(call):
        return Deny("bob is asleep", next_step="wait") if call.args["name"] == "Bob" else None

    @hookimpl
    def tool_after(result):
        return result.replace(output=result.output.upper())

    @hookimpl
    def chat_system(system):
        return system.append(SystemBlock(id="loud", text="Be loud." * 10))

    @hookimpl
    def chat_messages(messages):
        return [*messages, Message(role="user", text="(loud)")]

    @hookimpl
    def chat_params(params):
        return params.replace(temperature=0.5)

    @hookimpl
    def system_blocks():
        return [SystemBlock(id="more", text="x" * 400)]
'''
QUIET = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result): ...\n"
ANN, BOB = ({"name": "greet", "arguments": {"name": name}} for name in ("ann", "bob"))


def keeping(desk: Any) -> Any:
    """Return the desk, whose sessions keep what hooks are given."""
    desk.write(desk.home / "config.jsonc", '{"keepInputs": true}')
    return desk

"""The names that other systems have for tools, domains and models, and what they mean here.

From the documentation of Claude Code, OpenCode, Codex, GitHub Copilot, Gemini CLI and Cursor. A tool that does not exist here
stands in the table with nothing: an agent that is given it gets nothing, and one that is denied it loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from moryflow_sdk.agents import EDITORS

_TOOLS = {
    "read": "read_file read_many_files notebook_read view_image read/readFile",
    "ls": "list list_dir list_directory listDirectory search/listDirectory",
    "glob": "file_search findTestFiles search/fileSearch",
    "grep": "grep_search grep_files search_file_content text_search usages search/textSearch search/usages",
    "search_in_file": "",
    "glob grep search_in_file": "search codebase codebase_search search/codebase searchResults search/searchResults",
    "write": "write_file create_file create_directory edit/createFile edit/createDirectory",
    "edit": "replace edit_file edit_files edit/editFiles str_replace search_replace str_replace_editor",
    "multiedit": "",
    "apply_patch": "patch",
    "delete": "delete_file",
    "move": "",
    "bash": """shell local_shell exec exec_command write_stdin unified_exec run_shell_command run_terminal_cmd run_in_terminal
        terminal execute execute/runInTerminal run_command run_commands runCommands/runInTerminal power_shell run_tests
        run_tasks execute/runTests execute/runTask execute/createAndRunTask vscode/runCommand""",
    "web_fetch": "fetch web/fetch",
    "web_search": "google_web_search code_search",
    "web_fetch web_search": "web",
    "task": "agent run_subagent agent/runSubagent",
    "skill": "activate_skill",
    "ask_user": "ask_user_question question request_user_input ask_question vscode/askQuestions",
    "tool_search": "",
    "mcp__*": "mcp",
    "": """todo todos todo_read todo_write write_todos update_plan task_create task_get
        task_list task_update task_output task_stop bash_output kill_shell kill_bash exit_plan_mode enter_plan_mode
        plan_exit plan_enter slash_command send_message workflow lsp batch invalid notebook_edit save_memory think
        list_mcp_resources_tool read_lints read_mcp_resource_tool doom_loop changes problems extensions github_repo new
        run_notebooks vscode vscode_api test_failure terminal_last_command terminal_selection open_simple_browser""",
}
"""Our tools → the names that other systems have for them."""
_DENIED = {"notebookedit": EDITORS}
"""What is taken away with a tool that gives nothing: whoever may edit files may edit notebooks."""
_TOOL_SETS = (
    "read/",
    "edit/",
    "search/",
    "execute/",
    "web/",
    "vscode/",
    "agent/",
    "runcommands/",
    "runtasks/",
    "runnotebooks/",
)
"""How the names of Copilot's own tools begin; other names with a slash are of MCP servers."""

DOMAINS_ELSEWHERE = {
    **dict.fromkeys(("write", "patch", "apply_patch", "multiedit"), "edit"),
    "webfetch": "web_fetch",
    "websearch": "web_search",
    "codesearch": "web_search",
    "shell": "bash",
    "agent": "task",
}
"""The names that other systems use for domains, and ours."""

_MODELS = re.compile(
    r"(sonnet|opus|haiku|fable|default|opusplan|best|auto)(\[.*\])?\Z|[^/]*[\s|,][^/]*\Z|(GPT|Claude|Gemini|Grok)-[\w.-]*\Z"
)
"""Names of models that mean something only elsewhere: short names, and the names that Copilot shows to people."""


def plain_name(name: str) -> str:
    """Return a name without what differs between systems: ``WebFetch``, ``web_fetch`` and ``webfetch`` are one name."""
    return name.casefold().replace("_", "").replace("-", "")


_OURS = {tool for tools in _TOOLS for tool in tools.split()}
_KNOWN = {
    **{plain_name(name): tuple(ours.split()) for ours, names in _TOOLS.items() for name in names.split()},
    **{plain_name(tool): (tool,) for tool in _OURS},
}


def tools_here(name: str, *, denied: bool = False) -> tuple[str, ...]:
    """Return `name`, and the names or globs of our tools that it means in another system.

    :param denied: whether the tools are taken away; a glob then takes the tools of MCP servers too, as in OpenCode.
    """
    plain = plain_name(name)
    if plain in _KNOWN:
        return tuple(dict.fromkeys((name, *(_DENIED.get(plain, ()) if denied else ()), *_KNOWN[plain])))
    whole = re.sub(r"^mcp_(?!_)", "mcp__", name.removeprefix("@"))
    server, _, tool = whole.partition("/")
    if whole.startswith("mcp__"):  # Claude Code: without a tool it means all tools of the server
        return tuple(dict.fromkeys((name, whole, whole if whole.count("__") > 1 else f"{whole}__*")))
    if (tool or name.startswith("@")) and not name.casefold().startswith(_TOOL_SETS):
        return (name, f"mcp__{_part(server)}__{_part(tool or '*')}")
    if _GLOB & set(name) and (denied or not any(fnmatchcase(tool, name) for tool in _OURS)):
        return (name, f"mcp__{name}")
    return (name,)


_GLOB = frozenset("*?[")


def _part(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_*-]", "_", name)


def is_known(name: str) -> bool:
    """Whether a name is that of a tool here, or of one in another system."""
    plain = plain_name(name)
    return plain in _KNOWN or name.casefold().startswith(_TOOL_SETS)


def is_of_server(name: str) -> bool:
    """Whether a name can be that of a tool of an MCP server, which may come later, or is a glob."""
    return name.startswith(("mcp_", "@")) or "/" in name or bool(_GLOB & set(name))


def same_tools(name: str, tools: Iterable[str]) -> tuple[str, ...]:
    """Return those of `tools` that `name` means: the same name in another spelling, or all tools of the server of that name."""
    wanted = plain_name(name)
    return tuple(
        tool for tool in tools if wanted in map(plain_name, (tool, tool.removeprefix("mcp__"), *tool.split("__")[1:2]))
    )


def is_foreign_model(name: str) -> bool:
    """Whether a model's name means something only in another system."""
    return bool(_MODELS.match(name))

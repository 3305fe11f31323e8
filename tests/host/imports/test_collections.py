"""Collections made after the shapes of published ones, oddities and all: imported and used for one scripted day (issue F)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest
from moryflow.config.jsonc import parse

from .conftest import Person

SEVERITY = {"allow": 0, "ask": 1, "deny": 2}
OWN = """\ufeff{
  // mine, with a byte order mark and a comma too many
  "limits": { "maxSteps": 40 },
  "agents": { "runtime": { "permission": { "rules": [
    { "domain": "bash", "pattern": "make deploy*", "decision": "deny" }, // never here
    { "domain": "bash", "pattern": "npm publish*", "decision": "ask" },
  ] } } },
}
"""
SECRETS = ("ghp_1a2b3c", "sk-live-777", "Bearer abc.def", "hunter2")
PROBES = [
    *(("bash", {"command": text}) for text in (
        "ls", "git status", "git push origin main", "rm -rf build", "make deploy now", "npm publish", "npm run test",
        "curl x.y",
    )),
    *(("read", {"path": text}) for text in ("README.md", ".env", "sub/.env", "~/.ssh/id_rsa", "/etc/passwd")),
    *(("write", {"path": text, "content": ""}) for text in ("a.py", "generated/a.py", "/etc/hosts")),
    ("web_fetch", {"url": "https://docs.example/x"}), ("web_fetch", {"url": "https://other.example/"}),
]  # fmt: skip


@dataclass
class Collection:
    """What a collection holds, and what becomes of it.

    :ivar items: the original of an item → what becomes of it, and words of the reason or the result.
    :ivar freer: what of `PROBES` its own rules allow, and may therefore be freer here than before.
    :ivar answers: an agent that answers a prompt; ``build`` where the system has no agents of its own.
    :ivar told: the words of a command, and what it becomes.
    :ivar wrong: what ``agent check`` says about its agents, with the exit code `unusable`.
    :ivar tree: the kind of each node of its one session, and of its parent.
    """

    system: str
    theirs: tuple[str, ...]
    items: dict[str, tuple[str, str]]
    allowed: str
    denied: str
    freer: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    answers: str = "build"
    told: tuple[str, str] = ("", "")
    skills: frozenset[str] = frozenset()
    servers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tree: tuple[tuple[str, str | None], ...] = ()
    wrong: tuple[str, ...] = ()
    unusable: int = 0


def raw(person: Person, name: str, content: str) -> None:
    """Write a file as an editor on Windows does: a byte order mark, and lines that end in CR LF."""
    person.write(name, "").write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())


def commands_and_skills(person: Person, commands: str, skills: str) -> None:
    """Write commands and skills whose frontmatter is as often no YAML as it is."""
    text = "---\ndescription: Clean up: all of it\nargument-hint: [--dry-run] | [--force]\nallowed-tools: Bash(git:*)\n---\n"
    person.write(f"{commands}/git/clean.md", f"{text}Clean $ARGUMENTS, then $1, after !`git status`\n")
    raw(person, f"{commands}/plain.md", "Say $ARGUMENTS\n")
    person.write(f"{skills}/doors/SKILL.md", "---\nname: doors\ndescription: Set up the house: doors, windows\n---\nSteps.\n")
    raw(person, f"{skills}/long/SKILL.md", f"---\nname: long\ndescription: {'words ' * 400}\n---\nSteps.\n")


CLEAN = "Clean now, then now, after (run `git status` first, and use what it prints)"


# ---------------------------------------------------------------- the collections


def claude(person: Person) -> Collection:
    """Agents, commands, skills, hooks, rules, servers and a transcript, after six published repositories."""
    odd = """{
  // comments, and a comma too many
  "permissions": {
    "allow": ["Bash(npm run test:*)", "Bash(mkdir:*)", "WebFetch(domain:docs.example)", "bash(git status)", "Task(team:expert)",
              "Bash(make deploy:*)", "TodoWrite", "WebFetch(anything)", "((", 7, null],
    "deny": ["Bash(rm:*)", "Read(.env)", "Read(~/.ssh/**)", "mcp__gh__delete_repo", "Whatever(x)", "Edit(generated/)",],
    "ask": ["Bash(git push:*)", "MultiEdit"],
    "additionalDirectories": ["../elsewhere"],
    "defaultMode": "bypassPermissions",
  },
  "env": {"API_KEY": "sk-live-777"}, "model": "opus[1m]", "outputStyle": "Explanatory",
  "enabledPlugins": {"reviewer@tools": true},
  "hooks": {"SessionEnd": [{"hooks": [{"type": "command", "command": "true"}]}]},
}"""
    raw(person, ".claude/settings.json", odd)
    person.write(
        "guard.py",
        "import sys\nprint('held by a hook', file=sys.stderr)\nsys.exit(2 if 'held.txt' in sys.stdin.read() else 0)\n",
    )
    guard = [{"type": "command", "command": "python3 ~/guard.py"}]
    hooks = {
        "PreToolUse": [{"matcher": "Write|Edit", "hooks": guard}, {"matcher": "Bash", "hooks": "none"}, {"hooks": 3}, 4],
        "SessionStart": [{"hooks": [{"type": "command", "command": "uv run $CLAUDE_PROJECT_DIR/.claude/hooks/start.py"}]}],
        "Stop": [{"hooks": [{"type": "prompt", "prompt": "Done?"}]}],
        "Notification": 4,
    }
    local = {"permissions": {"allow": "Bash(echo hello:*)"}, "hooks": hooks}
    person.write(".claude/settings.local.json", local)
    for name, front in {
        "team/colon": "name: colon\ndescription: Review: on 'x'\ntools: Read, Bash(git log:*)\nmodel: sonnet",
        "team/deep/listed": 'name: Other Name\ndescription: d\ntools:\n  - Read\n  - Agent(x:y)\nmodel: "Claude Sonnet 4.5"',
        "quiet": "name: quiet\ndescription: d\ndisallowedTools: Write, Edit, MultiEdit, Bash\nmodel: inherit\ncolor: red",
        "odd": "name: odd\ndescription: [a | b\ntools: [Read, NoSuchTool\nmodel: fable",
        "one/twice": "name: twice\ndescription: the first",
        "two/twice": "name: twice\ndescription: the second",
    }.items():
        person.write(f".claude/agents/{name}.md", f"---\n{front}\n---\nYou are {name}.\n")
    raw(person, ".claude/agents/windows.md", "---\nname: windows\ndescription: d\ntools: Read\n---\nYou are CRLF.\n")
    person.write(".claude/agents/README.md", "# Agents\n")
    person.write(".claude/agents/latin.md", "").write_bytes(b"---\nname: latin\ndescription: caf\xe9\n---\nx\n")
    commands_and_skills(person, ".claude/commands", ".claude/skills")
    gh = {
        "command": "npx",
        "args": ["-y", "gh-mcp", "--token", "ghp_1a2b3c"],
        "env": {"TOKEN": "ghp_1a2b3c", "L": "${L:-info}"},
    }
    web = {"type": "http", "url": "https://mcp.example/x?api_key=hunter2", "headers": {"Authorization": "Bearer abc.def"}}
    local = {str(person.project): {"mcpServers": {"here": {"command": "srv"}}, "history": []}}
    servers = {"gh": gh, "web": web, "no thing": {"command": "x"}, "empty": {}, "pass": {"url": "https://u:hunter2@x.example"}}
    person.write(".claude.json", {"numStartups": 3, "mcpServers": servers, "projects": local})
    claude_transcript(person)
    return Collection(
        "claude",
        (".claude", ".claude.json"),
        {
            "defaultMode bypassPermissions": ("stricter", "no mode that asks less"),
            'allow "Bash(npm run test:*)"': ("same", "allow bash npm run test *"),
            'allow "bash(git status)"': ("same", "allow bash git status"),
            'allow "Task(team:expert)"': ("same", "allow task expert"),
            'allow "TodoWrite"': ("skipped", "no such tool here"),
            'allow "WebFetch(anything)"': ("skipped", "is not understood"),
            'allow "(("': ("skipped", "is no tool that is known here"),
            'deny "Whatever(x)"': ("stricter", "for any tool of that name"),
            'deny "mcp__gh__delete_repo"': ("same", "deny mcp gh/delete_repo"),
            "additionalDirectories ../elsewhere": ("skipped", "relative"),
            "opus[1m]": ("skipped", "a name of Claude Code's own"),
            "env API_KEY": ("skipped", "no value is copied"),
            "outputStyle": ("skipped", "no counterpart"),
            "plugin reviewer@tools": ("skipped", "moryflow plugin install"),
            "PreToolUse Write|Edit: python3 ~/guard.py": ("in place", "claudeHooks"),
            "Stop: prompt": ("in place", "claudeHooks"),
            "SessionEnd: true": ("skipped", "take the comments out of settings.json"),
            "gh": ("same", "set TOKEN, GH_ARG in your environment"),
            "web": ("same", "WEB_API_KEY"),
            "no thing": ("skipped", "odd name"),
            "pass": ("skipped", "has a password in it"),
            "empty": ("skipped", "neither a command nor an address"),
            f"here of {person.project}": ("skipped", "moryflow import claude"),
            f"9 in {person.home}/.claude/agents": ("in place", "userAgents"),
            f"2 in {person.home}/.claude/commands": ("in place", "userCommands"),
            f"2 in {person.home}/.claude/skills": ("in place", "read already"),
            "1 transcripts": ("same", "sessions with their branches"),
        },
        allowed="echo hello you",
        denied="rm -r build",
        freer=frozenset({"npm run test", "git status", "https://docs.example/x"}),
        agents=frozenset({"colon", "listed", "quiet", "odd", "twice", "windows"}),
        answers="colon",
        told=("/clean now", CLEAN),
        skills=frozenset({"doors", "long"}),
        servers={
            "gh": {"args": ["-y", "gh-mcp", "--token", "${GH_ARG}"], "env": {"TOKEN": "${TOKEN}", "L": "${L}"}},
            "web": {"url": "https://mcp.example/x?api_key=${WEB_API_KEY}",
                    "headers": {"Authorization": "${WEB_AUTHORIZATION}"}},
        },
        tree=(
            ("user", None), ("assistant", "user"), ("assistant", "assistant"), ("tool", "assistant"), ("tool", "tool"),
            ("assistant", "tool"), ("user", "assistant"), ("user", None),
        ),
        wrong=("README.md:1", "latin.md:3", "the id 'twice' is taken", "model 'sonnet' does not exist", "not YAML"),
        unusable=3,
    )  # fmt: skip


def claude_transcript(person: Person) -> None:
    """Write a transcript with a branch, a line that stands twice, an orphan, a subagent's lines and a torn end."""
    folder = str(person.project)

    def line(kind: str, name: str, above: str | None, content: Any, **more: Any) -> dict[str, Any]:
        about = {"type": kind, "uuid": name, "parentUuid": above, "cwd": folder, "timestamp": "2026-01-01T00:00:00.000Z"}
        return {**about, "message": {"role": kind, "content": content}, **more}

    def use(call: str, tool: str, **given: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": call, "name": tool, "input": given}

    image = {"type": "image", "source": {"type": "base64", "data": "eA=="}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}, image]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
    ]
    first = line("user", "a", None, "fix the tests")
    person.lines(
        ".claude/projects/-u-proj/one.jsonl",
        "\ufeff\n",
        {"type": "summary", "summary": "Fixing tests", "leafUuid": "f"},
        first,
        first,
        line("assistant", "b", "a", [{"type": "thinking", "thinking": "Hm."}, use("t1", "Bash", command="npm run test")]),
        line("assistant", "c", "b", [use("t2", "Read", file_path=f"{folder}/.env"), use("t3", "Bash", command="git push")]),
        line("user", "d", "c", results),
        {"type": "system", "uuid": "e", "parentUuid": "d", "content": "noise"},
        line("assistant", "f", "e", [{"type": "text", "text": "Done."}]),
        line("user", "g", "c", "no, like this", permissionMode="default"),
        line("user", "h", "f", "of a subagent", isSidechain=True),
        line("user", "i", "gone", "an orphan"),
        '[1]\n{"type": "file-history-snapshot"}\n{"type": "user", "uuid": "torn',
    )


def opencode(person: Person) -> Collection:
    """Rules in every spelling, agents with mappings of tools, servers, providers and a store of files."""
    home = ".config/opencode"
    odd = """{
  // what the user tuned
  "$schema": "x", "model": "anthropic/claude-sonnet-4-5", "small_model": "a/b", "theme": "dark", "plugin": ["thing"],
  "permission": {
    "bash": {"*": "deny", "git *": "allow", "git push*": "deny", "echo *": "allow", "ls": "allow", "make *": "allow"},
    "edit": {"generated/*": "deny"}, "read": {"*.env": "deny", "$HOME/.ssh/*": "deny"}, "external_directory": "ask",
    "webfetch": "sometimes", "gh_*": "ask", "frobnicate": "deny", "todowrite": "allow", "doom_loop": "ask",
  },
  "tools": {"websearch": false, "gh_delete*": false, "write": true},
  "agent": {"inline": {"prompt": "x"}}, "mode": {"old": {}}, "command": {"inside": {"template": "x"}},
  "mcp": {
    "gh": {"type": "local", "command": ["gh-mcp", "--token=ghp_1a2b3c"], "environment": {"TOKEN": "{env:GH}", "K": "hunter2"}},
    "far": {"type": "remote", "url": "https://mcp.example", "enabled": false, "headers": {"Authorization": "Bearer abc.def"}},
    "broken": {"type": "local", "command": []},
  },
  "provider": {"loc": {"options": {"baseURL": "http://127.0.0.1:1/v1", "apiKey": "{env:LOC}"}},
               "key": {"options": {"apiKey": "sk-live-777"}}},
  "instructions": ["docs/*.md"],
}"""
    raw(person, f"{home}/opencode.jsonc", odd)
    person.write(f"{home}/opencode.json", '{"permission": {"edit": "allow", "edit": "deny"}}')
    for name, front in {
        "agent/sub/mapped": "description: Maps: a lot\nid: other\nmode: subagent\ntemperature: 0.1\ntools:\n  write: false",
        "agents/careful": "description: d\nmode: primary\npermission:\n  bash:\n    \"*\": ask\n    \"git log*\": allow",
        "agents/plural": "description: d\npermissions:\n  bash: deny\nmodel: nobody/nothing",
    }.items():  # fmt: skip
        person.write(f"{home}/{name}.md", f"---\n{front}\n---\nYou are {name}.\n")
    commands_and_skills(person, f"{home}/command", f"{home}/skills")
    person.write(f"{home}/AGENTS.md", "Be brief.\n")
    store = ".local/share/opencode/storage"
    person.write(f"{store}/session/p/ses_1.json", {"id": "ses_1", "directory": str(person.project), "title": "First"})
    person.write(f"{store}/session/p/ses_2.json", "{torn")
    person.write(f"{store}/session/p/ses_3.json", {"id": "ses_3"})
    for number, role in enumerate(("user", "assistant", "assistant"), 1):
        person.write(f"{store}/message/ses_1/msg_{number}.json", {"id": f"msg_{number}", "role": role})
    person.write(f"{store}/part/msg_1/prt_1.json", {"type": "text", "text": "look"})
    person.write(f"{store}/part/msg_1/prt_2.json", {"type": "text", "text": "hidden", "synthetic": True})
    for number, command in enumerate(("git log", "git push", "make x", "rm -rf x"), 1):
        state = {"status": "completed", "input": {"command": command}, "output": "x"}
        part = {"type": "tool", "callID": f"c{number}", "tool": "bash", "state": state}
        person.write(f"{store}/part/msg_2/prt_{number}.json", part)
    person.write(f"{store}/part/msg_2/prt_9.json", {"type": "step-finish"})
    person.write(f"{store}/part/msg_3/prt_1.json", {"type": "text", "text": "Done."})
    return Collection(
        "opencode",
        (".config", ".local"),
        {
            "opencode.json": ("error", "stands twice"),
            'permission bash "*": deny': ("same", "deny bash *"),
            'permission webfetch "*": sometimes': ("stricter", "is no decision"),
            'permission gh_* "*": ask': ("same", "ask mcp gh/*"),
            'permission frobnicate "*": deny': ("stricter", "no tool that is known here"),
            'permission todowrite "*": allow': ("skipped", "no such tool here"),
            "tools websearch: false": ("same", "deny web_search *"),
            "tools gh_delete*: false": ("same", "deny mcp gh/delete*"),
            "gh": ("same", "set K, GH_ARG"),
            "far": ("same", "FAR_AUTHORIZATION"),
            "broken": ("skipped", "neither a command nor an address"),
            "provider loc": ("same", "models.providers.loc"),
            "provider key": ("skipped", "its key is not copied"),
            "inline": ("skipped", "write it as a file"),
            "old": ("skipped", "write it as a file"),
            "inside": ("skipped", "write it as a file"),
            "plugin": ("skipped", "JavaScript"),
            "theme": ("skipped", "no counterpart"),
            "small_model": ("skipped", "no counterpart"),
            "AGENTS.md": ("in place", "instructions.files"),
            f"1 in {person.home}/{home}/agent": ("in place", "userAgents"),
            f"2 in {person.home}/{home}/agents": ("in place", "userAgents"),
            f"2 in {person.home}/{home}/command": ("in place", "userCommands"),
            f"2 in {person.home}/{home}/skills": ("in place", "skills.paths"),
        },
        allowed="echo hello you",
        denied="git push origin",
        freer=frozenset({"ls", "git status"}),
        agents=frozenset({"other", "careful", "plural"}),
        answers="careful",
        told=("/clean now", CLEAN),
        skills=frozenset({"doors", "long"}),
        servers={
            "gh": {"command": "gh-mcp", "args": ["${GH_ARG}"], "env": {"TOKEN": "${GH}", "K": "${K}"}},
            "far": {"enabled": False, "headers": {"Authorization": "${FAR_AUTHORIZATION}"}},
        },
        tree=(
            ("user", None),
            ("assistant", "user"),
            *([("tool", "assistant")] + [("tool", "tool")] * 3),
            ("assistant", "tool"),
        ),
    )


def codex(person: Person) -> Collection:
    """A profile, rules in the little language, servers, prompts, skills and a rollout."""
    odd = """
model = "gpt-5"
model_provider = "corp"
profile = "work"
approval_policy = "never"
sandbox_mode = "danger-full-access"
notify = ["say", "done"]
[profiles.work]
approval_policy = "on-request"
sandbox_mode = "workspace-write"
[sandbox_workspace_write]
network_access = true
writable_roots = ["/"]
[model_providers.corp]
base_url = "http://127.0.0.1:1/v1"
env_key = "CORP_KEY"
http_headers = { Authorization = "Bearer abc.def" }
[projects."/home/u/x"]
trust_level = "trusted"
[mcp_servers.gh]
command = "gh-mcp"
args = ["--api-key", "sk-live-777"]
env = { TOKEN = "ghp_1a2b3c" }
env_vars = ["PASSED"]
enabled_tools = ["look", "wipe"]
disabled_tools = ["wipe"]
[mcp_servers.far]
url = "https://mcp.example"
bearer_token_env_var = "FAR"
http_headers = { X-Key = "hunter2" }
enabled_tools = []
enabled = false
[mcp_servers.none]
startup_timeout_sec = 3
"""
    raw(person, ".codex/config.toml", odd)
    rules = """# the strictest that matches counts
prefix_rule(pattern=["git", "push"], decision="prompt", justification="ask first")
prefix_rule(pattern=["git", ["status", "log", "push"]], decision="allow", match=["git log"])
prefix_rule(pattern=["rm"], decision="forbidden")
prefix_rule(pattern=["echo"])
network_rule(host="x.example", protocol="https", decision="deny")
"""
    raw(person, ".codex/rules/default.rules", rules)
    commands_and_skills(person, ".codex/prompts", ".codex/skills/mine")
    person.write(".codex/AGENTS.md", "Be brief.\n")

    def item(kind: str, **body: Any) -> dict[str, Any]:
        return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **body}}

    shell = json.dumps({"command": ["bash", "-lc", "git log"]})
    person.lines(
        ".codex/sessions/2026/01/01/rollout-1.jsonl",
        {"type": "session_meta", "payload": {"id": "c1", "cwd": str(person.project)}},
        item("message", role="user", content=[{"type": "input_text", "text": "<environment_context>x</environment_context>"}]),
        item("message", role="user", content=[{"type": "input_text", "text": "look"}]),
        {"type": "event_msg", "payload": {"type": "user_message", "message": "look"}},
        item("reasoning", summary=[], encrypted_content="x"),
        item("function_call", name="shell", call_id="k1", arguments=shell),
        item("function_call_output", call_id="k1", output='{"output": "x", "metadata": {"exit_code": 0}}'),
        item("function_call", name="exec_command", call_id="k2", arguments='{"cmd": "echo a'),
        item("function_call_output", call_id="k2", output={"content": "x"}),
        item("message", role="assistant", content=[{"type": "output_text", "text": "Done."}]),
        "{torn",
    )
    return Collection(
        "codex",
        (".codex",),
        {
            "profile work": ("same", "its values"),
            "approval_policy on-request, sandbox_mode workspace-write": ("same", "allow bash sandbox:commands"),
            "network_access": ("stricter", "by a web_fetch rule only"),
            "writable_roots": ("skipped", "in the folder only"),
            "trust_level of /home/u/x": ("skipped", "by rule"),
            "prefix_rule(pattern=['rm'], decision='forbidden')": ("same", "deny bash rm *"),
            "prefix_rule(pattern=['echo'])": ("same", "allow bash echo *"),
            "network_rule(host='x.example', protocol='https', decision='deny')": ("skipped", "web_fetch rule"),
            "gh": ("same", "set TOKEN, GH_ARG in your environment"),
            "mcp_servers.gh enabled_tools": ("same", "only look, wipe"),
            "mcp_servers.far enabled_tools": ("same", "only none"),
            "far": ("same", "FAR_X_KEY"),
            "none": ("skipped", "neither a command nor an address"),
            "gpt-5": ("same", "model = corp/gpt-5"),
            "provider corp": ("same", "models.providers.corp"),
            "notify": ("skipped", "no counterpart"),
            "AGENTS.md": ("in place", "instructions.files"),
            f"2 in {person.home}/.codex/prompts": ("in place", "userCommands"),
            f"2 in {person.home}/.codex/skills/mine": ("in place", "skills.paths"),
            "1 rollouts": ("same", "sessions"),
        },
        allowed="echo hello you",
        denied="rm -r build",
        # What Codex runs in its sandbox unasked, moryflow runs in its own.
        freer=frozenset({"git status", *(args["command"] for tool, args in PROBES if tool == "bash")}) - {
            "git push origin main", "make deploy now", "npm publish", "rm -rf build"},
        told=("/clean now", CLEAN),
        skills=frozenset({"doors", "long"}),
        servers={
            "gh": {"args": ["--api-key", "${GH_ARG}"], "env": {"TOKEN": "${TOKEN}", "PASSED": "${PASSED}"}},
            "far": {"enabled": False, "headers": {"X-Key": "${FAR_X_KEY}", "Authorization": "Bearer ${FAR}"}},
        },
        tree=(("user", None), ("assistant", "user"), ("tool", "assistant"), ("assistant", "tool"), ("tool", "assistant"),
              ("assistant", "tool")),
    )  # fmt: skip


def anyhunt(person: Person) -> Collection:
    """Our own keys, with rules that are none, and keys that are secrets."""
    rules = """[
    {"domain": "bash", "pattern": "*", "decision": "deny"}, {"domain": "bash", "pattern": "echo *", "decision": "allow"},
    {"domain": "bash", "pattern": "make *", "decision": "allow"}, {"domain": "bash", "pattern": "rm *", "decision": "deny"},
    {"domain": "read", "pattern": "**/.env", "decision": "maybe"},
    {"domain": "web_fetch", "pattern": "*", "decision": "allow", "x": 1},
    7, {}, ]"""
    keys = '"models": {"providers": {"corp": {"baseUrl": "http://127.0.0.1:1/v1", "apiKey": "sk-live-777"}}}'
    own = f'{{"permission": {{"rules": {rules}}}}}'
    text = f'{{ // mine\n "limits": {{"maxSteps": 90}}, {keys},\n "agents": {{"runtime": {own}}},}}'
    raw(person, ".anyhunt/config.jsonc", text)
    raw(
        person,
        ".anyhunt/agents/deep/expert.md",
        "---\nname: Expert: of all\ndescription: d: e\ntools: [read]\n---\nYou know.\n",
    )
    commands_and_skills(person, ".anyhunt/commands", ".anyhunt/skills")
    return Collection(
        "anyhunt",
        (".anyhunt",),
        {
            "{'domain': 'read', 'pattern': '**/.env', 'decision': 'maybe'}": ("stricter", "is not understood"),
            "{'domain': 'web_fetch', 'pattern': '*', 'decision': 'allow', 'x': 1}": ("skipped", "is not understood"),
            "{}": ("skipped", "is not understood"),
            "limits.maxSteps": ("same", "limits.maxSteps"),
            "models.providers.corp.apiKey": ("skipped", "no secret is copied"),
            f"1 in {person.home}/.anyhunt/agents": ("in place", "userAgents"),
            f"2 in {person.home}/.anyhunt/commands": ("in place", "userCommands"),
            f"2 in {person.home}/.anyhunt/skills": ("in place", "skills.paths"),
        },
        allowed="echo hello you",
        denied="rm -r build",
        agents=frozenset({"expert"}),
        answers="expert",
        told=("/clean now", CLEAN),
        skills=frozenset({"doors", "long"}),
    )


# ---------------------------------------------------------------- the day


def decisions(person: Person) -> dict[str, str]:
    """Return what is decided about each of `PROBES`."""
    lines = [{"id": next(iter(args.values())), "tool": tool, "args": args} for tool, args in PROBES]
    file = person.lines("probes.jsonl", *({**line, "id": f"{line['tool']} {line['id']}"} for line in lines))
    found = person.run("permission", "test", str(file), "--json", "-q").stdout.splitlines()
    return {row["id"].partition(" ")[2]: row["decision"] for row in map(json.loads, found) if "id" in row}


def hashes(person: Person, names: tuple[str, ...]) -> dict[str, str]:
    """Return the hash of every file of the other system."""
    places = [person.home / name for name in names]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file()]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


def nodes(person: Person, session: str) -> list[dict[str, Any]]:
    lines = map(json.loads, person.run("session", "export", session, "-q").stdout.splitlines())
    return [line for line in lines if line["type"] == "node"]


def work_a_day(person: Person, found: Collection) -> None:
    """Use what was imported: agents, a prompt with calls, a command, skills and servers."""
    assert found.agents <= {row["id"] for row in person.json("agent", "list")}
    assert found.skills <= {row["name"] for row in person.json("skill", "list")}
    checked = person.json("agent", "check", code=found.unusable)
    said = "\n".join(problem for row in checked for problem in row["problems"])
    assert [words for words in found.wrong if words not in said] == []
    answer = person.write("answer.json", ["I looked."])
    assert person.run("run", "--agent", found.answers, "-m", f"script:{answer}", "Look", "-q").stdout == "I looked.\n"
    calls = [{"name": "bash", "arguments": {"command": text}} for text in (found.allowed, found.denied)]
    script = person.write("script.json", [{"calls": calls}, "Done."])
    done = person.json("run", "-m", f"script:{script}", found.told[0])
    assert (done["text"], [call["targets"] for call in done["denied"]]) == ("Done.", [[f"shell:{found.denied}"]])
    assert done["denied"][0]["cause"] == "policy"
    made = nodes(person, done["session"])
    assert made[0]["payload"]["text"] == found.told[1]
    assert [node["payload"]["status"] for node in made if node["kind"] == "tool"] == ["ok", "denied"]
    if found.system == "claude":  # its hook, as it is
        held = person.json("tool", "run", "write", "--args", '{"path": "held.txt", "content": "x"}')
        assert "held by a hook" in held["output"] and not (person.project / "held.txt").exists()
    listed = {row["name"]: row for row in person.json("mcp", "list")}
    assert {*found.servers} <= {*listed}


@pytest.mark.slow
@pytest.mark.parametrize("build", [claude, opencode, codex, anyhunt])
def test_a_collection_is_shown_imported_used_for_a_day_and_taken_back(
    person: Person, build: Callable[[Person], Collection]
) -> None:
    """Each item with what becomes of it, nothing freer than its own rules make it, no secret, and the old bytes after undo."""
    person.write(".moryflow/config.jsonc", OWN).chmod(0o600)
    found = build(person)
    before, theirs = decisions(person), hashes(person, found.theirs)
    shown = {item["original"]: item for item in person.json("import", found.system)["items"]}
    for original, (becomes, words) in found.items.items():
        assert original in shown, (original, [*shown])
        assert shown[original]["becomes"] == becomes and words in shown[original]["why"] + shown[original]["result"], shown[
            original
        ]
    assert all(item["why"] or item["result"] for item in shown.values())
    assert person.config.read_text("utf-8") == OWN
    if found.tree:
        assert person.json("import", found.system, "--check")["looser"] == 0

    person.json("import", found.system, "--apply")
    text = person.config.read_text("utf-8-sig")
    assert [secret for secret in SECRETS if secret in text] == [] and "// never here" in text
    person.run("config", "check")
    now = decisions(person)
    assert {probe for probe in before if SEVERITY[now[probe]] < SEVERITY[before[probe]]} <= found.freer
    assert now["make deploy now"] == "deny" and now["npm publish"] != "allow"
    servers = parse(text)["mcp"]["servers"] if found.servers else {}
    for name, about in found.servers.items():
        assert {**servers[name], **about} == servers[name]
    rows = person.json("session", "list", "--all")
    for row in rows:
        tree = {node["id"]: node for node in nodes(person, row["id"])}
        assert row["vault"] == str(person.project)
        shape = tuple((one["kind"], tree[one["parent"]]["kind"] if one["parent"] else None) for one in tree.values())
        assert shape == found.tree
    assert len(rows) == bool(found.tree)

    work_a_day(person, found)
    if found.tree:
        assert person.json("import", found.system, "--check")["looser"] == 0
    assert person.json("import", found.system, "--apply")["applied"]["rules"] == 0
    person.run("import", found.system, "--undo")
    assert person.config.read_bytes() == OWN.encode() and hashes(person, found.theirs) == theirs
    assert decisions(person) == before
    assert not {row["id"] for row in rows} & {row["id"] for row in person.json("session", "list", "--all")}


# ---------------------------------------------------------------- the second day


def decided(person: Person, domain: str, text: str) -> str:
    return person.json("permission", "explain", domain, text)["decision"]


def test_an_import_done_again_keeps_the_order_of_what_allows_and_asks(person: Person) -> None:
    """A question that came later stands below what it is an exception to, and one undo takes both imports back."""
    person.write(".moryflow/config.jsonc", OWN).chmod(0o600)
    person.write(".claude/settings.json", {"permissions": {"allow": ["Bash(git:*)", "Bash(ls)"]}})
    person.run("import", "claude", "--apply")
    person.write(".claude/settings.json", {"permissions": {"allow": ["Bash(git:*)"], "ask": ["Bash(git push:*)"]}})
    person.run("import", "claude", "--apply")
    found = [decided(person, "bash", text) for text in ("git log", "git push x", "ls", "make deploy")]
    assert found == ["allow", "ask", "ask", "deny"]
    assert person.json("import", "claude", "--apply")["applied"]["rules"] == 0
    person.run("import", "claude", "--undo")
    assert person.config.read_bytes() == OWN.encode()


def test_a_project_allows_nothing_that_the_settings_for_all_deny(person: Person) -> None:
    """There a deny of any file of settings goes before each allow; its own servers of ``.claude.json`` come too."""
    person.write(".claude/settings.json", {"permissions": {"deny": ["Bash(make deploy:*)"], "ask": ["Bash(make clean:*)"]}})
    person.write(".claude.json", {"projects": {str(person.project): {"mcpServers": {"here": {"command": "srv"}}}}})
    settings = {"permissions": {"allow": ["Bash(make:*)", "Edit"]}, "disabledMcpjsonServers": ["off"]}
    person.write("proj/.claude/settings.json", settings)
    person.write("proj/.mcp.json", {"off": {"command": "a"}, "on": {"command": "b"}, "$schema": "x"})
    person.run("import", "claude", ".", "--apply")
    assert [decided(person, "edit", text) for text in ("a.py", ".git/config", "/etc/hosts")] == ["allow", "ask", "deny"]
    person.run("import", "claude", "--apply")
    found = [decided(person, "bash", f"make {text}") for text in ("all", "clean", "deploy")]
    assert found == ["allow", "ask", "deny"]
    servers = parse(person.config.read_text("utf-8"))["mcp"]["servers"]
    assert {name: server.get("enabled", True) for name, server in servers.items()} == {"off": False, "on": True, "here": True}


def test_in_codex_the_strictest_rule_counts_and_a_profile_goes_before_the_rest(person: Person) -> None:
    """Wherever it stands; a list of tools that is empty offers none."""
    config = 'profile = "safe"\napproval_policy = "never"\nsandbox_mode = "workspace-write"\n[profiles.safe]\n'
    config += 'approval_policy = "untrusted"\n[mcp_servers.far]\nurl = "https://x.example"\nenabled_tools = []\n'
    person.write(".codex/config.toml", config)
    rules = 'prefix_rule(pattern=["git", "push"], decision="prompt")\nprefix_rule(pattern=["git"], decision="allow")\n'
    person.write(".codex/rules/a.rules", rules)
    person.run("import", "codex", "--apply")
    found = [decided(person, "bash", text) for text in ("git log", "git push x", "make")]
    assert found == ["allow", "ask", "ask"]
    assert (decided(person, "edit", "a.py"), decided(person, "mcp", "far/any")) == ("ask", "deny")


def test_an_exception_to_a_deny_of_opencode_stays_one(person: Person) -> None:
    """The last rule that matches counts there as here; what is outside of the folder is not allowed by the way."""
    rules = {"*": "deny", "git *": "allow", "git push*": "deny"}
    person.write(".config/opencode/opencode.json", {"permission": {"bash": rules, "edit": "allow", "read": "allow"}})
    shown = person.json("import", "opencode")["items"]
    assert {item["becomes"] for item in shown} == {"same"}
    person.run("import", "opencode", "--apply")
    assert [decided(person, "bash", text) for text in ("make", "git log", "git push x")] == ["deny", "allow", "deny"]
    assert (decided(person, "edit", "/etc/hosts"), decided(person, "read", "/etc/hosts")) == ("deny", "ask")

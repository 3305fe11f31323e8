"""Defaults, rules and what beats what."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.permission.policy import Judgement, Policy, default_rules
from moryflow_builtins.permission.verdict import decide, judge_target
from moryflow_sdk import DOMAINS, Ask, Deny, Rule, Target, ToolCall, mcp_target, query_target, task_target, tool, url_target
from moryflow_sdk.calls import TargetRequest
from moryflow_sdk.support.patterns import braces, compile_rule
from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, sensitive
from moryflow_sdk.verdicts import settle

MakePolicy = Callable[..., Policy]
PREFIX = {"query": "query", "mcp": "mcp", "task": "task", "tool": "tool", "url": "url"}


def judge(policy: Policy, domain: str, given: str) -> Judgement:
    """Judge what a tool of `domain` would be given."""
    if domain in ("read", "edit"):
        return judge_target(policy, policy.resolve(given, domain, None)).worst
    kinds = {"bash": "shell", "web_fetch": "url", "web_search": "query"}
    kind = kinds.get(domain, domain)
    return judge_target(
        policy, Target.model_validate({"domain": domain, "kind": kind, "text": f"{kind}:{given}", "given": given})
    ).worst


def allow(domain: str, pattern: str) -> dict[str, Any]:
    return {"domain": domain, "pattern": pattern, "decision": "allow"}


def deny(domain: str, pattern: str) -> dict[str, Any]:
    return {"domain": domain, "pattern": pattern, "decision": "deny"}


def ask(domain: str, pattern: str) -> dict[str, Any]:
    return {"domain": domain, "pattern": pattern, "decision": "ask"}


# ------------------------------------------------------------------------------------------------
# Defaults
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "given", "decision"),
    [
        ("read", "notes/a.md", "allow"),
        ("read", "/etc/hosts", "ask"),
        ("read", "~/x", "ask"),
        ("read", ".env", "ask"),
        ("read", "conf/PROD.ENV.local", "ask"),
        ("read", "keys/server.pem", "ask"),
        ("read", "keys/private.key", "ask"),
        ("read", "/vault/.ssh/config", "ask"),
        ("read", ".agent-output/20260101-bash-x.txt", "allow"),
        ("read", "~/.moryflow/agent-output/20260101-bash-x.txt", "allow"),
        ("edit", "notes/a.md", "allow"),
        ("edit", "/etc/hosts", "deny"),
        ("edit", ".env", "ask"),
        ("bash", "ls", "ask"),
        ("web_fetch", "https://example.com/", "allow"),
        ("web_search", "weather", "allow"),
        ("mcp", "unknown/tool", "ask"),
        ("tool", "hello", "ask"),
        ("task", "explore", "allow"),
    ],
)
def test_what_holds_without_any_rule(make_policy: MakePolicy, domain: str, given: str, decision: str) -> None:
    """Defaults of every domain (S0.31, S0.33, S0.34, S0.35, S0.36, S0.37, S0.38, S0.39, D7, D36, D72)."""
    assert judge(make_policy(), domain, given).decision == decision


def test_the_domains_are_the_six_and_two_more() -> None:
    """Nothing else is a domain (S0.31, D26)."""
    assert set(DOMAINS) == {"read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"}
    assert {rule.domain for rule in default_rules()} == set(DOMAINS)


def test_defaults_are_plain_rules_that_mean_what_they_say() -> None:
    """A printed default, written into a configuration, protects the same names (S0.32, S0.43)."""
    reading = [rule for rule in default_rules() if rule.domain == "read" and rule.decision == "ask"]
    printed = [compile_rule(rule.replace(source="user")) for rule in reading]
    for name in (one for glob in SECRETS.files for one in braces(glob)):
        example = re.sub(r"\[!?([^]])[^]]*\]", lambda found: "." if "!" in found[0] else found[1], name.replace("*", "x"))
        assert any(pattern.matches(f"vault:/d/{example}") for pattern in printed), name


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".git/config",
        ".GIT/config",
        "sub/.git/config",
        ".git",
        ".gitmodules",
        ".vscode/tasks.json",
        ".idea/x.xml",
        ".mcp.json",
        ".claude/settings.json",
        ".github/workflows/ci.yml",
        ".gitlab-ci.yml",
        ".bashrc",
        ".ZSHRC",
        ".husky/pre-commit",
        ".pre-commit-config.yaml",
        ".envrc",
        ".devcontainer/devcontainer.json",
        "x.code-workspace",
        ".moryflow/plugins/x.py",
        ".git./config",
        ".g\u200cit/config",
        ".cursor/rules",
        "Jenkinsfile",
        ".cargo/config.toml",
        ".venv/bin/python",
        "web/node_modules/.bin/eslint",
        "a.pth",
        ".mvn/wrapper/x.jar",
        "mise.toml",
        ".cursorrules",
        ".agents/skills/a/SKILL.md",
        ".woodpecker.yml",
        "rust-toolchain.toml",
        "ansible.cfg",
        "pnpmfile.cjs",
    ],
)
def test_what_runs_later_is_asked_about(make_policy: MakePolicy, path: str) -> None:
    """Writes that change what runs later ask, in any case and through invisible characters (R21, D72)."""
    answer = judge(make_policy(), "edit", path)
    assert (answer.decision, answer.bypass) == ("ask", "mode")
    assert judge(make_policy(), "read", path).decision == ("ask" if sensitive(path) else "allow")


@pytest.mark.parametrize(
    ("domain", "path", "reason"),
    [
        ("read", "infra/prod.tfvars", "infra/prod.tfvars looks like a file of secrets: values and state of Terraform, "),
        ("edit", "a/mise.toml", "a/mise.toml changes what runs later: a tool manager runs it on entering the folder"),
        ("edit", ".venv", ".venv changes what runs later: installed programs and libraries"),
    ],
)
def test_the_question_says_why_the_file_is_asked_about(make_policy: MakePolicy, domain: str, path: str, reason: str) -> None:
    """Each line of the two tables has its reason, and the question shows it (R21, S0.33)."""
    assert judge(make_policy(), domain, path).reason.startswith(reason)
    assert all(line.reason and (line.files or line.folders) for table in (SECRETS, RUNS_LATER) for line in table.lines)


@pytest.mark.parametrize(
    "path",
    [
        *("src/a.py", "package.json", "README.md", ".gitignore", ".moryflow/plans/p.md", "git/config", "x.git.md"),
        *("Makefile", "pyproject.toml", "conftest.py", "Dockerfile", "docker-compose.yml", "tox.ini", "justfile", "noxfile.py"),
        *("setup.py", "build.gradle", "Cargo.toml", "go.mod", ".eslintrc.js", "src/tokens.py", ".editorconfig", "flake.nix"),
        *("AGENTS.md", ".github/CODEOWNERS", ".github/ISSUE_TEMPLATE/bug.md", ".python-version", "app/auth.ts", "venv.py"),
    ],
)
def test_ordinary_work_is_not_asked_about(make_policy: MakePolicy, path: str) -> None:
    """Low-risk operations never prompt (S0.8, S0.39, D23)."""
    assert judge(make_policy(), "edit", path).decision == "allow"


def test_configured_servers_are_allowed_after_the_rule_that_asks(make_policy: MakePolicy) -> None:
    """A configured MCP server is allowed, another one asks once and can be remembered; names cannot be patterns (D7, S0.38)."""
    policy = make_policy(servers=("github", "we*ird"))
    assert judge(policy, "mcp", "github/create_issue").decision == "allow"
    other = judge(policy, "mcp", "gitlab/create_issue")
    assert other.decision == "ask" and other.remember is not None and other.remember.pattern == "mcp:gitlab/create_issue"
    assert judge(policy, "mcp", "we-ird/x").decision == "ask"
    assert (
        judge(make_policy([deny("mcp", "mcp:github/delete_*")], servers=("github",)), "mcp", "github/delete_all").decision
        == "deny"
    )


# ------------------------------------------------------------------------------------------------
# Which rule decides
# ------------------------------------------------------------------------------------------------


def test_the_last_rule_that_matches_decides(make_policy: MakePolicy) -> None:
    """Later rules override earlier ones and the defaults (S0.40, D4)."""
    rules = [allow("read", "fs:/etc/**"), deny("read", "fs:/etc/shadow"), allow("read", "vault:**/.env"), deny("edit", "*")]
    policy = make_policy(rules)
    assert judge(policy, "read", "/etc/hosts").decision == "allow"
    denied = judge(policy, "read", "/etc/shadow")
    assert (denied.decision, denied.bypass, denied.rule and denied.rule.line) == ("deny", "never", 2)
    assert "config.jsonc:2" in denied.reason
    assert judge(policy, "read", ".env").decision == "allow"
    assert judge(policy, "edit", "a.md").decision == "deny"


def test_the_samples_of_the_design_hold(make_policy: MakePolicy) -> None:
    """The three sample rules load and mean what their text says (S0.43, D74)."""
    rows = [("read", "vault:**/*.md", "allow"), ("read", "fs:**/*.env*", "ask"), ("bash", "*", "ask")]
    policy = make_policy([dict(zip(("domain", "pattern", "decision"), row, strict=True)) for row in rows])
    assert judge(policy, "read", "a.md").decision == "allow"
    assert judge(policy, "read", "/x/.env.local").decision == "ask"
    assert judge(policy, "bash", "git log\n--all").decision == "ask"


@pytest.mark.parametrize(("decision", "lifted"), [("deny", False), ("ask", True)])
def test_full_access_lifts_what_asks_and_no_explicit_deny(make_policy: MakePolicy, decision: str, lifted: bool) -> None:
    """Explicit denies stay in `full_access`; asks and the default deny outside the vault are lifted (D2, S0.71)."""
    policy = make_policy([{"domain": "edit", "pattern": "vault:/locked/**", "decision": decision}])
    answer = judge_target(policy, policy.resolve("locked/a.md", "edit", None)).verdict
    assert (settle(answer, mode="full_access", headless=False) == "allow") is lifted
    outside = judge_target(policy, policy.resolve("/etc/x", "edit", None)).verdict
    assert settle(outside, mode="full_access", headless=False) == "allow"
    assert settle(outside, mode="agent", headless=False) == "deny"


def test_a_denial_that_a_mode_lifts_does_not_lift_what_no_mode_lifts(make_policy: MakePolicy) -> None:
    """One command with a liftable and a final part stays refused (D2)."""
    policy = make_policy([allow("bash", "*"), deny("bash", "rm *")])
    for command in ("rm x > /etc/x", "echo x > /etc/x; rm x", "cp a /etc/x && touch ~/.moryflow/x"):
        given = Target(domain="bash", kind="shell", text=f"shell:{command}", given=command)
        assert settle(judge_target(policy, given).verdict, mode="full_access", headless=False) == "deny"


def test_a_question_that_no_mode_lifts_outlives_a_denial_that_one_lifts(make_policy: MakePolicy) -> None:
    """`full_access` lifts the default deny outside the vault, and must not lift with it what is never lifted (D2, D26)."""
    policy = make_policy([allow("bash", "*"), deny("read", "regex:(?!x)")])
    given = Target(domain="bash", kind="shell", text="shell:cat a > /etc/x", given="cat a > /etc/x")
    assert settle(judge_target(policy, given).verdict, mode="full_access", headless=False) != "allow"


def test_no_rule_means_ask_and_nobody_to_ask_means_deny(make_policy: MakePolicy) -> None:
    """Without a match: ask; headless: deny (D27, R23)."""
    policy = make_policy(defaults=False)
    for domain, given in (("read", "a.md"), ("bash", "ls"), ("tool", "x"), ("web_search", "q")):
        kind = {"read": None}.get(domain, domain)
        answer = judge(policy, domain, given)
        assert answer.decision == "ask", kind
        assert settle(Ask("x"), mode="agent", headless=True) == "deny"


def test_a_deny_that_cannot_be_used_puts_a_question_under_its_domain(make_policy: MakePolicy) -> None:
    """What an unreadable deny should have forbidden is not known: everything in its domain asks, in every mode (D26, D6)."""
    policy = make_policy([allow("read", "*"), deny("read", "regex:(?!x)")])
    answer = judge(policy, "read", "a.md")
    assert (answer.decision, answer.bypass) == ("ask", "never")
    assert "config.jsonc:2" in answer.reason and "cannot be used" in answer.reason
    assert judge(policy, "edit", "a.md").decision == "allow"
    assert judge(make_policy([allow("read", "regex:(?!x)")]), "read", "a.md").decision == "allow"


def test_agents_only_narrow(make_policy: MakePolicy) -> None:
    """An agent's own rules make nothing freer, and full access does not lift its denies (R4, D23, D66)."""
    own = [Rule(domain="edit", pattern="*", decision="deny", source="agent")]
    own += [Rule(domain="edit", pattern="vault:/.moryflow/plans/*.md", decision="allow", source="agent")]
    own += [Rule(domain="read", pattern="fs:**", decision="allow", source="agent")]
    policy = make_policy(agent=own)
    assert judge(policy, "edit", ".moryflow/plans/p.md").decision == "allow"
    refused = judge(policy, "edit", "a.md")
    assert (refused.decision, refused.bypass) == ("deny", "never")
    assert judge(policy, "read", "/etc/hosts").decision == "ask"
    child = [*own, Rule(domain="edit", pattern="*", decision="allow", source="agent:child")]
    assert judge(make_policy(agent=child), "edit", "a.md").decision == "deny"


# ------------------------------------------------------------------------------------------------
# Places that no rule opens
# ------------------------------------------------------------------------------------------------

OURS = [
    "config.jsonc",
    "agents/x.md",
    "plugins/new.py",
    "tools/a/b.py",
    "sessions.db",
    "logs/agent-audit/x.jsonl",
    "agent-output/x.txt",
    "",
]


@pytest.mark.parametrize("name", OURS)
def test_no_rule_and_no_mode_opens_our_own_folder(make_policy: MakePolicy, name: str) -> None:
    """Moryflow's folder is never written by a tool, whether the file exists or not (R14, D2)."""
    policy = make_policy([allow("edit", "*"), allow("bash", "*")])
    for spelled in (
        f"~/.moryflow/{name}",
        f"/home/u/.moryflow/{name}",
        f"/home/u/x/../.MoryFlow/{name}",
        f"../home/u/.moryflow/{name}",
    ):
        answer = judge_target(policy, policy.resolve(spelled, "edit", None)).verdict
        assert isinstance(answer, Deny) and answer.cause == "hard_limit", spelled
        assert settle(answer, mode="full_access", headless=False) == "deny"


def test_our_folder_cannot_be_moved_away_with_what_is_around_it(make_policy: MakePolicy) -> None:
    """Removing or moving a folder above it is a change to it (R14)."""
    policy = make_policy([allow("edit", "*")])
    assert judge(policy, "edit", "~").cause == "hard_limit"
    assert judge(policy, "edit", "/home").cause == "hard_limit"
    assert judge(policy, "edit", "~/notes.md").decision == "allow"


@pytest.mark.parametrize("name", ["server.token", "SERVER.TOKEN", "plugins/data/api.key", "credentials", "auth.json", "x/.env"])
def test_our_secrets_are_never_read(make_policy: MakePolicy, name: str) -> None:
    """No rule opens the secrets in Moryflow's folder; the rest of it asks like any place outside (R14)."""
    policy = make_policy([allow("read", "*")])
    assert judge(policy, "read", f"~/.moryflow/{name}").cause == "hard_limit"
    assert judge(policy, "read", "~/.moryflow/config.jsonc").decision == "allow"
    assert judge(make_policy(), "read", "~/.moryflow/config.jsonc").decision == "ask"


def test_a_vault_around_our_folder_does_not_open_it(make_policy: MakePolicy) -> None:
    """Somebody who works in their home still cannot have it changed (R14, R13)."""
    policy = make_policy(vault=Path("/home/u"), home=Path("/home/u/.moryflow"))
    assert judge(policy, "edit", ".moryflow/config.jsonc").cause == "hard_limit"
    assert judge(policy, "edit", "notes.md").decision == "allow"


def test_a_folder_reached_through_a_link_is_the_folder(make_policy: MakePolicy, tmp_path: Path) -> None:
    """Rules match what a link leads to and the link's own name; the more severe answer counts (R10, R22, D8)."""
    vault, home = tmp_path / "vault", tmp_path / "home"
    (home / ".moryflow").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    vault.mkdir()
    (vault / "ours").symlink_to(home / ".moryflow")
    (vault / "out").symlink_to(tmp_path / "out")
    (vault / "plain.txt").symlink_to(".env")
    (vault / ".env").write_text("x")
    (tmp_path / "out" / "back").symlink_to(vault)
    policy = make_policy([allow("read", "vault:/out/**")], vault=vault, user_home=home)
    assert judge(policy, "edit", "ours/config.jsonc").cause == "hard_limit"
    assert judge(policy, "read", "out/x").decision == "ask"
    assert judge(policy, "read", "out/x").target == f"fs:{tmp_path}/out/x"
    assert judge(policy, "edit", "out/x").decision == "deny"
    assert judge(policy, "read", "plain.txt").decision == "ask"
    assert judge(policy, "edit", str(tmp_path / "out" / "back" / "a.md")).decision == "allow"
    named = make_policy([allow("read", "fs:**"), deny("read", "vault:/out/**")], vault=vault, user_home=home)
    assert judge(named, "read", "out/x").decision == "deny"


@pytest.mark.parametrize(
    ("path", "cause"), [("self", "unresolved"), ("a\0b", "unresolved"), ("/dev/sda1/../../proc/self/mem", "unresolved")]
)
def test_what_cannot_be_resolved_is_denied(make_policy: MakePolicy, tmp_path: Path, path: str, cause: str) -> None:
    """A failed resolve is a deny in every mode, never a guess (R20)."""
    (tmp_path / "self").symlink_to("self")
    policy = make_policy([allow("read", "*")], vault=tmp_path)
    answer = judge(policy, "read", path)
    assert (answer.decision, answer.bypass, answer.cause) == ("deny", "never", cause)


# ------------------------------------------------------------------------------------------------
# Addresses, servers, tools: a stub tool each
# ------------------------------------------------------------------------------------------------

DOCS = [{"domain": "web_fetch", "pattern": "*", "decision": "ask"}, allow("web_fetch", "url:https://docs.python.org/*")]


@pytest.mark.parametrize(
    ("url", "decision"),
    [
        ("https://docs.python.org/3", "allow"),
        ("HTTPS://DOCS.python.org:443/x/../3", "allow"),
        ("https://docs.python.org/3/library", "ask"),
        ("https://attacker.test/?https://docs.python.org/", "ask"),
        ("https://docs.python.org.attacker.test/", "ask"),
        ("https://docs.python.org@attacker.test/", "deny"),
        ("https://docs.python.org%2eattacker.test/", "deny"),
        ("http://docs.python.org/3", "ask"),
    ],
)
def test_url_rules_match_the_canonical_address(make_policy: MakePolicy, url: str, decision: str) -> None:
    """No query, user name or longer name passes for the allowed host (R16)."""
    assert judge(make_policy(DOCS), "web_fetch", url).decision == decision


def test_no_rule_and_no_mode_opens_addresses_that_are_not_public(make_policy: MakePolicy) -> None:
    """The limits on addresses stand above rules (D2, D50, R16)."""
    policy = make_policy([allow("web_fetch", "*")])
    for url in (
        "http://127.0.0.1/",
        "http://localhost/",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "http://example.com:25/",
    ):
        answer = judge(policy, "web_fetch", url)
        assert (answer.decision, answer.bypass) == ("deny", "never"), url


SERVICE = "http://localhost:7700/**"
SERVICES: list[tuple[list[Any], str, str]] = [
    ([allow("web_fetch", SERVICE)], "http://localhost:7700/search?q=x", "allow"),
    ([allow("web_fetch", "url:http://127.0.0.1:7700/**")], "http://127.0.0.1:7700/", "allow"),
    ([allow("web_fetch", "http://\\[::1\\]:7700/**")], "http://[::1]:7700/a", "allow"),
    ([allow("web_fetch", "http://localhost/**")], "http://localhost/", "allow"),
    ([allow("web_fetch", "http://localhost:7700/search")], "http://localhost:7700/search", "allow"),
    ([ask("web_fetch", SERVICE)], "http://localhost:7700/", "ask"),
    ([allow("web_fetch", SERVICE), deny("web_fetch", "http://**/admin")], "http://localhost:7700/admin", "deny"),
    ([allow("web_fetch", SERVICE)], "http://localhost:7701/", "deny"),
    ([allow("web_fetch", SERVICE)], "https://localhost:7700/", "deny"),
    ([allow("web_fetch", SERVICE)], "http://127.0.0.1:7700/", "deny"),
    ([allow("web_fetch", SERVICE)], "http://localhost.evil.test:7700/", "deny"),
    ([allow("web_fetch", SERVICE)], "http://a@localhost:7700/", "deny"),
    ([allow("web_fetch", "http://localhost/**")], "http://localhost:7700/", "deny"),
    ([allow("web_fetch", "http://localhost:7700*/**")], "http://localhost:77001/", "deny"),
    ([allow("web_fetch", "http://localhost:*/**")], "http://localhost:7700/", "deny"),
    ([allow("web_fetch", "http://**")], "http://localhost:7700/", "deny"),
    ([allow("web_fetch", "regex:.*")], "http://localhost:7700/", "deny"),
    ([allow("web_fetch", "*")], "http://localhost:7700/", "deny"),
    ([allow("web_fetch", "http://10.0.0.1/**")], "http://10.0.0.1/", "deny"),
    ([allow("web_fetch", "http://169.254.169.254/**")], "http://169.254.169.254/latest", "deny"),
    ([allow("web_fetch", "http://printer.local/**")], "http://printer.local/", "deny"),
    ([], "http://localhost:7700/", "deny"),
]


@pytest.mark.parametrize(("rules", "url", "decision"), SERVICES)
def test_a_rule_that_names_a_service_of_this_machine_opens_it_and_nothing_else(
    make_policy: MakePolicy, rules: list[Any], url: str, decision: str
) -> None:
    """Scheme, host and port stand in the rule; no wildcard reaches what nobody named, no other local network (R16, R30)."""
    answer = judge(make_policy(rules), "web_fetch", url)
    assert answer.decision == decision
    if not rules:
        assert (
            answer.next_step
            == "if it is a service that you trust: moryflow permission allow web_fetch 'http://localhost:7700/**'"
        )


def test_an_agent_opens_no_service_of_this_machine(make_policy: MakePolicy) -> None:
    """Its own rules only narrow (R4)."""
    url = "http://localhost:7700/"
    free = Rule(domain="web_fetch", pattern=SERVICE, decision="allow", source="agent")
    assert judge(make_policy([], agent=[free]), "web_fetch", url).decision == "deny"
    narrow = make_policy([allow("web_fetch", SERVICE)], agent=[free.replace(decision="deny", pattern="*")])
    assert judge(narrow, "web_fetch", url).decision == "deny"


STUBS = [
    ("mcp", mcp_target("github", "create_issue"), "mcp:github/create_issue", "ask"),
    ("tool", None, "tool:stub", "ask"),
    ("task", task_target("explore"), "task:explore", "allow"),
    ("web_search", query_target("a\nb"), "query:a\nb", "allow"),
    ("web_fetch", url_target("https://Example.com"), "url:https://example.com/", "allow"),
]


@pytest.mark.parametrize(("domain", "request_", "text", "decision"), STUBS, ids=[row[0] for row in STUBS])
def test_a_stub_tool_of_each_domain_is_judged_by_what_it_declares(
    make_policy: MakePolicy, domain: str, request_: TargetRequest | None, text: str, decision: str
) -> None:
    """Tools declare domain and targets; one that declares nothing is asked about by its name (S0.41, D7, D26, D72)."""

    @tool(name="stub", domain=domain, targets=(lambda _: [request_]) if request_ else None)
    def stub() -> str:
        """Do nothing."""
        return ""

    call = _call(stub)
    assert decide(make_policy(), call).worst.decision == decision
    assert decide(make_policy(), call).worst.target == text
    pattern = text.partition(":")[2] if domain != "web_fetch" else text
    answer = decide(make_policy([deny(domain, pattern)]), call).worst
    assert (answer.decision, answer.target) == ("deny", text)
    assert decide(make_policy([allow(domain, pattern)]), call).worst.decision == "allow"


def _call(stub: Any) -> ToolCall:
    targets = [
        Target(domain=item.domain, kind=item.kind, text=f"{item.kind}:{item.value}", given=item.value)
        for item in stub.target_requests({})
    ]
    return ToolCall(id="1", tool=stub.name, args={}, domain=stub.domain, targets=tuple(targets))

"""The contract of shell judgement, clause by clause (SECURITY §2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Decision, Policy
from moryflow_builtins.permission.shell import judge_command

from .judging import decide, rules

MakePolicy = Callable[..., Policy]


def targets(decision: Decision) -> dict[str, str]:
    return {part.target: part.decision for part in decision.parts}


READER = rules("+ls*", "+cat *", "+echo *", "+grep *", "+cd *", "+git *", "-rm *", "-git push*")


def test_every_command_redirection_and_operand_is_judged(make_policy: MakePolicy) -> None:
    """Each simple command, each target of a redirection and each operand is a part of its own (R6, R9, SECURITY §2.1)."""
    decision = judge_command(make_policy(READER), "cat a.md | grep x > out.md && echo $(ls) 2> /tmp/log; rm y")
    assert targets(decision) == {
        "shell:cat a.md": "allow",
        "shell:grep x": "allow",
        "shell:ls": "allow",
        "shell:echo $(ls)": "ask",
        "fs:/tmp/log": "deny",
        "shell:rm y": "deny",
    }


def test_no_program_is_thought_safe(make_policy: MakePolicy) -> None:
    """Without a rule every command asks, whatever it is called (R7, S0.36)."""
    for command in (
        "ls",
        "true",
        ":",
        "pwd",
        "echo",
        "cat README.md",
        "[ a ]",
        "[[ a ]]",
        "x=1",
        "",
        "# nothing",
        "(( 1 ))",
        "> a.md",
    ):
        assert decide(make_policy(), command) == "ask", command


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("git   status\t--short", "git status --short"),
        ("'git' \"status\" --sh'or't", "git status --short"),
        ("g\\it sta\\\ntus $'--short'", "git status --short"),
        ("$'\\x67it' status --short", "git status --short"),
        ("LANG=C git status --short 2>/dev/null <a.md", "git status --short"),
        ("{git,status,--short}", "git status --short"),
    ],
)
def test_rules_match_the_normalised_text(make_policy: MakePolicy, command: str, text: str) -> None:
    """Quotes, escapes, blanks, harmless assignments and redirections are taken off first (SECURITY §2.2)."""
    assert f"shell:{text}" in targets(judge_command(make_policy(), command))
    assert decide(make_policy(rules(f"+{text}")), command) == "allow"


def test_an_exact_rule_does_not_mistake_a_blank_inside_a_word_for_one_between_words(make_policy: MakePolicy) -> None:
    """Two commands that differ never pass for each other (R11, D5)."""
    policy = make_policy(rules("+rm a b", "+git commit -m 'fix it'"))
    assert decide(policy, "rm a b") == "allow"
    assert decide(policy, "rm 'a b'") == "ask"
    assert decide(policy, 'git commit -m "fix it"') == "allow"
    assert decide(policy, "git commit -m fix it") == "ask"


@pytest.mark.parametrize(
    "command", ["/bin/rm x", "env rm x", "timeout 5 nohup rm x", "bash -c 'ls; rm x'", "eval rm x", "xargs rm", "exec rm x"]
)
def test_a_deny_also_finds_paths_and_wrapped_commands(make_policy: MakePolicy, command: str) -> None:
    """Deny rules match the base name and the command inside a wrapper (SECURITY §2.2)."""
    assert decide(make_policy(rules("+*", "-rm *")), command) == "deny"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("MSG='a b' make x", "allow"),
        (r"MSG=a\ b make x y", "allow"),
        ("MSG='a b' V=1 make x", "ask"),
        ("MSG='a b;rm' make x", "ask"),
        ("'MSG=a b' make x", "ask"),
        ("MSG=a b make x", "ask"),
    ],
)
def test_a_rule_spells_an_assignment_as_a_person_types_it(make_policy: MakePolicy, command: str, decision: str) -> None:
    """Only the value of an assignment is quoted; other assignments, and a program of such a name, are not covered (R11)."""
    assert decide(make_policy(rules("+MSG='a b' make *")), command) == decision


def test_an_allow_does_not_cover_a_program_of_the_same_name_elsewhere(make_policy: MakePolicy) -> None:
    """An allow is for the name as written (SECURITY §2.2)."""
    assert decide(make_policy(rules("+ls*")), "./ls") == "ask"
    assert decide(make_policy(rules("+ls*")), "/tmp/ls") == "ask"


def test_the_outer_rule_does_not_cover_the_inner_command(make_policy: MakePolicy) -> None:
    """A wildcard for a wrapper needs another rule for what it runs; an exact rule spells all of it out (R6, R8)."""
    assert decide(make_policy(rules("+timeout *")), "timeout 5 make") == "ask"
    assert decide(make_policy(rules("+timeout *", "+make")), "timeout 5 make") == "allow"
    assert decide(make_policy(rules("+timeout 5 make")), "timeout 5 make") == "allow"
    assert decide(make_policy(rules("+timeout 5 make", "-make")), "timeout 5 make") == "deny"


@pytest.mark.parametrize(
    "word", ["$x", '"$x"', "$(ls)", "`ls`", "*.md", "a?", "[ab]", "~root/x", "~+/x", "$((1))", "<(ls)", "${x:-y}", "{a,$x}"]
)
def test_a_word_that_is_not_literal_is_covered_by_no_allow(make_policy: MakePolicy, word: str) -> None:
    """Any expansion beyond a plain literal word is dynamic; the question says which one it is (R24, SECURITY §2.3)."""
    policy = make_policy(rules("+*", "+ls *", f"+ls {word}"))
    worst = judge_command(policy, f"ls {word}").worst
    assert worst.decision == "ask"
    assert word.strip('"') in worst.reason or "cannot be read surely" in worst.reason


def test_text_that_an_interpreter_gets_unseen_is_covered_by_no_wildcard(make_policy: MakePolicy) -> None:
    """What a rule does not show it does not allow; an exact rule shows it, except what comes from elsewhere (SECURITY §2.3)."""
    wide = make_policy(rules("+*"))
    for command in (
        "python3 x.py",
        "python3 -c 'x'",
        "bash x.sh",
        "cat x | sh",
        "node -e 1",
        "perl -e 1",
        "source x",
        "make -f x",
    ):
        assert decide(wide, command) == "ask", command
    assert decide(make_policy(rules("+python3 tools/build.py *")), "python3 tools/build.py --fast") == "allow"
    assert decide(make_policy(rules("+python3 x.py")), "python3 x.py") == "allow"
    assert decide(make_policy(rules("+cat x", "+bash")), "cat x | bash") == "ask"


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("find *", "find . -exec ls {} ;"),
        ("find *", "find . -delete"),
        ("git *", "git -c a=b status"),
        ("sed *", "sed -i s/a/b/ x"),
        ("sed *", "sed -n '1e id' x"),
        ("tar *", "tar -xf a --to-command=x"),
        ("sort *", "sort --compress-prog=x a"),
        ("rg *", "rg --pre x a"),
        ("awk *", "awk '{system($1)}' a"),
        ("man *", "man -P x ls"),
        ("git *", "git config core.pager x"),
    ],
)
def test_a_wildcard_does_not_cover_options_that_do_more(make_policy: MakePolicy, pattern: str, command: str) -> None:
    """Guarded options need a rule that spells them out (R8, SECURITY §2.4)."""
    assert decide(make_policy(rules(f"+{pattern}")), command.replace(" ;", " \\;")) == "ask"


def test_a_rule_that_spells_a_guarded_option_out_covers_it(make_policy: MakePolicy) -> None:
    """An exact rule does, and one whose literal beginning holds the option and its value (SECURITY §2.4)."""
    assert decide(make_policy(rules("+sed -i s/a/b/ x")), "sed -i s/a/b/ x") == "allow"
    assert decide(make_policy(rules("+sed -i *")), "sed -i s/a/b/ x") == "allow"
    assert decide(make_policy(rules("+git -c core.pager=cat *")), "git -c core.pager=cat log") == "allow"
    assert decide(make_policy(rules("+git -c *")), "git -c core.pager=x log") == "ask"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("cd src && cat ../a.md", "allow"),
        ("cd src && cat ../../x", "ask"),
        ("cd /tmp; echo x > y", "deny"),
        ("(cd /tmp); echo x > y", "allow"),
        ("cd /tmp | cat -; echo x > y", "allow"),
        ("cd $x && cat a.md", "ask"),
        ("cd -; cat a.md", "ask"),
        ("cd .. && ls", "ask"),
        ("cat < .env", "ask"),
        ("echo x > .git/hooks/pre-commit", "ask"),
        ("echo x > ~/.moryflow/config.jsonc", "deny"),
        ("echo x >/dev/null 2>&1", "allow"),
        ("cat < /dev/tcp/host/80", "ask"),
        ("git -C .. log", "ask"),
        ("git show HEAD:.env", "ask"),
    ],
)
def test_the_folder_is_followed_and_files_are_judged_in_it(make_policy: MakePolicy, command: str, decision: str) -> None:
    """`cd` moves the base, in subshells only there; an unknown base asks (R9, R14, R21, SECURITY §2.5)."""
    assert decide(make_policy(READER), command) == decision


@pytest.mark.parametrize(
    "command", ["A=1 ls", "PATH=. ls", "alias ls=x", "export A=1", "trap ls EXIT", "f() { ls; }", "for PATH in .; do ls; done"]
)
def test_state_does_not_ride_on_the_rule_of_a_command(make_policy: MakePolicy, command: str) -> None:
    """Assignments and builtins that change state need a rule of their own; language and colour do not (R19, SECURITY §2.6)."""
    assert decide(make_policy(rules("+*")), command) == "ask"
    assert decide(make_policy(rules("+*")), "LC_ALL=C TZ=UTC NO_COLOR=1 ls") == "allow"
    assert decide(make_policy(rules("+export *")), "export A=1") == "allow"
    assert decide(make_policy(rules("+A=1 ls")), "A=1 ls") == "allow"


def test_misleading_characters_are_asked_about_outside_quotes(make_policy: MakePolicy) -> None:
    """Control, turning, invisible and look-alike characters (SECURITY §2.7)."""
    policy = make_policy(rules("+*"))
    for char in "\u202e\u200b\x08\r\u00a0\u2028\ufeff\uff1b\u3164":
        assert decide(policy, f"ls {char}x") == "ask", hex(ord(char))
        assert decide(policy, f"ls '{char}x'") == "allow", hex(ord(char))
    assert decide(policy, "echo 你好 ñandú ✓") == "allow"


def test_what_cannot_be_read_is_asked_about_and_still_searched_for_denials(make_policy: MakePolicy) -> None:
    """Text that does not parse is never allowed, and hides no denied command (R6, SECURITY §2.7)."""
    policy = make_policy(rules("+*", "-rm *"))
    assert decide(policy, "echo 'abc") == "ask"
    assert decide(policy, "ls; rm x; echo 'abc") == "deny"
    assert decide(policy, "echo \"${x:-'$(rm x)'}\"") == "deny"


def test_an_unknown_program_does_not_hide_a_denied_command(make_policy: MakePolicy) -> None:
    """Behind a program that is not known, and in other letters, a denied command is at least asked about (R6, R10)."""
    policy = make_policy(rules("+*", "-rm *", "-git push*"))
    for command in ("some-wrapper rm x", "RM x", "runner --now git push", "rm.exe x", "git-push origin"):
        assert decide(policy, command) in ("ask", "deny"), command
    assert decide(policy, "npm run build") == "allow"


def test_the_question_names_the_resolved_targets(make_policy: MakePolicy, tmp_path: Path) -> None:
    """What is shown is where a path leads, not how it was written (R22)."""
    (tmp_path / "out").mkdir()
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "link").symlink_to(tmp_path / "out")
    policy = make_policy(rules("+cat *"), vault=tmp_path / "vault")
    worst = judge_command(policy, "cat link/x").worst
    assert (worst.decision, worst.target) == ("ask", f"fs:{tmp_path}/out/x")
    assert f"{tmp_path}/out/x".lstrip("/") in worst.reason


def test_a_folder_that_passes_for_a_repository_is_not_trusted(make_policy: MakePolicy, tmp_path: Path) -> None:
    """A bare repository that somebody left in the vault brings its own configuration (R15)."""
    for name in ("objects", "refs"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    (tmp_path / "bare" / "HEAD").write_text("ref: refs/heads/main\n")
    policy = make_policy(rules("+git *", "+cd *"), vault=tmp_path)
    assert decide(policy, "git status") == "allow"
    assert decide(policy, "cd bare && git status") == "ask"
    assert decide(policy, "git -C bare status") == "ask"


# ------------------------------------------------------------------------------------------------
# What always stores
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "patterns"),
    [
        ("npm test", ["npm test"]),
        ("echo '*' \\\\", ["echo '\\*' '\\\\'"]),
        ("git commit -m 'a b'", ["git commit -m 'a b'"]),
        ("make && make install", ["make", "make install"]),
        ("cat /etc/hosts", ["cat /etc/hosts", "fs:/etc/hosts"]),
        ("A=1 make", ["A=1 make"]),
    ],
)
def test_always_stores_literal_patterns(make_policy: MakePolicy, command: str, patterns: list[str]) -> None:
    """One escaped, literal pattern for each question (D5)."""
    stored = judge_command(make_policy(), command).remember
    assert [item.pattern for item in stored] == patterns
    rows = [{"domain": item.domain, "pattern": item.pattern, "decision": "allow"} for item in stored]
    assert decide(make_policy(rows), command) == "allow"


@pytest.mark.parametrize("command", ["echo $x", "ls *", "echo 'a\nb'", "ls '", "cat x | bash", "f() { ls; }", "make; echo $x"])
def test_what_no_rule_could_cover_is_not_stored(make_policy: MakePolicy, command: str) -> None:
    """Commands of several lines, unparsed and dynamic ones count once (D5)."""
    assert judge_command(make_policy(), command).remember == ()


@pytest.mark.parametrize(
    ("command", "wider"),
    [
        ("git status --short", "git status *"),
        ("ls -la", "ls *"),
        ("npm test", "npm test *"),
        ("rm -rf x", ""),
        ("git -c a=b log", ""),
        ("python3 x.py", ""),
        ("env ls", "env *"),
        ("git log", "git log *"),
        ("npm run build", "npm run build *"),
        ("npm install x", ""),
        ("git push", ""),
        ("uv run pytest -q", "uv run pytest *"),
        ("python -m pytest tests", "python -m pytest *"),
        ("find . -delete", ""),
        ("timeout 5 make", "timeout *"),
        ("A=1 ls", ""),
        ("unknown x", ""),
    ],
)
def test_a_wider_pattern_is_offered_only_for_plain_words_of_one_program(
    make_policy: MakePolicy, command: str, wider: str
) -> None:
    """The generalised pattern is never offered for programs that change, run or configure (D5)."""
    stored = judge_command(make_policy(), command).remember
    assert stored[0].wider == wider


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("echo $((1)x", "ask"),  # begins no arithmetic after all
        ("echo $((rm -rf x) )", "deny"),
        ("cat ${x:-<(rm -rf x)}", "deny"),
        ("cat a ;;& ls", "ask"),
        ("cd a b && cat c", "ask"),  # bash refuses to move; where it stands is not for us to guess
        ("cd +1 && cat c", "ask"),
        ("cd - && cat c", "ask"),
        ("docker inspect run", "allow"),  # an operand, not the subcommand
        ("docker compose run x", "ask"),
        ("docker --context x run y", "ask"),
    ],
)
def test_odd_places_are_read_as_bash_reads_them(make_policy: MakePolicy, command: str, decision: str) -> None:
    """What a small slip in the reader would make freer or blinder (SECURITY §2.1, §2.3)."""
    assert decide(make_policy([*READER, *rules("+docker *")]), command) == decision

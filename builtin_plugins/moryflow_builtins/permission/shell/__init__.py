"""Shell commands: parsed whole, every simple command, redirection and known operand judged.

The parser is ours because the judge has to see what bash runs. tree-sitter-bash reads some texts otherwise, without an error:
in ``echo "${a:-'$(touch x)'}"`` it sees ``echo`` alone, and so it sees ``cat`` alone in a ``cat <<-E`` whose indented lines
hold ``$(touch x)``; bash runs ``touch`` in both. What our parser does not read surely is asked about.

===============================================================  ==================================================
reading a text                                                   syntax, lexer, words, simple, compound, parser
following it from folder to folder, judging each command         walk, judge, line, places
what a command reads, writes and runs                            inspect, facts, options
programs by tables                                               programs, verb_tables, verbs
programs with rules of their own                                 wrappers, interpreters, state, scripts, filters, transfer,
                                                                 own_program
git                                                              git, checkouts, git_shown; repositories, git_store, git_objects
what is touched without being named                              trees, tree_files, uploads, arrivals, patches
texts that are not understood                                    disguises
what *always* stores                                             stored_rules
===============================================================  ==================================================
"""

from __future__ import annotations

from moryflow_builtins.permission.judgement import Decision, Judgement, decision_of
from moryflow_builtins.permission.policy import Policy

MAX_BYTES = 128 * 1024
"""The longest command; the kernel would refuse a longer one too."""


def judge_command(policy: Policy, command: str, base: str | None = None) -> Decision:
    """Judge a whole command.

    :param base: the folder it starts in, an absolute path; the vault when it is not given.
    """
    from .hidden_commands import character_name, odd_character
    from .judge import Judge
    from .parser import parse
    from .syntax import NotParsed

    target = f"shell:{command}"
    if len(command.encode("utf-8", "replace")) > MAX_BYTES:
        reason = f"the command is longer than {MAX_BYTES // 1024} KiB"
        return decision_of([Judgement("bash", target[:200], "deny", reason, "invalid_input", "never")])
    folder = base or str(policy.vault)
    judge = Judge(policy, command, folder)
    try:
        script, quoted = parse(command)
        odd = odd_character(command, quoted)
        if odd:
            judge.unsure(command, f"the command holds the character {character_name(odd)} outside quotes")
        judge.script(script, frozenset((folder,)))
    except NotParsed as problem:
        judge.unsure(command, f"the command cannot be read surely: {problem}")
    except RecursionError:
        judge.unsure(command, "the command is nested too deeply")
    parts = tuple(judge.parts)
    return decision_of(parts or [policy.by_text("bash", "shell:")])

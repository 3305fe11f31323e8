"""Shell commands: the whole text is parsed, and every simple command, redirection and known operand is judged.

The parser is ours because the judge has to see what bash runs. tree-sitter-bash misreads some texts without an error: in
``echo "${a:-'$(touch x)'}"`` it sees only ``echo``, and in a ``cat <<-E`` whose indented lines hold ``$(touch x)`` it sees
only ``cat``; bash runs ``touch`` in both. A text that our parser cannot read with certainty is asked about.

===================  ===========================================================================================
reading a text
``syntax``           the parsed text, and the arguments that its words expand to
``lexer``            words: quotes, expansions, substitutions
``simple_command``   simple commands, redirections, here-documents
``parser``           lists, pipelines, compound commands

judging it
``judge``            the whole text: each command by the rules, then what it touches, then what it runs; a list of its commands
``walk``             the order of the commands, and the folders that ``cd`` leads to
``command_line``     one command as rules see it, what *always* stores, and commands that may hide in a text
``file_judge``       files that a command names, folders that it moves, copies, links or removes, archives that it unpacks
``own_folder``       Moryflow's own folder, which no command changes in any mode
``folder_scan``      folders that a command reads with everything below them, and the files that it ignores
``payloads``         the files that a patch changes, and those in an archive

what a command does
``effects``          options and operands, read with a table; the effects: files read and written, commands run
``inspect``          from a program to the module that knows it
``programs``         ordinary programs, as tables: ``grep``, ``cp``, ``rsync`` …
``verbs``            programs with verbs, as tables: ``npm``, ``docker``, ``kubectl`` …
``wrappers``         programs that run another command: ``sudo``, ``xargs``, ``ssh`` …
``interpreters``     shells and their builtins, ``python``, ``perl``, editors …
``scripts``          programs with rules of their own: ``find``, ``tar``, ``make`` …
``filters``          the languages of ``sed``, ``awk`` and ``jq``
``transfer``         ``curl``, ``wget``, file stores, and programs that build from a folder or publish it
``moryflow_command`` ``moryflow`` itself

git
``git``              verbs and options
``git_contents``     content that ``diff``, ``log -p`` … print, and files that ``checkout``, ``merge`` … bring
``git_store``        names, commits and trees
``git_repository``   which repository git would use in a folder, its index, its objects
===================  ===========================================================================================
"""

from __future__ import annotations

from moryflow_builtins.permission.policy import Decision, Judgement, Policy, decision_of

MAX_BYTES = 128 * 1024
"""The longest command; the kernel would refuse a longer one too."""


def judge_command(policy: Policy, command: str, base: str | None = None) -> Decision:
    """Judge a whole command.

    :param base: the folder that the command starts in, an absolute path; the vault by default.
    """
    from .command_line import character_name, odd_character
    from .judge import Judge, TooMuchWork
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
            judge.ask_unsure(command, f"the command holds the character {character_name(odd)} outside quotes")
        judge.script(script, frozenset((folder,)))
    except NotParsed as problem:
        judge.ask_unsure(command, f"the command cannot be read surely: {problem}")
    except RecursionError:
        judge.ask_unsure(command, "the command is nested too deeply")
    except TooMuchWork:
        judge.give_up()
    parts = tuple(judge.parts)
    return decision_of(parts or [policy.by_text("bash", "shell:")])

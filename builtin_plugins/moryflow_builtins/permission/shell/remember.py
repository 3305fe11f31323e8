"""What *always* stores for one command, and the state of the files that an exact rule depends on."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from moryflow_sdk import Remember
from moryflow_sdk.support.patterns import escape

from moryflow_builtins.permission.policy import Judgement, stored_rule_answers

from .lexer import Word
from .tables import ADDS_WORDS, RUNNERS, SAFE_VERBS, WRAPPERS, program
from .words import git_place, name_of, quote, runner_place, script_of

# Programs that run the file behind `-f`.
_TAKES_A_SCRIPT = frozenset(["awk", "gawk", "mawk", "nawk", "sed", "make", "gmake"])

ABSENT = "absent"
# A larger file is not hashed, so no rule is stored for a command that runs it.
MAX_BYTES = 64 * 1024 * 1024

_VERB = re.compile(r"[A-Za-z][\w:.-]*", re.ASCII)


def rule_to_remember(
    words: Sequence[Word], answer: Judgement, folder: str, contents: Mapping[str, str] | None, *, spelled: int
) -> Remember | None:
    """Return the rule that *always* stores for a command, or ``None`` when no stored rule could answer the question.

    :param words: the assignments and words.
    :param contents: the state of the files that the command runs; ``None`` when it is unknown.
    :param spelled: how many of the words a pattern has to spell out, or it would not cover the command.
    """
    if not stored_rule_answers(answer) or contents is None or not folder.isprintable():
        return None
    if not words or any(word.why or "\n" in word.text for word in words):
        return None
    pattern = escape(" ".join(map(quote, words)))
    wider = widest_prefix(words)
    wider = wider if wider.count(" ") >= spelled else ""
    return Remember(scope="user", domain="bash", pattern=pattern, wider=wider, folder=folder, contents=dict(contents))


def widest_prefix(words: Sequence[Word]) -> str:
    """Return the widest pattern that is safe to offer (``git log *``); empty for what is only offered exactly."""
    name = words[0].text
    known = program(name)
    if "safe" in known.kinds or (name in WRAPPERS and name not in ADDS_WORDS and name not in ("sudo", "doas", "exec")):
        return f"{name} *"
    if "code" in known.kinds and name.startswith("python") and [word.text for word in words[1:2]] == ["-m"]:
        module = words[script_of(words)].text
        return f"{name} -m {module} *" if "safe" in program(module).kinds or module == "unittest" else ""
    runs = runner_place(name, [word.text for word in words[1:]])
    if 0 < runs <= 2 and name_of(words[runs]) not in RUNNERS and (inner := widest_prefix(words[runs:])):
        return " ".join((*(word.text for word in words[:runs]), inner))
    if name not in SAFE_VERBS:
        return ""
    place = git_place(words) if name == "git" else 1
    verb = words[place].text if place < len(words) else ""
    if place != 1 or not _VERB.fullmatch(verb) or not {verb, "*"} & set(SAFE_VERBS[name].split()):
        return ""
    script = words[2].text if verb == "run" and len(words) > 2 else ""
    if verb == "run" and not _VERB.fullmatch(script):
        return ""
    return " ".join(filter(None, (name, verb, script, "*")))


# ---------------------------------------------------------------- the files that a command runs


def contents_of(words: Sequence[Word], base: str | None, vault: str) -> dict[str, str] | None:
    """Return the state of the scripts that a command names and runs; ``None`` when the state of one is unknown."""
    named = [words[0]] if "/" in words[0].text else []
    if program(name_of(words[0])).kinds & {"code", "shell"} and (place := script_of(words)) and words[place - 1].text != "-m":
        named.append(words[place])
    runs = runner_place(name_of(words[0]), [word.text for word in words[1:]])
    named += [words[runs]] if runs and re.search(r"[/.]", words[runs].text) else []
    named += [word for before, word in pairwise(words) if before.text == "-f" and name_of(words[0]) in _TAKES_A_SCRIPT]
    found: dict[str, str] = {}
    for word in named:
        if word.why or not (base or word.tilde or word.text.startswith("/")):
            return None
        path = os.path.join(base or "/", Path(word.text).expanduser() if word.tilde else word.text)  # noqa: PTH118
        state = state_of(path, vault)
        if not state:
            return None
        found |= {} if state == f"is:{path}" else {_rule_name(path, vault): state}
    return found


def changed_file(contents: Mapping[str, str], vault: str) -> str:
    """Return which file of `contents` has changed, and how; empty when none has."""
    for name, then in contents.items():
        kind, _, rest = name.partition(":")
        now = state_of(f"{vault}{rest}" if kind == "vault" else rest, vault)
        if now != then:
            return f"{name} {'did not exist before' if then == ABSENT else 'is gone' if now == ABSENT else 'has changed'}"
    return ""


def _rule_name(path: str, vault: str) -> str:
    """Return `path` as rules write it, without resolving it: a link or ``..`` in it may lead elsewhere tomorrow."""
    while "/./" in path:
        path = path.replace("/./", "/")
    return f"vault:{path[len(vault) :]}" if path.startswith(f"{vault}/") else f"fs:{path}"


def state_of(path: str, vault: str) -> str:
    """Return the state of the file that `path` leads to; empty when it cannot be determined.

    The state is :data:`ABSENT`, ``is:PATH`` for a file outside the vault that only root can change, or the SHA-256 digest.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):  # ``python folder`` runs its __main__.py
            return state_of(f"{path}/__main__.py", vault)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return ""
        real = os.path.realpath(path)
        if found.st_uid == 0 and not found.st_mode & 0o022 and not real.startswith(f"{vault}/"):
            return f"is:{real}"
        whole = sha256()
        while piece := os.read(descriptor, 1 << 20):
            whole.update(piece)
        return f"sha256:{whole.hexdigest()}"
    except OSError:
        return ""
    finally:
        os.close(descriptor)

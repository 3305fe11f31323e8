"""What bash really starts was among the commands that are judged: random texts, with stand-ins for every program."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moryflow_builtins.permission.shell.lexer import NotRead, Word, read

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is the reference")

_STAND_IN = r"""#!/bin/sh
line="${0##*/}"
for word in "$@"; do line="$line$(printf '\037%s_' "$word")"; line="${line%_}"; done
printf '%s\036' "$line" >> "$LOG"
"""
_PIECES = ["p", "q", "rm", " ", " ", ";", "&", "&&", "||", "|", "\n", "(", ")", "{ ", "; }", "$(", ")", "`", '"', "'", "\\"]
_PIECES += ["\\\n", "#", "<<E\n", "\nE\n", "${x:-", "}", "$x", "<", ">f", "2>&1", "if ", "; then ", "; fi", "{p,q}", "$'"]
_PIECES += ["<(", "[[ ", " ]]", "time ", "x=1 ", "!", "\r", "\t", "&>", "|&", ";;", "esac", "((", "))", "$((", "<<-E\n", "<<<"]
_PIECES += ["$[", "]", "=", "(", "a=(", "function ", "coproc ", "do ", "; done", "case a in a) "]


class Texts:
    """Random shell texts: commands in commands, a little damaged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        """Return one."""
        text = self._command(0)
        for _ in range(self._random.randint(0, 2)):
            place = self._random.randrange(len(text) + 1)
            insert = self._random.random() < 0.6
            text = text[:place] + (self._random.choice(_PIECES) + text[place:] if insert else text[place + 1 :])
        return text

    def _command(self, depth: int) -> str:
        if depth > 2 or self._random.random() < 0.3:
            return self._random.choice(["p", "q x", "rm -r x", 'p "a b"', "q 'x'", "p $x", "p a\\ b", "q {a,b}"])
        a, b = self._command(depth + 1), self._command(depth + 1)
        ticked = a.replace("`", "")
        forms = [f"{a};{b}", f"{a} && {b}", f"{a} | {b}", f"({a})", f"{{ {a}; }}", f"p $({a})", f'p "$({a})"', f"p `{ticked}`"]
        forms += [
            f'p "${{x:-$({a})}}"',
            f"p ${{x:-`{ticked}`}}",
            f"p <<E\n$({a})\nE\n{b}",
            f"p <<'E'\n$({a})\nE\n{b}",
            f"! {a}",
        ]
        forms += [
            f"if {a}; then {b}; fi",
            f"for i in 1; do {a}; done",
            f"case a in a) {a};; b) {b};; esac",
            f"p <({a})",
            f"time {a}",
        ]
        forms += [
            f"x=$({a}) q",
            f"x=1 {a}",
            f"[[ -n $({a}) ]] && {b}",
            f"p $(( 1 + $({a}; echo 1) ))",
            f"p # {a}\n{b}",
            f"{a} 2>&1 >f",
        ]
        forms += [
            f"p a#b; {a}",
            f"p \\\n {a}",
            f"p $'a\\'b'; {a}",
            f">f {a}",
            f"p ${{a[$({a};echo 0)]}}",
            f'p <<< "$({a})"',
            f"p `q \\`{ticked}\\``",
        ]
        return self._random.choice([*forms, *_further(a, b, ticked)])


def _further(a: str, b: str, bare: str) -> list[str]:
    """Return the rarer ways to put commands into commands; `bare` has no back quotes."""
    plain = bare.replace("\\", "").replace("'", "")
    compound = [
        f"until {a}; do {b}; break; done", f"for ((i=0;i<1;i++)); do {a}; done", f"for ((;;)) {{ {a}; break; }}",
        f"for i in $({a}) x; do {b}; done", f"for i\ndo {a}\ndone", f"f() {{ {a}; }}; f", f"function f {{ {a}; }}; f",
        f"f() ( {a} ); f", f"f ()\n{{ {a}\n}}\nf", f"case $({a}) in x) ;; *) {b} ;; esac", f"( ( {a} ) ; {b} )",
        f"case a in (a|b) {a} ;& c) {b} ;; esac", f"case a in a) {a} ;;& *) {b}\nesac", f"(({a}); {b})", f"{a} |& {b}",
        f"if {a}\nthen {b}\nelif {a}; then {b}; else {a}\nfi", f"coproc {a}; wait", f"coproc c {{ {a}; }}; wait",
        f"{a} & wait", f"{{ {a}\n}} &>f", f"( {a} ) >f 2>&1", f"{{ {a} & }}", f"({a}\n{b})",
        f"wh\\\nile {a}; do {b}; break; done",
        f"select i in a; do {a}; break; done", f"time -p {a}", f"! ! {a}", f"time ! {a}", f"{a} \\\n| {b}",
        f"i\\\nf {a}; then {b}; fi",
    ]  # fmt: skip
    expanded = [
        f"a=( $({a}) x ); {b}", f"a[$({a};echo 0)]=1", f"a[0]=$({a}) q", f"declare x=$({a})", f'export x="$({a})"; {b}',
        f"p ${{x:=$({a})}}", f'p "${{x/a/$({a})}}"', f"p ${{x#$({a})}}", f'p "${{x:-"$({a})"}}"', f"p ${{x:-'$({plain})'}}",
        f"(( $({a}; echo 1) )) && {b}", f"p $[ $({a}; echo 1) ]", f"[[ x =~ ($({a};echo x)) ]] && {b}", f"p > >({a}); wait",
        f"p < <({a})", f'p "$(p "$({a})")"', f"p $(p $(p $({a})))", f"p $({a} # )\n)", f"p $(case a in a) {a};; esac)",
        f"p $(case a in (a) {a};; esac)", f'p "`{plain}`"', f"p `p \\`{plain}\\` x`; {b}", f"p ${{#x}} ; {a}", f"p a$; {a}",
        f"p <<<$({a})", f"p $(time {a})", f"{{x}}>f {a}", f"p $'\\162m' $'a\\'b'; {a}", f"$'\\x72m' x; {a}", "r\\m y; 'r'm z",
    ]  # fmt: skip
    documents = [
        f"p <<-E\n\t$({a})\n\tE\n{b}", f"p <<E <<F\n$({a})\nE\n$({b})\nF\n{a}", f'p <<"E"\n$({a})\nE\n{b}',
        f"p <<E; {b}\n`{plain}`\nE\n", f"p <<E &&\n\\$({a})\nE\n{b}", f"p <<E | q\n${{x:-$({a})}}\nE", f"# {a}\n{b}",
        f"{{ p <<E\n$({a})\nE\n}}; {b}", f"p '# {plain}' # {plain}\n{b}", f'p "a # b" ; {a}', f"p x#y;{a}", f"p $x#; {a}",
    ]  # fmt: skip
    return compound + expanded + documents


def _run(text: str, folder: Path, programs: Path) -> list[list[str]]:
    """Run `text` in bash with stand-ins only; return what was started."""
    assert BASH is not None
    log = folder / "log"
    log.write_bytes(b"")
    environment = {"PATH": str(programs), "LOG": str(log), "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    with subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-c", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            log.write_bytes(b"")
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return [entry.split("\x1f") for entry in log.read_bytes().decode("utf-8", "replace").split("\x1e") if entry]


@pytest.mark.parametrize("seed", range(4))
def test_everything_that_bash_starts_was_seen(seed: int, tmp_path: Path) -> None:
    """Programs that a text starts, with their arguments, are among the commands that are judged (R6, R11)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("p", "q", "rm"):
        (programs / name).write_text(_STAND_IN)
        (programs / name).chmod(0o755)
    texts = Texts(seed)
    for number in range(25):
        text = texts.text()
        try:
            found = _found(text)
        except NotRead:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "f").write_text("data\n")
        exact = {tuple(arg.text for arg in args) for args in found if not any(arg.why for arg in args)}
        names = {args[0].text for args in found if any(arg.why for arg in args)}
        hidden = any(args and args[0].why for args in found)
        for started in _run(text, folder, programs):
            assert hidden or tuple(started) in exact or started[0] in names, (text, started, found)


def _found(text: str) -> list[tuple[Word, ...]]:
    """Return the words of every simple command in `text`."""
    return [command.words for command in read(text)]


_WORDS = st.sampled_from(
    ["p", "q", "rm", "-r", "x", "'a b'", '"c d"', "$'e'", "{a,b}", "a\\ b", "2>&1", ">f", "$(q)", '"$(rm y)"']
)
_SIMPLE = st.lists(_WORDS, min_size=1, max_size=4).map(" ".join).map("p {}".format)
_FORMS = (
    "{} && {}",
    "{} || {}",
    "{}; {}",
    "{} | {}",
    "( {}); {}",  # with a blank: two parentheses begin arithmetic, which is not read
    "{{ {}; }}; {}",
    "if {}; then {}; fi",
    "! {}; {}",
    "{} &\n{}",
)
_TEXTS = st.recursive(_SIMPLE, lambda inner: st.builds(str.format, st.sampled_from(_FORMS), inner, inner), max_leaves=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_TEXTS)
def test_what_is_read_of_the_small_language_is_what_bash_runs(tmp_path: Path, text: str) -> None:
    """Every text of it is read, and bash starts nothing else (R6, R11)."""
    programs = tmp_path / "programs"
    if not programs.exists():  # once for all texts: one that was started in the background may still run
        programs.mkdir()
        for name in ("p", "q", "rm"):
            (programs / name).write_text(_STAND_IN)
            (programs / name).chmod(0o755)
    found = {tuple(word.text for word in words) for words in _found(text) if not any(word.why for word in words)}
    dynamic = {words[0].text for words in _found(text) if any(word.why for word in words)}
    for started in _run(text, tmp_path, programs):
        assert tuple(started) in found or started[0] in dynamic, (text, started)

"""The parser reads a text as bash does, or says that it cannot."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command
from moryflow_builtins.permission.shell.parser import parse
from moryflow_builtins.permission.shell.syntax import Arg, NotParsed, Simple, arguments
from moryflow_builtins.permission.shell.walk import Bases, FoldersAfter, Walker

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is the reference")
ALLOW = [{"domain": "bash", "pattern": "*", "decision": "allow"}]

VALID = r"""
ls # ls -la # cat <<< hi # ls |& cat # ls & pwd # ls &> x # ls &>> x # ls >| x # ls <> x # ls 3>&1 1>&2 2>&3 # ls >&-
! ls # time ls # time -p ls # ! time ls # time # (ls) # { ls; } # { ls; } > x 2>&1 # f() { ls; } # function f { ls; }
if true; then ls; elif false; then pwd; else date; fi # while read -r l; do echo "$l"; done < a # until ls; do pwd; done
for i in 1 2; do echo $i; done # for i; do ls; done # for ((i=0;i<3;i++)); do ls; done # for i in a; { ls; }
select x in a; do ls; done # case x in a) ls;; b|c) pwd;; *) date;; esac # case x in (a) ls ;; esac # case x in esac
[[ -f x && -d y ]] && ls # [[ $x =~ ^a+$ ]] # [[ a == b* ]] # [[ ! -f x ]] # [[ (a == b) ]] # [[ a < b ]] # ((x++))
echo $((1 + 2)) # coproc ls # coproc N { ls; } # a=1 # a=1 b=2 ls # a+=1 # a=(1 2 3) # a[0]=1 # export A=1
echo ${x:-y} ${x//a/b} ${!x} ${x[@]} # echo $'a\'b' $"c" # echo {a,b}.md {1..3} { a } # cat <(ls) >(cat) # declare -a x
find . \( -name x -o -name y \) # echo a#b '#' # echo = # echo ! # echo !x # echo } # ls {fd}>x # ls | time cat
2>/dev/null ls # >x # echo a\ b 'it'\''s' "it's" # test ! -f x # [ -f x ] && cat x # echo if then fi
[[ a =~ ^(b c|d)$ ]] # [[ x == @(a|b) ]] # [[ ! ( -f a || -d b ) ]] # [[ a ]] # [[ a =~ (b) && ! -v c ]] # ls >&2>x
[[ a =~ b|c ]] # [[ a =~ |b||c ]]
"""
INVALID = r"""
ls " # ls ' # ls ` # ls $( # ls ${ # ls ( # ls ) # if ls # ls && # && ls # ; ls # ls ;; pwd # do ls # done # fi # then ls
case a in # [[ a # ((1 # ls > # ls < # echo a) # (ls # { ls # } ls # f( { ls; } # ls & & pwd # ls < < x # ! | # {ls;} # ()
if; then ls; fi # while do done # a=(1 # (ls) x # { ls; } x # if ls; then ls; fi x # for a b in c; do ls; done # esac
function { ls; } # ls <<< # select # case a in a ls;; esac # for x in a b do ls; done # echo a; ; echo b # ls | | cat
]] # x[ y # a && ]] # x[1 # time && ls # time | ls # (time) # ls < 2>&1 # ls > 3>x # ls <<< {fd}>x # cat <2<E
"""
INVALID_TESTS = r"""
[[ a =~ (b ]] # [[ a =~ b) ]] # [[ a =~ b;c ]] # [[ a b ]] # [[ a b c ]] # [[ a == ]] # [[ -f ]] # [[ a == b c ]]
[[ ( a ]] # [[ a ) ]] # [[ && a ]] # [[ a -x b ]] # [[ x == a(b) ]] # [[ x == (b) ]] # [[ a == b<c ]]
[[ | ]] # [[ a|b ]] # [[ -f a|b ]] # [[ a == b|c ]] # [[ 1 -lt +(1) ]] # [[ a -nt || ]]
"""
TEXTS = [text for table in (VALID, INVALID) for line in table.strip().splitlines() for text in line.split(" # ")]


def refused(text: str) -> bool:
    try:
        parse(text)
    except NotParsed:
        return True
    return False


@needs_bash
@pytest.mark.parametrize("text", TEXTS)
def test_the_parser_refuses_what_bash_refuses(text: str) -> None:
    """Text that does not parse is never allowed, text that does is understood (R6, SECURITY §2.1, §2.7)."""
    assert BASH is not None
    checked = subprocess.run([BASH, "--norc", "-n", "-c", text], capture_output=True, check=False)
    assert refused(text) == (checked.returncode != 0), checked.stderr


@needs_bash
@pytest.mark.parametrize(
    "text",
    [text for line in INVALID_TESTS.strip().splitlines() for text in line.split(" # ")]
    + ["[[ a\n]]", "[[ a ==\nb ]]", "[[ a\n&& b ]]"],
)
def test_a_condition_that_bash_refuses_is_refused(text: str) -> None:
    """The text is run: ``bash -n`` prints what is wrong inside ``[[ ]]``, and ends with 0 (SECURITY §2.7)."""
    assert BASH is not None
    checked = subprocess.run([BASH, "--norc", "-c", text], capture_output=True, check=False)
    assert checked.stderr
    assert refused(text)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a `b \\`c x\\``", ["c x", "b `c x`", "a `b \\`c x\\``"]),
        ('a "`b \\"c d\\"`"', ["b c d", 'a `b \\"c d\\"`']),
        ("a <<E; b\n$(c)\nE\nd", ["c", "a", "b", "d"]),
        ("a <<'E' | b\n$(c)\nE\nd", ["a", "b", "d"]),
        ("a <<-E\n\tx\n\tE\nb", ["a", "b"]),
        ("a <<E; b\n$(c)", ["c", "a", "b"]),  # bash takes the rest of the text, with a warning
        ("a <<-E\n\t$(b)\n\tE", ["b", "a"]),  # tree-sitter-bash sees `a` alone
        ("a $(b # c)\n) d", ["b", "a $(b # c)\n) d"]),
        ("case x in a) b;; (c|d) e;& esac; f", ["b", "e", "f"]),
        ("for i in 1; do a; done & b", ["a", "b"]),
        ("f() { a; } 2>&1; b", ["a", "b"]),
        ("a${x:-$(b)}", ["b", "a${x:-$(b)}"]),
        ("[[ $(a) =~ (b|c) ]] && d", ["a", "d"]),
        ("[[ $(a) =~ <(b) && c =~ d(e >(f) g) ]]; h", ["a", "b", "f", "h"]),
        ("! a | b && ! c || d & e", ["a", "b", "c", "d", "e"]),
        ("a=(1 $(b)) c[$(d)]=2 e", ["b", "d", "e"]),
        ("a\\\nb # c \\\nd", ["ab", "d"]),
    ],
)
def test_commands_are_found_where_they_stand(text: str, commands: list[str]) -> None:
    """Lists, substitutions, here-documents and compound commands are taken apart completely (SECURITY §2.1)."""
    found: list[str] = []

    def note(command: Simple, bases: Bases) -> FoldersAfter:
        found.append(" ".join(arg.text for arg in arguments(command.words)))
        return FoldersAfter(bases, bases)

    Walker(note, lambda *_: None, lambda *_: None).script(parse(text)[0], frozenset(("/vault",)))
    assert found == commands


def test_what_is_not_surely_read_as_bash_reads_it_is_refused() -> None:
    """bash runs ``touch`` here, where tree-sitter-bash sees a harmless text (R6, SECURITY §2.1)."""
    assert refused("""echo "${a:-'$(touch x)'}\"""")


@needs_bash
@settings(max_examples=25)
@given(st.lists(st.text("{},.ab13-\\'\"/", min_size=1, max_size=9), min_size=1, max_size=40))
def test_braces_give_the_words_that_bash_makes(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    """Braces are expanded as bash does, or the word counts as not known (SECURITY §2.2)."""
    assert BASH is not None
    usable = [word for word in words if word.count("'") % 2 == 0 and word.count('"') % 2 == 0 and not word.endswith("\\")]
    known: dict[str, list[str]] = {}
    for word in usable:
        if not refused(f"x a{word}"):
            args = words_of(f"x a{word}")[1:]
            if all(arg.static for arg in args):
                known[word] = [arg.text for arg in args]
    script = "".join(f"printf '%s\\037' a{word}; printf '\\036'\n" for word in known)
    folder = tmp_path_factory.getbasetemp()
    done = subprocess.run([BASH, "--norc", "-f"], input=script, capture_output=True, text=True, cwd=folder, check=False)
    printed = [line.split("\x1f")[:-1] for line in done.stdout.split("\x1e")]
    assert dict(zip(known, printed, strict=False)) == known


def words_of(text: str) -> list[Arg]:
    """Return the arguments of the one command in `text`."""
    command = parse(text)[0].chains[0].pipelines[0].commands[0]
    assert isinstance(command, Simple)
    return arguments(command.words)


# ------------------------------------------------------------------------------------------------
# Limits
# ------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("ab ;&|<>()$`\"'\\\n{}[]#!=~*?-/.,:0\u202e\r"), max_size=60))
def test_any_text_gets_an_answer(text: str, make_policy: Callable[..., Policy]) -> None:
    """No text crashes the judgement (SECURITY §2.7)."""
    assert judge_command(make_policy(ALLOW), text).verdict.decision in ("allow", "ask", "deny")


@pytest.mark.parametrize(
    "piece",
    ["(", "$(", "`", "{ ", "((", "$((", "${", "if ", "<(", '"$(', "[[ ", "! ", "f() { ", "case a in ", "a=(", "{a,", "<<a "],
)
def test_deep_nesting_asks(piece: str, make_policy: Callable[..., Policy]) -> None:
    """However deep a text is nested, it is asked about and not crashed on (R6)."""
    policy = make_policy(ALLOW)
    assert judge_command(policy, f"ls; {piece * (100_000 // len(piece))}").verdict.decision == "ask"


def test_a_thousand_substitutions_in_one_word_are_read_in_one_pass(make_policy: Callable[..., Policy]) -> None:
    """Nothing is read twice for each level of nesting (SECURITY §4)."""
    policy = make_policy(ALLOW)
    nested = "$(" * 35 + "rm x" + ")" * 35
    assert judge_command(policy, f"echo {nested}").verdict.decision == "ask"
    denied = make_policy([{"domain": "bash", "pattern": "rm *", "decision": "deny"}])
    assert judge_command(denied, f"echo {nested}").verdict.decision == "deny"
    assert judge_command(denied, "echo " + "$(ls)" * 5000 + "$(rm x)").verdict.decision == "deny"

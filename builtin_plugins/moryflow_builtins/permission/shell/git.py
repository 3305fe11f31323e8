"""``git``: the verb after its options, the forms that run programs or leave the vault, and its paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .effects import (
    BulkChange,
    CommandEffects,
    CommandItem,
    InnerText,
    Tree,
    WrittenFile,
    names_of,
    note_messages,
    operands_of,
    placed_operands,
    read_options,
    spec,
    take_option,
)
from .git_contents import checkout_of, moved_names, output_of
from .git_repository import EXCLUDED, PATHSPEC
from .syntax import Arg, join_words

_GLOBAL = spec(
    "c=c config-env=c C=d exec-path=r git-dir=r work-tree=r namespace=v super-prefix=v attr-source=v list-cmds=v p=g "
    "paginate=g help=g h=g shallow-file=r bare=g literal-pathspecs=g glob-pathspecs=g noglob-pathspecs=g icase-pathspecs=g"
)
_GUARDED_GLOBAL = frozenset(
    {"c", "config-env", "exec-path", "git-dir", "work-tree", "p", "paginate", "help", "h", "shallow-file", "bare"}
    | {f"{kind}-pathspecs" for kind in ("literal", "glob", "noglob", "icase")}
)

_ORDINARY = frozenset(
    {
        "status", "diff", "log", "show", "add", "stage", "commit", "branch", "checkout", "switch", "restore", "reset",
        "merge", "rebase", "cherry-pick", "revert", "stash", "tag", "fetch", "pull", "push", "rev-parse", "rev-list",
        "describe", "shortlog", "blame", "annotate", "ls-files", "ls-tree", "ls-remote", "cat-file", "grep", "mv", "rm",
        "clean", "reflog", "name-rev", "merge-base", "show-ref", "show-branch", "symbolic-ref", "for-each-ref", "diff-tree",
        "diff-index", "diff-files", "whatchanged", "count-objects", "fsck", "gc", "prune", "repack", "check-ignore",
        "check-attr", "check-ref-format", "init", "clone", "version", "range-diff", "cherry", "archive", "apply",
        "am", "format-patch", "notes", "update-ref", "update-index", "write-tree", "commit-tree", "hash-object",
        "worktree", "remote", "bundle", "sparse-checkout", "mktag", "stripspace",
        "column", "patch-id", "get-tar-commit-id", "interpret-trailers", "pack-refs", "rerere",
    }
)  # fmt: skip
"""Verbs a wildcard may cover. Any other may run programs, change configuration, or be an alias for anything."""

_BRINGS_FILES = frozenset(
    {
        "checkout", "switch", "restore", "reset", "merge", "rebase", "cherry-pick", "revert", "stash", "pull", "apply", "am",
        "clone", "worktree", "submodule", "mv", "sparse-checkout", "read-tree", "checkout-index", "bisect", "init",
    }
)  # fmt: skip
"""Verbs that write files in the working folder which the command does not name."""

MAX_COLONS = 4
"""After how many colons of a word a path may begin."""

_GUARDED_WORDS = frozenset({"worktree add", "worktree move", "remote add", "remote set-url", "notes edit", "stash branch"})

_COMMON = (
    "index=n cached=n lost-found=g "
    "output=w ext-diff=g textconv=g text=n no-index=g O=r orderfile=r upload-pack=x receive-pack=x exec=x e=n u=n "
    "x=n i=n interactive=g open-files-in-pager=x template=r separate-git-dir=w config=c reference=r reference-if-able=r "
    "recurse-submodules=g output-directory=w signoff=n gpg-sign=g edit=n editor=x tool=x extcmd=x server-option=v "
    "remote=x show-signature=g verify-signatures=g bundle-uri=h repo=h signature-file=r default-prefix=n "
    "output-indicator-new=v unsafe-paths=g filters=g index-output=w in-place=g "
    "contents=r ignore-revs-file=r exclude-from=r pathspec-from-file=r file=r prefix=v add-file=r "
    "message=m author=v date=v format=v pretty=n grep=v committer=v since=v until=v after=v before=v max-count=v "
    "skip=v fixup=v squash=v cleanup=v reuse-message=v reedit-message=v strategy=v strategy-option=v depth=v branch=v "
    "origin=v jobs=v filter=v sort=v contains=v points-at=v merged=n color=n stat=n word-diff=n word-diff-regex=v "
    "diff-filter=v unified=v inter-hunk-context=v onto=v exclude=v trailer=v set-upstream-to=v "
)
_DIFF = (
    "patch=n patch-with-stat=n patch-with-raw=n cc=n dd=n binary=n remerge-diff=n diff-merges=v color-words=n raw=n quiet=n "
    "function-context=n numstat=n shortstat=n dirstat=n compact-summary=n name-only=n name-status=n summary=n no-patch=n "
)
_PRINTS_DIFFERENCES = frozenset(
    {
        "diff", "diff-tree", "diff-index", "diff-files", "log", "show", "whatchanged", "reflog", "stash", "format-patch",
        "range-diff",
    }
)  # fmt: skip
_SHORT: dict[str, str] = {
    "grep": "O=x e=v f=r m=v A=v B=v C=v untracked=n no-exclude-standard=n exclude-standard=n",
    "rebase": "x=x i=g edit-todo=g X=v s=v C=v S=i",
    "clone": "u=x c=c b=v o=v j=v",
    "fetch": "j=v o=v u=g update-head-ok=g",
    "pull": "j=v o=v X=v s=v",
    "push": "o=v signed=g",
    "archive": "o=w",
    "format-patch": "o=w n=n v=v",
    "commit": "m=m F=r t=r C=v c=v S=i",
    "tag": "m=m F=r u=c local-user=c sign=g s=g verify=g v=g",
    "merge": "m=m F=r X=v s=v S=i",
    "stash": "m=m all=n include-untracked=n",
    "notes": "m=m F=r C=v c=v ref=v",
    "log": "stdin=g n=v S=v G=v L=v U=v l=v O=r",
    "diff": "S=v G=v U=v l=v O=r",
    "show": "stdin=g S=v G=v U=v O=r",
    "blame": "L=v S=r M=n C=n",
    "checkout": "b=v B=v orphan=v conflict=v",
    "switch": "c=v C=v create=v force-create=v orphan=v conflict=v",
    "cherry-pick": "m=v mainline=v X=v s=v S=i",
    "revert": "m=v mainline=v X=v s=v S=i",
    "worktree": "b=v B=v",
    "init": "b=v",
    "apply": "include=v p=v C=v directory=v whitespace=v build-fake-ancestor=w 3=n",
    "am": "include=v p=v C=v directory=v whitespace=v patch-format=R S=i 3=g 3way=g i=g",
    "branch": "u=v",
    "clean": "e=v i=g",
    "add": "i=g p=n e=g all=n force=n no-ignore-removal=n",
    "stage": "i=g p=n e=g all=n force=n no-ignore-removal=n",
    "ls-files": "x=v X=r",
    "hash-object": "t=v stdin-paths=g",
    "update-index": "cacheinfo=g index-info=g stdin=g",
    "cat-file": "batch=g batch-check=n batch-command=g",
    **dict.fromkeys(("diff-tree", "rev-list", "check-attr", "update-ref"), "stdin=g"),
    "restore": "s=v source=v staged=n S=n worktree=n W=n",
    "shortlog": "w=n n=n",
    "remote": "t=v m=v",
    "bisect": "",
}


def inspect_git(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Fill in the effects of a ``git`` command."""
    verb = len(args)
    for found in read_options(args, _GLOBAL, stop_at_operand=True):
        if found.operand:
            verb = found.place
        elif found.name in _GUARDED_GLOBAL:
            effects.guard(found.place, f"git {'-' * (1 + (len(found.name) > 1))}{found.name} changes what git runs or where")
            if found.role == "r" and found.value is not None:
                effects.reads.append(found.value)
        elif found.name == "C" and found.value is not None:
            effects.base = found.value
    effects.reads_here = effects.trusts_here = True
    if verb >= len(args):
        return
    if verb > 1:
        effects.views.append((args[0], *args[verb:]))
    _verb(args, verb, effects)


def inspect_dashed_git(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Fill in the effects of ``git-push`` and the like, which is judged as ``git push`` too."""
    verb = args[0].text.rpartition("/")[2].removeprefix("git-")
    effects.views.append((Arg("git"), Arg(verb), *args[1:]))
    effects.guard(len(args) - 1, f"git-{verb} is a program of git of its own")
    effects.possible_files += args[1:]


def _verb(args: Sequence[Arg], verb: int, effects: CommandEffects) -> None:
    name = args[verb].text
    last = len(args) - 1
    effects.brings_files = name in _BRINGS_FILES
    if name not in _ORDINARY and not name.startswith("-"):
        effects.guard(last, f"git {name} may run programs or change configuration")
        starts = (index for index in range(verb + 1, len(args)) if not args[index].text.startswith("-"))
        effects.texts += [
            InnerText(join_words(args[start:])) for start in starts
        ]  # as in ``bisect run``, ``submodule foreach``
    following = _following(args, verb, name)
    second = next((found.value.text for found in following if found.operand and found.value is not None), "")
    if f"{name} {second}" in _GUARDED_WORDS:
        effects.guard(last, f"git {name} {second} reaches outside or changes configuration")
    if verb < last and args[verb + 1].text == "--help":
        effects.guard(last, f"git {name} --help starts the viewer that the configuration names")
    if name == "init" or name == "clone" or f"{name} {second}" in ("worktree add", "bundle create"):
        effects.guard(last if name != "init" or verb < last else verb, f"git {name} writes a folder of its own")
    _operands(args, verb, name, following, effects)


def _following(args: Sequence[Arg], verb: int, name: str) -> list[CommandItem]:
    """Return the options and operands after the verb."""
    table = spec(_COMMON + (_DIFF if name in _PRINTS_DIFFERENCES else "") + _SHORT.get(name, ""))
    return list(read_options(args, table, verb + 1, files=True))


def _operands(args: Sequence[Arg], verb: int, name: str, following: Sequence[CommandItem], effects: CommandEffects) -> None:
    effects.trees += git_trees(name, following)
    if name in _ORDINARY:
        note_messages(following, args, effects)
    _note_bulk_changes(name, following, effects)
    first_path = next((index for index in range(verb, len(args)) if args[index].text == "--"), len(args))
    effects.checkout = checkout_of(name, following, first_path, marked=first_path < len(args))
    effects.moves_names = moved_names(name)
    effects.git_output = output_of(name, args, following, first_path)
    if name in ("apply", "am"):
        from .payloads import git_patch

        git_patch(name, following, effects)
    creates = name in ("clone", "init") or (name == "worktree" and verb + 1 < len(args) and args[verb + 1].text == "add")
    for found in following:
        take_option(found, effects, args)
        value = found.value
        if value is None:
            continue
        if not found.operand:
            _option_value(found, value, name, args, effects)
            continue
        if "::" in value.text.partition("/")[0]:
            effects.guard(found.place, "a transport of git can run programs")
        if creates and "://" not in value.text:
            effects.writes.append(WrittenFile(value, asks=True))
        effects.possible_files += [] if EXCLUDED.match(value.text) else _paths(value)
    if name == "init" and not effects.writes:
        effects.writes.append(WrittenFile(Arg("."), asks=True))


_GUARDED_VALUES = (
    (("format", "pretty"), "%G", "%G in a format of git runs the program that checks signatures"),
    (("format",), r"%\(raw", "%(raw) in a format of git shows what a name stands for, whatever that is"),
    (("pathspec-from-file",), r"-\Z", "git takes the names of files from what it is fed"),
    (("X", "strategy-option"), "sub", "git merge -X subtree brings files to another folder"),
)
"""Options, the text in their values that a wildcard does not cover, and why."""


def _option_value(found: CommandItem, value: Arg, verb: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record the paths that the value of an option may name, and the programs that it makes git run."""
    if not found.role:
        effects.possible_files.append(value)
    if found.role == "v" and found.name not in _PROSE and (found.name == "L" or value is args[found.place]):
        effects.possible_files += _paths(value)
    for names, sign, why in _GUARDED_VALUES:
        if found.name in names and re.search(sign if "%" in sign else rf"\A{sign}", value.text):
            effects.guard(found.place, why)
    strategy = found.name == "strategy" or (found.name == "s" and verb in ("merge", "rebase", "pull"))
    if strategy and value.text not in _STRATEGIES:
        effects.guard(found.place, f"git runs the program git-merge-{value.text}")


_SPEAKS = frozenset({"push", "pull", "fetch", "ls-remote"})
"""Verbs whose first operand is a repository."""

_REVISION = re.compile(r"(?i)(?:.*/)?(?:[A-Z]+_)?HEAD(?:[~^@:].*)?|.*[~^].*|.*@\{.*")


def _note_bulk_changes(name: str, found: Sequence[CommandItem], effects: CommandEffects) -> None:
    """Record the files that a verb writes at paths that it names, and guard the address of another repository."""
    operands = placed_operands(found)
    paths = tuple(value for _, value in operands)
    letters = names_of(found)
    if name in _SPEAKS and paths and ":" in paths[0].text:
        effects.guard(operands[0][0], f"git {name} speaks with the repository at {paths[0].text}")
    if name == "mv" and len(paths) > 1:
        effects.writes += [WrittenFile(path) for path in paths]
        effects.bulk_changes.append(BulkChange("git mv", paths[:-1], paths[-1], "moved"))
    elif name == "clean" and not letters & {"n", "dry-run"}:
        tree = Tree("git clean", follows="nothing" if letters & {"x", "X"} else "git", repository=True)
        effects.bulk_changes.append(BulkChange("git clean", paths or (Arg("."),), how="changed", tree=tree))
    elif name == "rm" and not letters & {"cached", "n", "dry-run"}:
        effects.writes += [WrittenFile(path) for path in paths if not PATHSPEC.search(path.text)]
    elif name == "checkout" or (name == "restore" and (not letters & {"S", "staged"} or letters & {"W", "worktree"})):
        named = tuple(path for path in paths if not _REVISION.fullmatch(path.text) and not PATHSPEC.search(path.text))
        effects.bulk_changes.append(BulkChange(f"git {name}", named, how="restored"))


_NAMED_REVISION = re.compile(r"[~^:@]|\AHEAD")


def git_trees(verb: str, found: Sequence[CommandItem]) -> list[Tree]:
    """Return the folders that a verb of git reads: to search them, or to add their files to its store.

    Once a file is in the store, git can print it.
    """
    letters = names_of(found)
    operands = operands_of(found)
    paths = tuple(arg for arg in operands if not PATHSPEC.search(arg.text)) if operands else ()
    paths = paths if len(paths) == len(operands) else (Arg("."),)
    match verb:
        case "add" | "stage" if operands or letters & {"A", "all", "no-ignore-removal", "pathspec-from-file"}:
            forced = letters & {"f", "force"}
            return [Tree(f"git {verb}", paths, follows="nothing" if forced else "git", repository=True)]
        case "stash" if letters & {"a", "all", "u", "include-untracked"}:
            every = letters & {"a", "all"}
            return [Tree(f"git stash {'-a' if every else '-u'}", follows="nothing" if every else "git", repository=True)]
        case "grep":
            return _git_grep(letters, operands)
        case "diff" if "no-index" in letters:
            return [Tree("git diff --no-index", paths)]
        case _:
            return []


def _git_grep(letters: set[str], operands: Sequence[Arg]) -> list[Tree]:
    """Return the folders of which ``git grep`` also reads files that git does not track."""
    patterns = letters & {"e", "f", "regexp", "file"}
    paths = tuple(arg for arg in (operands if patterns else operands[1:]) if not _NAMED_REVISION.search(arg.text))
    roots = () if any(PATHSPEC.search(arg.text) for arg in paths) else paths
    if "no-index" in letters:
        follows = "git" if "exclude-standard" in letters else "nothing"
        return [Tree("git grep --no-index", roots, follows=follows, repository=True)]
    if "untracked" in letters:
        follows = "nothing" if "no-exclude-standard" in letters else "git"
        return [Tree("git grep --untracked", roots, follows=follows, repository=True)]
    return []


_PROSE = frozenset({"m", "message", "grep", "author", "committer", "trailer", "S", "G", "word-diff-regex", "format", "date"})
"""Options whose value is text, never a file."""

_STRATEGIES = frozenset({"ort", "recursive", "resolve", "octopus", "ours", "subtree"})
_MAGIC = re.compile(r"(?:\([^)]*\)|[/!^]+)?")


def _paths(word: Arg) -> list[Arg]:
    """Return the paths that a revision or a pathspec may name: the whole word, and the text after each colon.

    ``HEAD:file``, ``:0:file``, ``:(top)file`` and ``:/file`` all name files.
    """
    colons = [index + 1 for index, char in enumerate(word.text) if char == ":"]
    if not colons or "//" in word.text:
        return [word]
    ends = [(colon, _MAGIC.match(word.text, colon)) for colon in colons[:MAX_COLONS]]
    starts = [start for colon, magic in ends for start in (colon, magic.end() if magic else colon)]
    return [word, *(word.cut(start) for start in dict.fromkeys(starts))]

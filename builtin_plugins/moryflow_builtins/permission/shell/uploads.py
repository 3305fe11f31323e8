"""Programs that build from a folder or publish it whole: ``docker build``, ``npm publish``.

Where the folder holds a file that is asked about when it is named, they are asked about too. What an ignore file leaves out
counts only where the program surely reads that file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .facts import CommandFacts
from .options import CommandItem, read_options, spec, table_rows
from .trees import Follows, Tree
from .verb_tables import VERBS
from .verbs import file_pieces
from .words import Arg

_TABLE = """
docker podman nerdctl | build buildx:build image:build builder:build compose:build | docker build-context
docker-compose podman-compose | build | docker
buildah | bud build | docker build-context
fly flyctl | deploy | docker
npm pnpm | publish pack | npm
yarn | publish pack npm:publish | npm
bun | publish pm:pack | npm
cargo poetry pdm hatch flit vsce ovsx | publish | git
"""
"""``names | verbs | how and options``; how: whose ignore files count. The options, besides operands, name such folders."""

_FOLLOWS: dict[str, Follows] = {"docker": "docker", "npm": "npm", "git": "git"}


@dataclass(frozen=True, slots=True)
class _Sender:
    verbs: frozenset[str]
    how: str
    options: frozenset[str]


def _sender(verbs: str, rest: str) -> _Sender:
    how, *options = rest.split()
    return _Sender(frozenset(verbs.split()), how, frozenset(options))


_SENDERS = {name: _sender(verbs, rest) for name, verbs, rest in table_rows(_TABLE)}


def inspect_upload(name: str, args: Sequence[Arg], facts: CommandFacts) -> None:
    """Note the folders that a command of the table reads."""
    if name not in _SENDERS:
        return
    sender = _SENDERS[name]
    table = VERBS[name].options if name in VERBS else " ".join(f"{one}=v" for one in sorted(sender.options))
    found = list(read_options(args, spec(table)))
    verb, rest = _verb(sender.verbs, [item.value for item in found if item.operand and item.value is not None])
    given = {item.name for item in found if not item.operand}
    if not verb or given & {"help", "version"} or (sender.how == "npm" and "dry-run" in given):
        return
    if "compose" in (name.rpartition("-")[2], verb.partition(" ")[0]):
        files = _values(found, frozenset({"f", "file"}))
        facts.trees.append(Tree(f"{name} {verb}", tuple(map(_above, files[:1]))))
    else:
        facts.trees.append(_tree(f"{name} {verb}", sender, rest, found))


def _verb(verbs: frozenset[str], words: Sequence[Arg]) -> tuple[str, list[Arg]]:
    """Return the verb of a command and the operands after it; an empty one where it sends nothing."""
    for place in range(len(words)):
        for count in (2, 1):
            text = ":".join(one.text for one in words[place : place + count])
            if text in verbs:
                return text.replace(":", " "), list(words[place + count :])
    return "", []


def _tree(why: str, sender: _Sender, rest: Sequence[Arg], found: Sequence[CommandItem]) -> Tree:
    roots = [piece for arg in (*_values(found, sender.options), *rest) for piece in file_pieces(arg)]
    unsure = any(not item.operand and not item.role and item.value is None for item in found)
    if not roots or sender.how == "git" or (unsure and sender.how != "docker"):
        roots.append(Arg("."))
    follows = _FOLLOWS[sender.how]
    if follows == "docker" and any(item.name in ("f", "file") for item in found):
        follows = "nothing"  # the ignore file beside that one may count instead
    if follows == "npm":
        return Tree(why, tuple(roots), without=(".npmrc",), without_folders=("node_modules",), follows="npm", repository=True)
    return Tree(why, tuple(roots), follows=follows, repository=follows == "git")


def _values(found: Sequence[CommandItem], names: frozenset[str]) -> list[Arg]:
    return [item.value for item in found if item.name in names and item.value is not None]


def _above(file: Arg) -> Arg:
    return Arg(file.text.rpartition("/")[0] or ".", file.why, tilde=file.tilde)

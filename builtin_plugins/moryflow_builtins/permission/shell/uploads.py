"""Programs that pack, build from or send a folder whole: ``docker build``, ``npm publish``, ``wrangler deploy``.

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
docker podman nerdctl |
    build buildx:build buildx:bake image:build builder:build compose:build compose:up compose:create compose:watch
    compose:config compose:convert | docker build-context
docker-compose podman-compose | build up create watch config convert | docker
buildah img kaniko executor buildctl | bud build - | docker build-context context local
npm pnpm | publish pack diff | npm diff
yarn | publish pack npm:publish | npm
bun | publish pm:pack | npm
gh-pages | - | all d dist
cargo | publish package | git
poetry pdm hatch flit rye | publish build | git
uv gem | build | git
wrangler | !deploy !publish !dev !pages:deploy !pages:publish !pages:dev !versions:upload | git assets site cwd
vercel vc now |
    !- !deploy !build !dev ~ls ~list ~whoami ~logs ~inspect ~help ~login ~logout ~teams ~projects ~domains ~bisect | all cwd
netlify ntl | !deploy !build !dev !serve | all dir d cwd functions f
surge | - ~list ~whoami ~login ~logout ~help | all project p
firebase | !deploy !hosting:channel:deploy !serve !emulators:start !emulators:exec | git public
fly flyctl | !deploy !launch | docker
heroku | container:push container:release builds:create | docker context-path
railway render eb | !up !deploy | all
gcloud | deploy submit | all source
az | up build deploy deployment | all src-path source src s
aws | push package deploy | all source template-file
sam cdk serverless sls eas expo amplify zappa partykit convex supabase modal kamal convox chalice pulumi deployctl ionic |
    !deploy !publish !push !upload !submit !update !package !build !synth !up !dev | git
cf func clasp swa | push publish deploy | all p path app-location
vsce ovsx | !publish !package | git
mkdocs hugo | !gh-deploy !deploy | git
helm | install upgrade template package lint | all f values set-file
kustomize | build | all
kubectl oc | apply create replace diff patch delete | manifests
pack | build | all path p
skaffold earthly dagger tilt | !run !build !dev !deploy !up !call !ci | git
"""
"""``names | verbs | how and options``.

A verb with ``!`` also runs what the folder says, ``-`` stands for no verb, ``~`` marks those that send nothing; how: whose
ignore files count. The options, besides operands, name such folders.
"""

_FOLLOWS: dict[str, Follows] = {"docker": "docker", "npm": "npm", "git": "git"}
_MANIFESTS = ("*.json", "*.yaml", "*.yml")


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
    verb, last, rest = _verb(sender.verbs, [item for item in found if item.operand])
    given = {item.name for item in found if not item.operand}
    if verb is None or given & {"help", "version"} or (sender.how == "npm" and "dry-run" in given):
        return
    why = f"{name} {verb}".rstrip()
    if f"!{verb.replace(' ', ':') or '-'}" in sender.verbs:
        facts.guard(last or len(args) - 1, f"{why} runs what the folder says, and sends it")
    elsewhere = next((word for word in rest if "://" in word.text or word.text.startswith(("git@", "github.com/"))), None)
    if sender.how == "docker" and elsewhere is not None:
        facts.guard(args.index(elsewhere), f"{why} builds from {elsewhere.text}")
    if sender.how == "manifests":
        facts.trees += _manifests(why, found)
    elif "compose" in (name, verb.partition(" ")[0]) or name.endswith("-compose"):
        files = _values(found, frozenset({"f", "file"}))
        facts.trees.append(Tree(why, tuple(map(_above, files[:1]))))
    else:
        facts.trees.append(_tree(why, sender, rest, found))


def _verb(verbs: frozenset[str], operands: Sequence[CommandItem]) -> tuple[str | None, int, list[Arg]]:
    """Return the verb of a command, where it stands, and the operands after it; ``None`` where it sends nothing."""
    words = [item.value for item in operands if item.value is not None]
    sending = {verb.lstrip("!") for verb in verbs}
    for place, word in enumerate(words):
        for count in (2, 1):
            text = ":".join(one.text for one in words[place : place + count])
            if text in sending:
                end = min(place + count, len(words))
                return text.replace(":", " ") if count == 2 else text, operands[end - 1].index, words[end:]
        if f"~{word.text}" in verbs:
            return None, 0, []
    return ("", 0, words) if "-" in sending else (None, 0, [])


def _tree(why: str, sender: _Sender, rest: Sequence[Arg], found: Sequence[CommandItem]) -> Tree:
    roots = [piece for arg in (*_values(found, sender.options), *rest) for piece in file_pieces(arg)]
    unsure = any(not item.operand and not item.role and item.value is None for item in found)
    if not roots or sender.how == "git" or (unsure and sender.how != "docker"):
        roots.append(Arg("."))
    follows = _FOLLOWS.get(sender.how, "nothing")
    if follows == "docker" and any(item.name in ("f", "file") for item in found):
        follows = "nothing"  # the ignore file beside that one may count instead
    if follows == "npm":
        return Tree(why, tuple(roots), without=(".npmrc",), without_folders=("node_modules",), follows="npm", repository=True)
    return Tree(why, tuple(roots), follows=follows, repository=follows == "git")


def _manifests(why: str, found: Sequence[CommandItem]) -> list[Tree]:
    """Return what ``kubectl`` reads: manifests behind ``-f``, and everything that a kustomization may name behind ``-k``."""
    files = tuple(_values(found, frozenset({"f", "filename"})))
    folders = tuple(_values(found, frozenset({"k", "kustomize"})))
    deep = any(item.name in ("R", "recursive") for item in found)
    trees = [Tree(why, files, only=_MANIFESTS, depth=None if deep else 1)] if files else []
    return [*trees, *([Tree(f"{why} -k", folders)] if folders else [])]


def _values(found: Sequence[CommandItem], names: frozenset[str]) -> list[Arg]:
    return [item.value for item in found if item.name in names and item.value is not None]


def _above(file: Arg) -> Arg:
    return Arg(file.text.rpartition("/")[0] or ".", file.why, tilde=file.tilde)

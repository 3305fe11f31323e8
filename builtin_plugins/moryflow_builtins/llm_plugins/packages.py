"""Load the packages that the user named, each by itself, and keep what it registers.

``llm`` would load every installed package at once, and not start if one of them cannot be imported. Here its own way to load is
switched off, and each package that was agreed to is registered with its plugin manager.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moryflow_sdk import Diagnostic

GROUP = "llm"
# Byte code, scripts, and what an installer writes: the rest is the same in a wheel and where it is installed.
_NOT_OWN = re.compile(r"\.\.|/|.*\.pyc$|[^/]+\.dist-info/(?!(METADATA|entry_points\.txt)$)")
_lock = threading.Lock()
_kept: dict[tuple[str, str], LlmPackage] = {}


@dataclass(frozen=True)
class RegisteredModel:
    """A model as a package registered it; one of the two variants may be missing."""

    model: Any
    async_model: Any
    aliases: tuple[str, ...] = ()

    @property
    def any(self) -> Any:
        """The variant that is asked: the asynchronous one if there is one."""
        return self.async_model or self.model


@dataclass(frozen=True)
class LlmPackage:
    """What one package registers.

    :param tools: functions, tools of ``llm`` and classes of toolboxes, with the name they were registered under.
    :param fragments: loaders by prefix; `templates` likewise.
    :param embeddings: embedding models by id, for tools of packages and ``moryflow llm embed``.
    """

    label: str
    models: list[RegisteredModel] = field(default_factory=list[RegisteredModel])
    tools: list[tuple[Any, str]] = field(default_factory=list[tuple[Any, str]])
    fragments: dict[str, Callable[[str], Any]] = field(default_factory=dict[str, Callable[[str], Any]])
    templates: dict[str, Callable[[str], Any]] = field(default_factory=dict[str, Callable[[str], Any]])
    embeddings: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def summary(self) -> str:
        """What it brings, in one line."""
        rows = (
            ("models", [f"llm/{each.any.model_id}" for each in self.models]),
            ("tools", [name for _, name in self.tools]),
            ("fragments", [f"@{prefix}:" for prefix in self.fragments]),
            ("commands", [f"/llm:{prefix}" for prefix in self.templates]),
            ("embedding models", list(self.embeddings)),
        )
        return "; ".join(f"{what} {', '.join(names)}" for what, names in rows if names) or "nothing that is offered"


def find_distribution(name: str) -> Distribution | None:
    """Return the installed package `name`; ``None`` if there is none, or it has no plugin of ``llm``."""
    try:
        found = distribution(name)
        return found if points_of(found) else None
    except (PackageNotFoundError, ValueError):
        return None


def points_of(found: Distribution) -> list[Any]:
    """Return the entry points through which ``llm`` would load the package."""
    return [point for point in found.entry_points if point.group == GROUP]


def content_hash(found: Distribution) -> str:
    """Return the hash of the package's own files, and of the modules that would be imported, wherever they are."""
    own = {str(file): Path(str(file.locate())) for file in found.files or () if not _NOT_OWN.match(str(file))}
    for point in points_of(found):  # an editable installation does not list its modules
        own |= _sources(point.value.partition(":")[0].partition(".")[0])
    total = sha256()
    for name, path in sorted(own.items()):
        with contextlib.suppress(OSError):
            total.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _sources(module: str) -> dict[str, Path]:
    """Return the files of a module or package by their names on ``sys.path``, without importing it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return {}
    origin = Path(spec.origin) if spec and spec.origin else Path()
    if origin.name != "__init__.py":
        return {origin.name: origin} if origin.name else {}
    return {path.relative_to(origin.parents[1]).as_posix(): path for path in origin.parent.rglob("*.py")}


def load_packages(named: Mapping[str, str]) -> tuple[list[LlmPackage], list[Diagnostic]]:
    """Return the packages that can be loaded, and why others cannot. It imports them, so call it off the loop."""
    packages: list[LlmPackage] = []
    problems: list[Diagnostic] = []
    with _lock:
        for name, agreed in named.items():
            found = _load(name, agreed)
            (packages if isinstance(found, LlmPackage) else problems).append(found)  # pyright: ignore[reportArgumentType]
    return packages, problems


def _load(name: str, agreed: str) -> LlmPackage | Diagnostic:
    found = find_distribution(name)
    if found is None:
        text = "no package of this name with a plugin of llm is installed"
        return _problem(name, "llm_import", text, f"python -m pip install {name}, or moryflow llm remove {name}")
    now = content_hash(found)
    if now != agreed:
        text = "it has changed since you agreed to it" if agreed else "you have not agreed to it"
        return _problem(name, "consent", text, f"moryflow llm add {name}")
    kept = _kept.get((name, now))
    if kept is not None:
        return kept
    if any(known == name for known, _ in _kept):
        return _problem(name, "llm_import", "another version of it is in use since the start", "start moryflow again")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            package = _import(found)
    except (Exception, SystemExit) as error:  # the boundary around the package's code
        return _failed(name, error)
    return _kept.setdefault((name, now), package)


def _problem(name: str, code: str, message: str, next_step: str) -> Diagnostic:
    return Diagnostic(file=name, code=code, message=message, next_step=next_step)


def _failed(name: str, error: BaseException) -> Diagnostic:
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        package = "'moryflow[llm]'" if top == "llm" else top
        step = f"python -m pip install {package}"
        return _problem(name, "llm_import", f"it cannot be imported: the module {error.name} is missing", step)
    text = f"it cannot be loaded: {type(error).__name__}: {error}".split("\n", 1)[0]
    return _problem(name, "llm_import", text, f"python -m pip install --upgrade {name}, or moryflow llm remove {name}")


def _import(found: Distribution) -> LlmPackage:
    """Import a package and call its hooks."""
    from llm import plugins

    if plugins.LLM_LOAD_PLUGINS is None:
        plugins.LLM_LOAD_PLUGINS = ""  # as the variable of that name: `llm` loads no package by itself
    modules = [(point.name, point.load()) for point in points_of(found)]
    package = LlmPackage(f"{found.metadata['Name']} {found.version}")
    for name, module in modules:
        if not plugins.pm.is_registered(module):
            plugins.pm.register(module, name=f"{found.metadata['Name']}:{name}")  # two packages may use the same name
        _collect(package, plugins.pm, module)
    return package


def _collect(package: LlmPackage, manager: Any, module: Any) -> None:
    """Call the hooks of one module, and of no other."""
    others = [each for each in manager.get_plugins() if each is not module]

    def call(hook: str, register: Callable[..., None], **more: Any) -> None:
        manager.subset_hook_caller(hook, others)(register=register, **more)

    def add_model(model: Any, async_model: Any = None, aliases: Iterable[str] | None = None) -> None:
        package.models.append(RegisteredModel(model, async_model, tuple(aliases or ())))

    def add_embedding(model: Any, aliases: Iterable[str] | None = None) -> None:
        package.embeddings.update(dict.fromkeys((str(model.model_id), *(aliases or ())), model))

    def add_tool(tool: Any, name: str | None = None) -> None:
        package.tools.append((tool, name or str(getattr(tool, "name", None) or tool.__name__)))

    call("register_models", add_model, model_aliases=[])
    call("register_embedding_models", add_embedding)
    call("register_tools", add_tool)
    call("register_fragment_loaders", package.fragments.__setitem__)
    call("register_template_loaders", package.templates.__setitem__)

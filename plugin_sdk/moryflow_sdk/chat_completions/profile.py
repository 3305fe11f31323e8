"""What a service has said about a model by refusing requests: which parameters and fields it does not take, and which it wants.

A service that refuses a request says why in words, and often names the parameter. The request is then sent again without it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moryflow_sdk.errors import ModelError

_REFUSING = frozenset({400, 422, 500, 501, None})
"""The statuses of a refusal that may name a parameter. llama.cpp answers 500; litellm refuses by itself, without one."""
_MISSING = r"(?i)missing|must be (passed|provided|sent|included)|required|preserved|without|expected|必须"
_LIMITS = ("max_tokens", "max_completion_tokens")
_UNKNOWN = r"(?i)unsupported|not supported|unknown|unrecogni[sz]ed|extra (inputs?|fields?)|not permitted|not allowed|unexpected"
_OTHER_NAMES = {
    "response_format": r"(?i)response.?mime.?type|json_schema|json mode|structured outputs?|custom grammar",
    "stream_options": r"include_usage",
    "max_tokens": r"(?i)max_?output_?tokens",
    "max_completion_tokens": r"(?i)max_?output_?tokens",
    "reasoning_effort": r"(?i)reasoning[. ]effort|thinking[_ ]?(level|budget)|output_config|\beffort\b",
    "reasoning": r"(?i)reasoning[. ]effort|\beffort\b",
    "thinking": r"(?i)thinking[._]type|thinking mode",
    "chat_template_kwargs": r"enable_thinking",
}
"""Other names under which a service, or one behind it, complains about a parameter."""
_WORDS = frozenset({"reasoning", "thinking", "user", "stop", "seed", "n", "format", "store", "metadata"})
"""Parameters whose names are English words: they must be quoted to count."""
_TOOL = (
    r"(?i)(?:tools|tools\[0\]\.function_declarations)[.\[](\d+)(?!\]\.function_decl)"
    r"|\bfunction ['\"`]([A-Za-z0-9_-]{1,64})['\"`]"
)
_SCHEMA = r"(?i)schema|parameters|properties|items|function_declarations"


@dataclass
class Profile:
    """What one service has said about one model.

    :ivar without: parameters that it refuses; `fields_without` are fields of messages, `withheld` are tools.
    :ivar output_field: the name that it wants for the limit of an answer; empty if it has said nothing about that.
    """

    without: set[str] = field(default_factory=set[str])
    fields_without: set[str] = field(default_factory=set[str])
    withheld: set[str] = field(default_factory=set[str])
    output_field: str = ""
    wants_reasoning: bool = False
    wants_signature: bool = False

    def learn(
        self, error: ModelError, sent: Mapping[str, Any], fields: Collection[str] = (), tools: Collection[str] = ()
    ) -> bool:
        """Take from a refusal what to change; return whether the request, changed, is worth sending again.

        :param sent: the parameters of the request; `fields` are the kept fields in it, `tools` the names of its tools in order.
        """
        if error.code not in ("bad_request", "overloaded") or error.status not in _REFUSING:
            return False
        text = error.message
        if re.search(_MISSING, text):
            if not self.wants_reasoning and re.search(r"reasoning_content|\.thinking\b", text):
                self.wants_reasoning = True
                return True
            if not self.wants_signature and re.search(r"(?i)thought.?signature", text):
                self.wants_signature = True
                return True
        return self._learn_parameter(error, sent) or self._learn_field(error, fields) or self._learn_tool(error, tools)

    def _learn_parameter(self, error: ModelError, sent: Mapping[str, Any]) -> bool:
        named = [key for key in sent if key not in ("model", "stream") and _names(error, key)]
        if not named:
            return False
        limit = next((key for key in named if key in _LIMITS), "")
        other = next((name for name in _LIMITS if name != limit), "")
        if limit and not self.output_field and (other in error.message or re.search(_UNKNOWN, error.message)):
            self.output_field = other
        else:
            self.without.add(limit or named[0])
        return True

    def _learn_field(self, error: ModelError, fields: Collection[str]) -> bool:
        named = {name for name in fields if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", f"{error.param} {error.message}")}
        self.fields_without |= named
        return bool(named)

    def _learn_tool(self, error: ModelError, tools: Collection[str]) -> bool:
        """Withhold the tool whose schema the service does not take: one tool must not cost the others."""
        found = re.search(_TOOL, f"{error.param} {error.message}")
        if found is None or not re.search(_SCHEMA, f"{error.param} {error.message}"):
            return False
        names = [name for name in tools if name not in self.withheld]
        at = int(found[1]) if found[1] else -1
        name = names[at] if 0 <= at < len(names) else found[2] or ""
        if name not in names:
            return False
        self.withheld.add(name)
        return True


def _names(error: ModelError, key: str) -> bool:
    """Whether `error` is about the parameter `key`."""
    if re.split(r"[.\[]", error.param)[0] == key:
        return True
    if key in _OTHER_NAMES and re.search(_OTHER_NAMES[key], error.message):
        return True
    name = re.escape(key)
    pattern = rf"['\"`\[]{name}['\"`\].]" if key in _WORDS else rf"(?<![\w-]){name}(?![\w-])"
    return re.search(pattern, error.message) is not None


class Profiles:
    """The profiles of models, in this process and, with a file, in those of the next day.

    Withheld tools are not stored: another folder may have another tool of that name.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._known: dict[str, Profile] = {}

    def of(self, service: str, model: str) -> Profile:
        """Return the profile of the model that the service at an address calls `model`."""
        key = _key(service, model)
        if key not in self._known:
            with suppress(LookupError, TypeError):  # no row, or one that something else wrote
                said: dict[str, Any] = self._rows()[key]["said"]
                sets: dict[str, Any] = {name: set(said[name]) for name in _STORED_SETS}
                self._known[key] = Profile(**{**said, **sets})
        return self._known.setdefault(key, Profile())

    def keep(self, service: str, model: str) -> None:
        """Store the profile of a model for other processes; nothing is stored if that is not possible."""
        if self._file is None:
            return
        key = _key(service, model)
        said = {**vars(self._known[key]), **{name: sorted(getattr(self._known[key], name)) for name in _STORED_SETS}}
        del said["withheld"]
        rows = {name: row for name, row in self._rows().items() if name != key}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            rows = dict([*rows.items(), (key, {"at": time.time(), "said": said})][-MAX_KEPT:])
            new = self._file.with_suffix(".new")  # of two processes that write at once, one may lose what it learnt
            new.write_text(json.dumps(rows), encoding="utf-8")
            new.replace(self._file)

    def _rows(self) -> dict[str, Any]:
        """Return what was stored in the last day, the oldest first."""
        try:
            rows: dict[str, Any] = json.loads(self._file.read_bytes()) if self._file else {}
            return {key: row for key, row in rows.items() if 0 <= time.time() - row["at"] < KEPT_FOR}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}


KEPT_FOR = 86_400.0
"""Seconds. A refusal may have been about the value, or about what the service has mended since, so it is tried again."""
MAX_KEPT = 200
_STORED_SETS = ("without", "fields_without")


def _key(service: str, model: str) -> str:
    """Return a name for a model of a service that gives away neither: an address may contain a key."""
    return hashlib.sha256(f"{service} {model}".encode()).hexdigest()[:32]

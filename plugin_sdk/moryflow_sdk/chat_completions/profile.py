"""What a service has said about a model by refusing requests: which parameters and fields it does not take, and which it wants.

A service that refuses a request says why in words, and often names the parameter. The request is then sent again without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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
    if re.split(r"[.\[]", error.param)[0] == key:
        return True
    if key in _OTHER_NAMES and re.search(_OTHER_NAMES[key], error.message):
        return True
    name = re.escape(key)
    pattern = rf"['\"`\[]{name}['\"`\].]" if key in _WORDS else rf"(?<![\w-]){name}(?![\w-])"
    return re.search(pattern, error.message) is not None

"""What is seen at a terminal while something is still coming."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from moryflow.cli.terminal.question_text import question

pytestmark = pytest.mark.slow

Begin = Callable[..., Any]
WORDS = [f"word{number}" for number in range(30)]

THINKER = """
from moryflow_sdk import *
import asyncio

class Thinker(BaseProvider):
    name = "thinker"
    prefixes = ("think:",)

    def find(self, model):
        return ModelInfo(id=model, name=model, provider="thinker", context_window=128_000) if "think:" in model else None

    async def stream(self, request):
        for _ in range(18):
            await asyncio.sleep(0.1)
            yield ReasoningDelta(text="hmm ")
        yield TextDelta(text="answer")
        yield Finished(reason="stop")

@hookimpl
def models():
    return [Thinker()]
"""


def test_a_long_paragraph_is_seen_while_it_comes(cli: Any, at_terminal: Begin) -> None:
    """Its last words stand beside the spinner until it is printed whole, as Markdown (issue 2, CLI; S2.22)."""
    terminal = at_terminal("run", "-m", cli.script({"text": " ".join(WORDS), "pause": 0.1}), "hi")
    assert terminal.end() == 0
    assert "\x1b[K" in terminal.raw[terminal.raw.index("word12") : terminal.raw.index("word29")]
    shown = terminal.raw[terminal.raw.rindex("\x1b[K") :]
    assert [word for word in WORDS if word in shown] == WORDS


def test_thinking_for_long_moves(cli: Any, at_terminal: Begin) -> None:
    """Reasoning that never pauses for a second is a reason for the spinner, too, and is not the answer (issue 2, CLI)."""
    cli.plugin("thinker", THINKER)
    terminal = at_terminal("run", "-m", "think:long", "hi")
    terminal.expect("⠙")
    terminal.expect("answer")
    assert terminal.end() == 0
    assert "hmm" not in terminal.text


@pytest.mark.parametrize("text", ["abcdefghij " * 20, "汉字很宽的一行" * 20, "e\u0301" * 300])
def test_nothing_beside_the_spinner_is_wider_than_the_terminal(cli: Any, at_terminal: Begin, text: str) -> None:
    """A line that wraps could not be taken away again: its first part would stay for ever (issue 2, CLI)."""
    model = cli.script({"text": f"{text} end", "pause": 0.12 if " " in text else 0.0, "delay": 1.4})
    terminal = at_terminal("run", "-m", model, "hi", columns=40)
    terminal.expect("end")
    assert terminal.end() == 0
    drawn = re.findall(r"\r\x1b\[K([⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏][^\r\x1b]*)", terminal.raw)
    assert drawn and all(_columns(line) < 40 for line in drawn)


@pytest.mark.parametrize(
    ("remember", "shown"),
    [(["make all", "npm test"], "always: make all, npm test"), ("make", "always: make"), (None, "! no rule")],
)
def test_a_question_names_each_pattern_as_a_rule_has_it(remember: Any, shown: str) -> None:
    """Of a command in two parts both patterns are shown, as they would stand in the file (S0.9, D5)."""
    data = {"tool": "bash", "targets": ["shell:make all; npm test"], "reason": "no rule", "remember": remember}
    assert question(data).text.endswith(f"{shown}\n")


def _columns(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len([character for character in text if not unicodedata.combining(character)]) + wide

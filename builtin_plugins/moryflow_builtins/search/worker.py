"""Find lines in texts. As a program, it does so in a process of its own, which can be stopped whatever the pattern is.

It imports only the standard library, so it starts quickly.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

MAX_LINE = 500
Search = Callable[[Any, int], Any]
Line = tuple[int, bool, str]
"""Line number, whether the line matches (else it is context), and its text."""


def find_lines(text: Any, search: Search, context: int) -> Iterator[Line]:
    """Yield the lines of `text` (bytes or str) with a match, and `context` lines around each.

    :param search: ``(text, position) -> match or None``; it must not look across line ends for a match it starts.
    """
    newline: Any = b"\n" if isinstance(text, bytes) else "\n"
    size, number, position, shown_to, seen_to = len(text), 1, 0, 0, 0
    while position <= size and (match := search(text, position)) is not None:
        if match.start() >= size and text[-1:] in (newline, newline[:0]):
            return  # no line follows the last line end
        start = text.rfind(newline, 0, match.start()) + 1
        end = _line_end(text, newline, match.start())
        number += text.count(newline, seen_to, start)
        yield from _around(text, newline, number, _back(text, newline, start, context, shown_to), start)
        yield number, True, _cut_line(text[start:end])
        shown_to, seen_to, position = end + 1, start, end + 1
        following = search(text, position) if position <= size else None
        stop = size if following is None else text.rfind(newline, 0, following.start()) + 1
        for ahead in range(1, context + 1):
            if shown_to >= min(stop, size):
                break
            end = _line_end(text, newline, shown_to)
            yield number + ahead, False, _cut_line(text[shown_to:end])
            shown_to = end + 1


def _line_end(text: Any, newline: Any, position: int) -> int:
    end = text.find(newline, position)
    return len(text) if end < 0 else end


def _back(text: Any, newline: Any, start: int, context: int, shown_to: int) -> int:
    """Return where the context before `start` begins: at most `context` lines, without those already yielded."""
    first = start
    for _ in range(context):
        if first <= shown_to:
            break
        first = text.rfind(newline, 0, first - 1) + 1
    return max(first, min(shown_to, start))


def _around(text: Any, newline: Any, number: int, first: int, start: int) -> Iterator[Line]:
    """Yield the lines from `first` up to the line `number`, which begins at `start`."""
    lines = text[first:start].split(newline)[:-1]
    for index, line in enumerate(lines):
        yield number - len(lines) + index, False, _cut_line(line)


def _cut_line(line: Any) -> str:
    cut = line[: MAX_LINE * 4]
    text = cut.decode("utf-8", "replace") if isinstance(cut, bytes) else cut
    text = text.removesuffix("\r")
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"


def by_line(regex: re.Pattern[str]) -> Search:
    """Return a search that finds only matches within one line, as the other engines do."""

    def search(text: str, position: int) -> re.Match[str] | None:
        while (match := regex.search(text, position)) is not None:
            end = _line_end(text, "\n", match.start())
            if match.end() <= end:
                return match
            start = text.rfind("\n", 0, match.start()) + 1
            inside = regex.search(text, max(start, position), end)
            if inside is not None:
                return inside
            position = end + 1
        return None

    return search


def _frames(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) from a stream of: a line with both lengths, the path, the content."""
    while header := stream.readline():
        path, data = (int(number) for number in header.split())
        yield stream.read(path).decode("utf-8", "replace"), stream.read(data)


def main() -> None:
    """Read the request and the files from standard input; print the lines found in each file as one line of JSON."""
    request = json.loads(sys.stdin.buffer.readline())
    flags = re.MULTILINE | (re.IGNORECASE if request["ignore_case"] else 0)
    search = by_line(re.compile(request["pattern"], flags))
    for path, data in _frames(sys.stdin.buffer):
        lines = list(find_lines(data.decode("utf-8", "replace"), search, request["context"]))
        if lines:
            print(json.dumps([path, lines]), flush=True)


if __name__ == "__main__":
    main()

"""URLs and addresses: nothing that two parsers read differently, nothing that is not public."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk.support.urls import NotPublic, RefusedUrl, Url, follow, parse_url, vetted

CORPUS = Path(__file__).parents[2] / "data" / "corpus" / "urls.jsonl"
EXTRA = CORPUS.parents[1] / "permission" / "urls_extra.jsonl"
ORDER = {"allow": 0, "ask": 1, "deny": 2}


def cases(*files: Path) -> Iterator[dict[str, Any]]:
    for file in files or (CORPUS,):
        for line in file.read_text("utf-8").splitlines():
            case = json.loads(line)
            if case["cat"] != "rule":
                yield case


class FakeNames:
    """Answers each name as the example says, another answer each time."""

    def __init__(self, answers: dict[str, list[list[str]]]) -> None:
        self._answers = answers
        self._asked: dict[str, int] = {}

    def resolve(self, host: str) -> list[str]:
        asked = self._asked[host] = self._asked.get(host, -1) + 1
        answers = self._answers.get(host) or self._answers.get("*") or [[]]
        return answers[min(asked, len(answers) - 1)]


def fetch(case: dict[str, Any]) -> tuple[str, int, list[str]]:
    """Walk an example hop by hop as a fetcher would; return the decision, the last hop and where it connected."""
    names = FakeNames(case.get("dns", {}))
    redirects = {item["from"]: item["location"] for item in case.get("redirects", [])}
    connected: list[str] = []
    hop = 1
    try:
        url = parse_url(case["url"])
        while True:
            answers = [str(url.address)] if url.address else names.resolve(url.host)
            connected.append(str(vetted(answers)[0]))
            location = redirects.pop(str(url), None)
            if location is None:
                return "allow", hop, connected
            hop += 1
            url = follow(url, location)
    except (RefusedUrl, NotPublic):
        return "deny", hop, connected


@pytest.mark.parametrize("case", list(cases(CORPUS, EXTRA)), ids=lambda case: case["id"])
def test_example_urls(case: dict[str, Any]) -> None:
    """Every example is refused where it must be, at the right hop, and connects to public addresses alone (R16, R30, D50)."""
    decision, hop, connected = fetch(case)
    assert ORDER[decision] >= ORDER[case["max"]]
    if case["expect"] == "allow":
        assert decision == "allow"
    if "hop_denied" in case:
        assert (decision, hop) == ("deny", case["hop_denied"])
    assert set(connected) <= set(case.get("must_connect_only_to", connected))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("https://EXAMPLE.com", "https://example.com/"),
        ("https://example.com:443/a/../b/./c?x=1#y", "https://example.com/b/c?x=1"),
        ("https://example.com/%7euser/%2e%2e/x", "https://example.com/x"),
        ("https://example.com/a%2fb", "https://example.com/a%2Fb"),
        ("https://例え.jp/é", "https://xn--r8jz45g.jp/%C3%A9"),
        ("http://example.com.:80/", "http://example.com/"),
        ("https://[2606:4700:4700:0:0:0:0:1111]:8443/", "https://[2606:4700:4700::1111]:8443/"),
    ],
)
def test_a_url_has_one_form(text: str, canonical: str) -> None:
    """Rules match the canonical form, and parsing it again changes nothing (R16)."""
    assert str(parse_url(text)) == canonical
    assert parse_url(canonical) == parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http:/example.com",
        "http://user@example.com/",
        "http://a\\@example.com/",
        "http://exa mple.com/",
        "http://a..b.com/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://1.2.3.4.5/",
        "http://0x7f.1/",
        "http://ｅxample.com/",
        "http://example.com:080/",
        "http://example.com:/",
        "http://example.com:99999/",
        "ftp://example.com/",
        "http\u017f://example.com/",
        "http://straße.de/",
        "http://-a.com/",
        "http://example.com/\n",
        "http://[::1%25eth0]/",
        "http://[::1/",
        "http://example.com:80#@127.0.0.1:8080/",
        "http://example.com#@127.0.0.1/",
        "http://example.com?@127.0.0.1/",
        "http://example.com:443?x=1#@127.0.0.1:8080/",
        "http://example.com?a%40127.0.0.1/",
        "http://example.com#%2540127.0.0.1/",
        "http://example.com?\uff20127.0.0.1/",
        "http://example.com;@127.0.0.1/",
        "http://example.com\t@127.0.0.1/",
        "http://exam\tple.com/",
        "http://example.com#\\@127.0.0.1/",
        "http://example.com%23@127.0.0.1/",
        "http://exam\u200bple.com/",
        "x" * 9000,
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text: str) -> None:
    """User names, backslashes, blanks, odd numbers and look-alikes are refused before any rule is asked (R16)."""
    with pytest.raises(RefusedUrl):
        parse_url(text)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "a.localhost",
        "printer",
        "a.local",
        "x.internal",
        "kubernetes.default.svc",
        "127.0.0.1",
        "10.1.2.3",
        "[::1]",
        "169.254.169.254",
        "[::ffff:8.8.8.8]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:1::1]",
        "100.64.0.1",
        "192.0.0.8",
        "[2606:4700:0:1:0:5efe:7f00:1]",
        "[fe80::1]",
        "[fc00::1]",
        "[3fff::1]",
        "224.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "168.63.129.16",
        "[64:ff9b::a83f:8110]",
        "[2002:a83f:8110::1]",
        "[2606:4700:0:1:0:5efe:a83f:8110]",
        "[::ffff:168.63.129.16]",
        "100.100.100.200",
        "192.0.0.192",
        "192.80.8.124",
        "169.254.170.2",
        "169.254.42.42",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[fe80::a9fe:a9fe]",
        "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
        "[64:ff9b:1::a9fe:a9fe]",
        "metadata.google.internal",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
    ],
)
def test_places_that_are_not_public_are_off_limits(host: str) -> None:
    """Loopback, private, special and embedded addresses, and names of the local network (D50, R30)."""
    with pytest.raises(RefusedUrl) as refused:
        parse_url(f"http://{host}/")
    assert not refused.value.malformed


@given(st.text(alphabet="ab.:#?/@%40\\;[]127", max_size=24))
def test_every_way_to_find_the_host_finds_the_same(rest: str) -> None:
    """Wherever a program looks for the end of the authority, and for the @ in it, it arrives at one host (R16)."""
    text = f"http://example.com{rest}"
    try:
        url = parse_url(text)
    except RefusedUrl:
        return
    for end in ("/?#", "/?", "/#", "/"):
        authority = re.split(f"[{re.escape(end)}]", text.removeprefix("http://"), maxsplit=1)[0]
        assert "@" not in authority and re.split("[:?#]", authority)[0].lower().rstrip(".") == url.host


@pytest.mark.parametrize("answers", [[], ["8.8.8.8", "127.0.0.1"], ["::1"], ["nonsense"], ["8.8.8.8", "fe80::1%eth0"]])
def test_one_bad_answer_spoils_a_name(answers: list[str]) -> None:
    """Every address of a name must be public (R30)."""
    with pytest.raises(NotPublic):
        vetted(answers)


def test_a_redirect_is_checked_like_a_url() -> None:
    """Relative, absolute and scheme-relative steps; never from https to http (D50)."""
    page = parse_url("https://example.com/a/b?c")
    assert str(follow(page, "../x?y#z")) == "https://example.com/x?y"
    assert str(follow(page, "x#z?y")) == "https://example.com/a/x"
    assert str(follow(page, "?q")) == "https://example.com/a/b?q"
    assert str(follow(page, "//example.org/x")) == "https://example.org/x"
    for location in ("http://example.com/", "///127.0.0.1/", "javascript:alert(1)", "//127.0.0.1/", "/a\r\nX: y", "\\\\x"):
        with pytest.raises(RefusedUrl):
            follow(page, location)


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    """Whatever is given is parsed to a stable form or refused, and nothing else happens (R16)."""
    for candidate in (text, f"http://{text}/", f"https://example.com/{text}"):
        try:
            url = parse_url(candidate)
        except RefusedUrl:
            continue
        assert isinstance(url, Url)
        assert parse_url(str(url)) == url

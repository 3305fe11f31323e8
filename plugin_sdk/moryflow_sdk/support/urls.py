"""Parse URLs into the one form that is matched, shown and connected to, and tell which network addresses are public.

Whatever two parsers may read differently is refused: user names, backslashes, control characters, odd numbers.
Nothing here resolves a name; :func:`vetted` checks the addresses that a name resolved to.

The standard library's ``is_global`` follows older registries and calls some special addresses global, so this module lists
the special blocks itself, from the IANA special-purpose address registries. They contain the metadata services of clouds,
except for two, which are listed in addition.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, unquote

Address = IPv4Address | IPv6Address

_SPECIAL_4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        # Not in the registries, but services of the cloud that the machine runs in: Azure's wire server, Equinix's metadata.
        "168.63.129.16/32", "192.80.8.124/32",
    )
)  # fmt: skip

_UNICAST_6 = IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20")
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The 32 bits before the IPv4 address in the lower half of an ISATAP address."""


class NotPublic(ValueError):
    """One of the addresses is not public, so that nothing may connect to them; the message names it."""


@lru_cache(maxsize=1024)
def public(address: Address) -> bool:
    """Whether `address` is a public address of the internet.

    Addresses that contain an IPv4 address (mapped, compatible, 6to4, Teredo) are not; with the well-known NAT64 prefix, an
    address is public if the IPv4 address in it is.
    """
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _SPECIAL_4)
    if address in _NAT64:
        return public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address not in _UNICAST_6 or any(address in block for block in _SPECIAL_6):
        return False
    lower = int(address) & 0xFFFF_FFFF_FFFF_FFFF
    return lower >> 32 not in _ISATAP or public(IPv4Address(lower & 0xFFFF_FFFF))


def vetted(answers: Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses that a name resolved to, if all of them are public; connect to one of these.

    :raises NotPublic: there is no address, one is not public, or one is not an address.
    """
    addresses: list[Address] = []
    for answer in answers:
        try:
            address = ip_address(answer)
        except ValueError as error:
            raise NotPublic(f"{answer!r} is not an address") from error
        if not public(address):
            raise NotPublic(f"{address} is not a public address")
        addresses.append(address)
    if not addresses:
        raise NotPublic("the name has no address")
    return tuple(dict.fromkeys(addresses))


MAX_URL = 8192
PORTS: frozenset[int] = frozenset({80, 443, 8080, 8443})
"""Ports from which a page may be fetched without a rule that names the port; other ports serve other protocols."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEAD = re.compile(r"(https?)://([^/?#]+)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE | re.DOTALL | re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*:", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_KEPT_IN_PATH = "/:@!$&'()*+,;=-._~%"
_PRIVATE_SUFFIXES = frozenset(
    {
        "localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "svc",
        "arpa", "onion", "invalid", "alt",
    }
)  # fmt: skip


class RefusedUrl(ValueError):
    """The URL must not be fetched; the message says why.

    :ivar malformed: whether the URL itself is not acceptable, as opposed to the place that it names.
    :ivar service: the URL, if it names this machine, or a public host with an unusual port: a rule that names host and port
        may allow it.
    """

    def __init__(self, message: str, *, malformed: bool = True, service: Url | None = None) -> None:
        super().__init__(message)
        self.malformed = malformed
        self.service = service


@dataclass(frozen=True)
class Url:
    """A parsed URL: `host` is lower-case ASCII (IPv6 without brackets), `path` begins with ``/``, `query` with ``?``."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The IP address, if the host is one."""
        try:
            return IPv6Address(self.host) if ":" in self.host else IPv4Address(self.host)
        except AddressValueError:
            return None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}{self.query}"


def parse_url(text: str) -> Url:
    """Return `text` parsed, without its fragment.

    :raises RefusedUrl: `text` is not a plain http or https URL, or its host or port is not public.
    """
    _check_characters(text)
    parts = _HEAD.fullmatch(text)
    if parts is None:
        raise RefusedUrl("only http and https URLs with a host are fetched")
    # In `http://a?@b/` and `http://a#@b/` a parser that seeks `@` before the first `/` finds the host `b`.
    before_path = text.partition("://")[2].partition("/")[0]
    if "@" in unicodedata.normalize("NFKC", unquote(unquote(before_path))):
        raise RefusedUrl("a URL with an @ before its path is read differently by different programs; write a / behind the host")
    scheme, authority, path, query = parts.groups()
    host, port = _authority(authority, scheme.lower())
    url = Url(scheme.lower(), host, port, _path(path), _encoded(query or "", _KEPT_IN_PATH + "?"))
    address = url.address
    own = url if is_local(url) else None
    if address is not None and not public(address):
        raise RefusedUrl(f"{address} is not a public address", malformed=False, service=own)
    if address is None and ("." not in url.host or url.host.rpartition(".")[2] in _PRIVATE_SUFFIXES):
        raise RefusedUrl(f"{url.host!r} is a name of the local network", malformed=False, service=own)
    if url.port not in PORTS:
        raise RefusedUrl(f"port {url.port} is not one for web pages", malformed=False, service=url)
    return url


def follow(url: Url, location: str) -> Url:
    """Return the target of a redirect from `url`, checked like any URL.

    :raises RefusedUrl: as :func:`parse_url`, and for a redirect from https to http.
    """
    _check_characters(location)
    if _SCHEME.match(location):
        target = parse_url(location)
    elif location.startswith("//"):
        target = parse_url(f"{url.scheme}:{location}")
    else:
        head, _, tail = location.partition("#")[0].partition("?")
        folder = url.path.rpartition("/")[0]
        path = head if head.startswith("/") else f"{folder}/{head}" if head else url.path
        target = parse_url(str(Url(url.scheme, url.host, url.port, path, f"?{tail}" if tail else "")))
    if url.scheme == "https" and target.scheme == "http":
        raise RefusedUrl("a redirect from https to http is not followed")
    return target


def _check_characters(text: str) -> None:
    if not text or len(text) > MAX_URL:
        raise RefusedUrl(f"a URL has 1 to {MAX_URL} characters")
    if "\\" in text:
        raise RefusedUrl("a URL with a backslash is read differently by different programs")
    for char in text:
        if char <= " " or (char > "~" and unicodedata.category(char)[0] in "CZ"):
            raise RefusedUrl(f"a URL with the character {char!r} is refused")


def _authority(authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise RefusedUrl("a URL with a user name or password is refused")
    if authority.startswith("["):
        inside, closed, after = authority[1:].partition("]")
        host, port = _ipv6(inside), after
        if not closed or (after and not after.startswith(":")):
            raise RefusedUrl("the address in brackets is not complete")
        port = after[1:] if after else None
    else:
        name, colon, after = authority.partition(":")
        host, port = _host(name), after if colon else None
    if port is None:
        return host, _DEFAULT_PORTS[scheme]
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise RefusedUrl(f"{port!r} is not a port")
    return host, int(port)


def _ipv6(text: str) -> str:
    try:
        if "%" in text:
            raise RefusedUrl("an address with a zone is refused")
        return str(IPv6Address(text))
    except AddressValueError as error:
        raise RefusedUrl(f"{text!r} is not an IPv6 address") from error


def _host(name: str) -> str:
    host = (name if name.isascii() else _ascii(name)).lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise RefusedUrl(f"{name!r} is not a host name")
    return host


def _ipv4(text: str) -> str:
    """Return an IPv4 address in its ordinary form; octal, hexadecimal, short and single-number forms are refused."""
    parts = text.split(".")
    plain = all(part.isascii() and part.isdigit() and (part == "0" or not part.startswith("0")) for part in parts)
    try:
        if plain and len(parts) == 4:
            return str(IPv4Address(text))
    except AddressValueError:
        pass
    raise RefusedUrl(f"{text!r} is an address in an unusual form")


def _ascii(name: str) -> str:
    """Return an international name in its ASCII form; refuse it if there is more than one way to read it."""
    for char in name:
        ordinary = char.isascii() or unicodedata.category(char) in ("Ll", "Lo", "Lu", "Lm", "Mn", "Mc")
        if not ordinary or any(part.isascii() for part in unicodedata.normalize("NFKC", char) if not char.isascii()):
            raise RefusedUrl(f"{name!r} holds the character {char!r}, which looks like another one")
    try:
        encoded = name.encode("idna").decode("ascii")
        if encoded.encode("ascii").decode("idna") != unicodedata.normalize("NFC", name).lower():
            raise RefusedUrl(f"{name!r} can be read as two different names")
    except UnicodeError as error:
        raise RefusedUrl(f"{name!r} is not a host name") from error
    return encoded


def _path(path: str) -> str:
    """Return a path without ``.`` and ``..``, with its escapes in one form."""
    kept: list[str] = []
    segments = _encoded(path, _KEPT_IN_PATH).split("/")[1:] or [""]
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment in (".", ".."):
            if segment == ".." and kept:
                kept.pop()
            if last:
                kept.append("")
        else:
            kept.append(segment)
    return "/" + "/".join(kept)


def _encoded(text: str, kept: str) -> str:
    """Return `text` with canonical escapes: unreserved characters are unescaped, and others escaped where they must be."""
    plain = _PERCENT.sub(_unescaped, text)
    try:
        return quote(plain, safe=kept)
    except UnicodeEncodeError as error:
        raise RefusedUrl("the URL holds text that is not valid Unicode") from error


def _unescaped(match: re.Match[str]) -> str:
    char = chr(int(match.group(1), 16))
    return char if char in _UNRESERVED else match.group().upper()


def is_local(url: Url) -> bool:
    """Whether a URL names this machine by a loopback address or as ``localhost``."""
    address = url.address
    return address.is_loopback if address is not None else url.host == "localhost" or url.host.endswith(".localhost")

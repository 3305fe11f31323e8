"""Which network addresses are public.

The standard library's ``is_global`` follows older registries and calls some special addresses global, so the special
blocks are listed here, from the IANA special-purpose address registries. The metadata services of clouds are in them, with
two exceptions that are listed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_SPECIAL_4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        # Not in the registries, but of the machine's own cloud: Azure's wire server, Equinix's metadata.
        "168.63.129.16/32", "192.80.8.124/32",
    )
)  # fmt: skip

_UNICAST_6 = IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20")
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""What stands before an IPv4 address in the lower half of an ISATAP address."""


class NotPublic(ValueError):
    """An address, or one of several, must not be connected to; the message names it."""


@lru_cache(maxsize=1024)
def public(address: Address) -> bool:
    """Whether `address` is one that anybody on the internet may have.

    Addresses that carry an IPv4 address (mapped, compatible, 6to4, Teredo) are not; those of the well-known NAT64
    prefix are as public as the address they carry.
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
    """Return the addresses a name resolved to, when every one of them is public; connect to one of these.

    :raises NotPublic: there is none, one is not public, or one is not an address.
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

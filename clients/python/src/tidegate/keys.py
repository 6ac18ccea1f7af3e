"""Makes keys, and finds the client of a request behind trusted proxies. Knows no framework."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Optional, Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# The most hops of X-Forwarded-For that are looked at, as in the server.
_HOPS_MAX = 64


def make_key(domain: str, **entries: object) -> str:
    """A key as the server's own doors make them: `make_key("api", user="ann")` is `api user=ann`.

    Spaces, `%` and control characters are percent-encoded, so that no value can pretend to be
    another entry. Raises `TypeError` for a value of `None`, which clients would share.
    """
    parts = [_encoded(domain, r"[\x00-\x20\x7f%]")]
    for name, value in entries.items():
        if value is None:
            raise TypeError(f"make_key: {name} is None")
        name = _encoded(name, r"[\x00-\x20\x7f%=]")
        parts.append(name + "=" + _encoded(str(value), r"[\x00-\x20\x7f%]"))
    return " ".join(parts)


def _encoded(text: str, odd: str) -> str:
    return re.sub(odd, lambda match: "%%%02X" % ord(match.group()), text)


def networks(trusted_proxies: Iterable[str]) -> list[Network]:
    """The networks that these texts name: `10.0.0.0/8`, `::1`."""
    return [ipaddress.ip_network(text) for text in trusted_proxies]


def client_address(
    peer: Optional[str],
    forwarded_for: Iterable[str],
    trusted: Iterable[Network] = (),
    ipv6_prefix: int = 128,
) -> str:
    """The address of the client: the peer's, or the one that a trusted peer names.

    `forwarded_for` are the values of X-Forwarded-For. They are read from the right, because a
    client can write anything to the left of its own address. `-` if there is no address, as with
    a Unix socket. With an `ipv6_prefix` of 64 it is `2001:db8:1:2::/64` for all of that network.
    """
    client = _address(peer or "")
    if client is None:
        return "-"
    trusted = list(trusted)
    hops = ",".join(forwarded_for).split(",")
    for hop in hops[: -_HOPS_MAX - 1 : -1]:
        address = _address(hop.strip())
        if address is None or not any(client in network for network in trusted):
            break
        client = address
    if client.version == 6 and ipv6_prefix < 128:
        return str(ipaddress.ip_network((client, ipv6_prefix), strict=False))
    return str(client)


def prefix(bits: int) -> int:
    """The length of a prefix of IPv6 addresses; raises `ValueError`."""
    if not 1 <= bits <= 128:
        raise ValueError(f"ipv6_prefix: {bits} is not 1 to 128")
    return bits


def _address(text: str) -> Optional[Address]:
    bracketed = re.fullmatch(r"\[(.*)\](?::\d+)?", text)
    with_port = re.fullmatch(r"(\d+\.\d+\.\d+\.\d+):\d+", text)
    match = bracketed or with_port
    try:
        # Without the zone of fe80::1%eth0, which is a name of this machine's.
        bare = (match.group(1) if match else text).partition("%")[0]
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

"""Addresses ``host:port`` of every configuration and command, as one rule reads them: names, IPv4, and IPv6 in brackets."""

import ipaddress
import urllib.parse

EXAMPLES = "for example coordinator.example:8461, 192.0.2.7:8461 or [2001:db8::7]:8461"


def split_host_port(value: str, *, lowest_port: int = 1) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets (RFC 3986, section 3.2.2) and is returned bare.

    Args:
        value: the address; a zone may follow an IPv6 address, as in ``[fe80::1%eth0]:8461``.
        lowest_port: 0 where a listener may let the system choose.

    Raises:
        ValueError: it is none; says what it must be, without repeating it.
    """
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if (not bracketed and ":" in value.removesuffix(f"{colon}{port}")) or (bracketed and not _is_ipv6(bare)):
        raise ValueError(f"must be host:port, with brackets around an IPv6 address, {EXAMPLES}")
    strange = any(character.isspace() or character in "/@[]?#\\" for character in bare)
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not bare or strange or not digits or not lowest_port <= int(port) <= 65535:
        raise ValueError(f"must be host:port, with a port of {lowest_port} to 65535, {EXAMPLES}")
    return bare, int(port)


def join_host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_to_dial(value: str) -> str:
    """Check an address that is dialled, for a field of a configuration."""
    split_host_port(value)
    return value


def address_to_listen_on(value: str) -> str:
    """Check an address that is listened on, for a field of a configuration; port 0 lets the system choose."""
    split_host_port(value, lowest_port=0)
    return value


def bare_host(host: str) -> str:
    """A host without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer, ``ipv4:192.0.2.7:1234`` or ``ipv6:%5B2001:db8::7%5D:1234``; empty if it has none."""
    kind, _, place = urllib.parse.unquote(peer).partition(":")
    return bare_host(place.rpartition(":")[0]) if kind in ("ipv4", "ipv6") else ""


def _is_ipv6(host: str) -> bool:
    try:
        return isinstance(ipaddress.ip_address(host), ipaddress.IPv6Address)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its own address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

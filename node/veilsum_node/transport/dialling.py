"""Connects to a coordinator by a :class:`.Route`: straight, or through an HTTP proxy by CONNECT."""

import socket
import time

from veilsum_node.errors import Unavailable
from veilsum_node.transport.route import Proxy, Route, split_address

PROBE_SECONDS = 5.0

ANSWER_SECONDS = 15.0
"""How long the head of a proxy's answer may take, however its bytes come."""

MAX_ANSWER_BYTES = 16 * 1024
"""Longest head of a proxy's answer that is read."""


class UnreachableError(Unavailable):
    """The coordinator cannot be reached, or what answers is not one of this federation."""


class AwayError(UnreachableError):
    """The coordinator is away for now, as one that restarts is: nothing answers, or a connection was broken off."""


class BrokenOffError(AwayError):
    """Something was there, and broke a connection off or fell silent in it."""


def as_route(way: Route | str) -> Route:
    """A bare address is the straight way."""
    return Route(way) if isinstance(way, str) else way


def connect(way: Route) -> socket.socket:
    """Open a TCP connection to a coordinator, or a tunnel that serves as one.

    Raises:
        UnreachableError: says at which step it failed.
    """
    split_address(way.address)
    if way.proxy is not None:
        return _tunnel(way.proxy, way.address)
    return dial(way.address, way.address, "Check host and port, and that the coordinator is running.")


def _tunnel(proxy: Proxy, target: str) -> socket.socket:
    """Open a tunnel to ``target``, host:port.

    Raises:
        UnreachableError: says what the proxy answered and what to do.
    """
    raw = dial(proxy.address, f"The proxy {proxy.address}", "Check `proxy` in the configuration, and the network.")
    try:
        fields = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", proxy.authorization]
        raw.sendall(("\r\n".join(item for item in fields if item) + "\r\n\r\n").encode())
        status = _answer(raw)
    except OSError as error:
        raw.close()
        raise UnreachableError(f"The proxy {proxy.address} closed the connection while it was asked for {target}.") from error
    if not 200 <= status < 300:
        raw.close()
        raise _refused(proxy, status, target)
    return raw


def _answer(raw: socket.socket) -> int:
    """The status of the proxy's answer; -1 where it is not HTTP. Reads nothing past its head: that is the tunnel's."""
    head, end = b"", time.monotonic() + ANSWER_SECONDS
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_ANSWER_BYTES:
        if time.monotonic() > end:  # a byte now and then would keep it here for hours
            raise TimeoutError("the proxy answers too slowly")
        piece = raw.recv(1)
        head += piece
        if not piece or (len(head) >= 5 and not head.startswith(b"HTTP/")):
            break
    first = head.split(b"\r\n", 1)[0].split(b" ")
    proper = head.endswith(b"\r\n\r\n") and first[0].startswith(b"HTTP/1.") and len(first) > 1 and first[1].isdigit()
    return int(first[1][:3]) if proper else -1


def _refused(asked: Proxy, status: int, target: str) -> UnreachableError:
    proxy = f"The proxy {asked.address}"
    if status == -1:
        return UnreachableError(f"What listens on {asked.address} is not an HTTP proxy.", "Check `proxy`: host and port.")
    if status in (401, 407) and not asked.user:
        advice = "Set `proxy_user` and `proxy_password_file`; only basic authentication is supported."
        return UnreachableError(f"{proxy} asks for a user and a password ({status}).", advice)
    if status in (401, 407):  # some answer a wrong password with 401
        advice = "Check both; only basic authentication is supported."
        return UnreachableError(f"{proxy} rejects the user and password ({status}).", advice)
    if status == 403:
        return UnreachableError(f"{proxy} does not allow {target} (403).", f"Ask its operator to allow CONNECT to {target}.")
    if status in (400, 405, 501):
        return UnreachableError(f"{proxy} does not tunnel ({status}).", "It must allow the method CONNECT.")
    if status in (502, 503, 504):
        return UnreachableError(
            f"{proxy} cannot reach {target} ({status}).", "Check that address; the proxy looks up its name."
        )
    return UnreachableError(f"{proxy} refuses {target} with status {status}.", "Ask its operator.")


def dial(address: str, whose: str, advice: str) -> socket.socket:
    """Open a TCP connection; ``whose`` begins the message if it cannot be opened.

    Raises:
        UnreachableError: it cannot.
    """
    host, port = split_address(address)
    try:
        return socket.create_connection((host, port), PROBE_SECONDS)
    except TimeoutError as error:
        raise AwayError(
            f"{whose} does not answer within {PROBE_SECONDS:g} s.", "Check address, routes and firewalls."
        ) from error
    except socket.gaierror as error:
        raise UnreachableError(f"The host of {address} is not known.", "Check the name, or the name server.") from error
    except ConnectionRefusedError as error:
        raise AwayError(f"Nothing listens on {address}.", advice) from error
    except ConnectionResetError as error:
        raise BrokenOffError(
            f"{whose} broke off the connection.", "Try again. If it stays so, check host and port."
        ) from error
    except OSError as error:
        raise AwayError(f"{whose} cannot be reached ({error.strerror}).", "Check address and routes.") from error

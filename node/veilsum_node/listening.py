"""Whether an address can be listened on, and what is said where it cannot."""

import errno
import socket

from veilsum_node.addresses import split_host_port
from veilsum_node.errors import ConfigurationError

_ADVICE = {
    errno.EADDRNOTAVAIL: "Name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all that it has.",
    errno.EACCES: "Choose a port from 1024 on; lower ones need a privilege.",
}


def cannot_listen(who: str, listen: str, error: OSError) -> ConfigurationError:
    """The refusal of an address.

    Args:
        who: what cannot be there: "The coordinator cannot listen".
        listen: the address as the configuration has it.
    """
    number = errno.EADDRNOTAVAIL if isinstance(error, socket.gaierror) else error.errno or 0
    advice = _ADVICE.get(number, "Choose a free port, or 0 to let the system choose.")
    return ConfigurationError(f"{who} on {listen} ({error.strerror}).", advice)


def check_free(who: str, listen: str) -> None:
    """For a server that is content with one of a host's addresses, as gRPC's is: another process may not have any of them.

    Raises:
        ConfigurationError: it has, or the host has no address of this machine.
    """
    host, port = split_host_port(listen, lowest_port=0)
    free, found = False, OSError(errno.EADDRNOTAVAIL, "no address")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(who, listen, error) from error
    for family, _, _, _, place in addresses:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
                free = True
        except OSError as error:
            found = error
            if error.errno == errno.EADDRINUSE:
                raise cannot_listen(who, listen, error) from error
    if not free:
        raise cannot_listen(who, listen, found)

"""Where a party's metrics are served: what a process has to know that serves none itself."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from veilsum_node.addresses import address_to_listen_on
from veilsum_node.fields import Frozen


class MetricsSettings(Frozen):
    """The table ``[metrics]`` of a configuration file; without it the endpoint does not start.

    Attributes:
        listen: host:port; port 0 lets the system choose. On another host than loopback the three files below are demanded.
        ready_file: where the chosen address is written once the endpoint listens.
        certificate: PEM file of the endpoint's certificate and what leads to its authority; a renewed one is taken up.
        key: PEM file of its private key, readable by its owner only.
        token_file: file of one token of at least 16 characters, readable by its owner only; who asks for the metrics shows it
            as ``Authorization: Bearer``.
    """

    listen: Annotated[str, AfterValidator(address_to_listen_on)] = "127.0.0.1:9464"
    ready_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

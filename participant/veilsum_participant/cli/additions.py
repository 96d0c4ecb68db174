"""What the site's commands can do only where the coordinator's code is installed as well.

The participant's own distribution has none of it; the ``veilsum`` command of the whole platform hands it to every command in
its context.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veilsum_participant.checks import AskedStudy


@dataclass(frozen=True)
class Additions:
    """Functions of the coordinator's code.

    Attributes:
        load_study: reads a ``study.toml``, to hold it against this site's policy before anyone submits it.
        coordinator_ledger: where the mirror of a ``coordinator.toml`` lies, and its authority's certificate.
    """

    load_study: "Callable[[Path], AskedStudy]"
    coordinator_ledger: Callable[[Path], tuple[str, Path]]
